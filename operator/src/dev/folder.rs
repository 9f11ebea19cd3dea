//! The folder of `dalsegno dev`: its store, and the file of each suspended run.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use dalsegno_crds::OperatingMode;
use dalsegno_model::{RunRecord, Store};

use super::agent_run;
use crate::config::DevRunArgs;

/// The file of the store.
pub const DATABASE: &str = "runs.db";

/// The file that exists while a person suspends the run: it stands for `spec.operatingMode` of an AgentRun.
pub fn suspend_file(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{name}.suspended"))
}

/// The operating mode that a person requests.
pub fn operating_mode(suspend_file: &Path) -> Option<OperatingMode> {
    suspend_file.exists().then_some(OperatingMode::Suspended)
}

/// The user of this machine, for the audit.
pub fn person() -> String {
    std::env::var("USER").unwrap_or_else(|_| "a person".to_owned())
}

/// The store of the folder, opened beside the process that serves it, and the run of this name.
pub async fn find(DevRunArgs { dir, name }: &DevRunArgs) -> anyhow::Result<(Arc<dyn Store>, RunRecord)> {
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
