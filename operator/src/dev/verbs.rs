//! What a person does with a run of `dalsegno dev`, beside the process that serves it.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use dalsegno_crds::OperatingMode;
use dalsegno_model::{NewMessage, RunRecord, Sent, Store};
use dalsegno_protocol::{Limits, RawValue};
use uuid::Uuid;

use super::{DATABASE, agent_run, decide};
use crate::config::{DevRunArgs, DevSendArgs, DevVerb};
use crate::output::print_line;

/// Does it.
///
/// # Errors
///
/// The folder has no store, the store no such run, or the run is over.
pub async fn act_on(verb: DevVerb) -> anyhow::Result<()> {
    match verb {
        DevVerb::Send(args) => send(args).await,
        DevVerb::Approve(args) => decide::approve(args).await,
        DevVerb::Deny(args) => decide::deny(args).await,
        DevVerb::Suspend(args) => {
            let (_, run) = find(&args).await?;
            fs::write(suspend_file(&args.dir, &args.name), "").context("suspending the run")?;
            print_line!("suspended: {}/{}; `dalsegno dev resume` lifts it", run.namespace, run.name);
            Ok(())
        }
        DevVerb::Resume(args) => {
            let file = suspend_file(&args.dir, &args.name);
            if file.exists() {
                fs::remove_file(file).context("lifting the suspend")?;
            }
            print_line!("resumed: {}/{}", agent_run::NAMESPACE, args.name);
            Ok(())
        }
    }
}

/// The file that exists while a person suspends the run: it stands for `spec.operatingMode` of an AgentRun.
pub fn suspend_file(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{name}.suspended"))
}

/// The operating mode that a person requests.
pub fn operating_mode(suspend_file: &Path) -> Option<OperatingMode> {
    suspend_file.exists().then_some(OperatingMode::Suspended)
}

async fn send(DevSendArgs { run, topic, id, value }: DevSendArgs) -> anyhow::Result<()> {
    let (store, run) = find(&run).await?;
    let id = id.unwrap_or_else(|| Uuid::new_v4().to_string());
    let value = RawValue::from_string(value.clone()).or_else(|_| serde_json::value::to_raw_value(&value));
    let value = value.context("encoding the message")?;
    if value.get().len() > Limits::MESSAGE_BYTES {
        bail!("the message has more than {} bytes", Limits::MESSAGE_BYTES);
    }
    let message = NewMessage { run: run.id, id: id.clone(), topic, value, author: person() };
    match store.send_message(&message).await.context("sending the message")? {
        Sent::Ok(position) => print_line!("sent: message {position}, with the id {id}"),
        Sent::Duplicate(position) => print_line!("sent before: message {position}, with the id {id}"),
        Sent::Conflict => bail!("the id {id} was used before for another message"),
        Sent::TooMany => bail!("too many messages wait for the worker already"),
        Sent::Finished => bail!("the run is over"),
        Sent::NotFound => bail!("the store no longer has the run"),
    }
    Ok(())
}

/// The user of this machine, for the audit.
pub fn person() -> String {
    std::env::var("USER").unwrap_or_else(|_| "a person".to_owned())
}

/// The store of the folder, opened beside the process that serves it, and the run of this name.
pub async fn find(
    DevRunArgs { dir, name }: &DevRunArgs,
) -> anyhow::Result<(std::sync::Arc<dyn Store>, RunRecord)> {
    let database = dir.join(DATABASE);
    let database = database
        .canonicalize()
        .with_context(|| format!("there is no store in {}: `dalsegno dev` makes one", dir.display()))?;
    let store = dalsegno_store::open_beside(&format!("sqlite://{}", database.display()), None).await;
    let store = store.context("opening the store")?;
    let run = agent_run::find(store.as_ref(), name).await?;
    let run = run.with_context(|| format!("the store has no run {}/{name}", agent_run::NAMESPACE))?;
    Ok((store, run))
}
