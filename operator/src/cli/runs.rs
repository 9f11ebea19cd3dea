//! Finds the run that a user names, and describes it in a line.

use anyhow::Context as _;
use dalsegno_model::{Lifecycle, RunRecord, Store};
use jiff::Timestamp;

use crate::config::RunRef;
use crate::output::print_error;

/// A run, and the earlier runs that had the same name.
pub struct FoundRun {
    /// The run. By name it is the last one of that name.
    pub run: RunRecord,
    /// Earlier runs of the name, the newest first. Empty if the run was named by its id.
    pub earlier: Vec<RunRecord>,
}

/// Finds a run by its id or by its name.
///
/// # Errors
///
/// The store is unavailable, or has no such run.
pub async fn find(store: &dyn Store, run: &RunRef) -> anyhow::Result<FoundRun> {
    let found = match run {
        RunRef::Id(id) => store.get_run(*id).await.map(Vec::from_iter),
        RunRef::Name { namespace, name } => store.find(namespace, name).await,
    };
    let mut found = found.context("looking for the run")?.into_iter();
    let last = found.next().with_context(|| format!("the store has never had a run {run}"))?;
    Ok(FoundRun { run: last, earlier: found.collect() })
}

/// Finds a run, for a command that takes the last run of a name. If there were others, says so on standard error.
///
/// # Errors
///
/// As for [`find`].
pub async fn find_last(store: &dyn Store, run: &RunRef) -> anyhow::Result<RunRecord> {
    let FoundRun { run: last, earlier } = find(store, run).await?;
    if !earlier.is_empty() {
        print_error(&format!(
            "{run}: of {} runs of this name the last, with the id {}; `dalsegno show` lists the others",
            earlier.len() + 1,
            last.id
        ));
    }
    Ok(last)
}

/// One line that identifies a run among others of its name.
pub fn summary(run: &RunRecord) -> String {
    format!("{}, created {}, {}", run.id, utc(run.created_at), state(run))
}

/// The state of a run, without the message of its worker.
pub fn state(run: &RunRecord) -> String {
    match (&run.finish, run.lifecycle) {
        (Some(finish), Lifecycle::Finished) => {
            format!("{} at {}: {}", wire_name(&finish.outcome), utc(finish.at), finish.reason)
        }
        (_, Lifecycle::Deleted) => "its AgentRun was deleted".to_owned(),
        (_, Lifecycle::Abandoned) => "abandoned for a later run of this name".to_owned(),
        _ => format!("attempt {} is {}", run.attempt.number, wire_name(&run.attempt.state)),
    }
}

/// A note on payloads of a shredded run that were never encrypted; `None` if there are none.
pub fn unsealed_note(run: &RunRecord, payloads: u64) -> Option<String> {
    (payloads > 0).then(|| {
        format!(
            "payloads that were written before encryption was switched on, and were never sealed: {payloads}; anybody with \
             access to the database can read them until retention drops them, {} days after the end of the run",
            run.retention.days
        )
    })
}

/// The spelling of an enum's variant in the contract and in the store.
pub fn wire_name(value: &impl serde::Serialize) -> String {
    serde_json::to_value(value).ok().and_then(|name| name.as_str().map(str::to_owned)).unwrap_or_default()
}

/// A time in UTC, to the second.
pub fn utc(at: Timestamp) -> String {
    at.strftime("%Y-%m-%d %H:%M:%S UTC").to_string()
}
