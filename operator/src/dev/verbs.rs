//! What a person does with a run of `dalsegno dev`, beside the process that serves it.

use std::fs;

use anyhow::{Context as _, bail};
use dalsegno_model::{NewMessage, Sent};
use dalsegno_protocol::{Limits, RawValue};
use uuid::Uuid;

use super::folder::{find, person, suspend_file};
use super::{agent_run, decide};
use crate::config::{DevSendArgs, DevVerb};
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

async fn send(DevSendArgs { run, topic, id, value }: DevSendArgs) -> anyhow::Result<()> {
    let (store, run) = find(&run).await?;
    let id = id.unwrap_or_else(|| Uuid::new_v4().to_string());
    let value = RawValue::from_string(value.clone()).or_else(|_| serde_json::value::to_raw_value(&value));
    let value = value.context("encoding the message")?;
    if value.get().len() > Limits::MESSAGE_BYTES {
        bail!("the message has more than {} bytes", Limits::MESSAGE_BYTES);
    }
    let message = NewMessage { run: run.id, id: id.clone(), topic, value, author: person(), audit_id: None };
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
