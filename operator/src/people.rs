//! What a person asks of the store directly: to see a run, and to say how a call ended.

pub mod audit;
pub mod export;
pub mod keys;
pub mod show;
pub mod verify;

use anyhow::{Context as _, bail, ensure};
use dalsegno_protocol::{CallOutcome, Limits, RawValue, nesting};
use dalsegno_store::{Completed, RunRecord, Settle, SettledBy, Store};

use crate::config::{RunRef, SettleOutcome, StoreArgs};
use crate::output::{mention, print_line};

/// Somebody's word on a call.
pub struct Word {
    /// The call's name.
    pub call: String,
    /// How it ended.
    pub outcome: SettleOutcome,
    /// The tool's answer.
    pub result: Option<String>,
    /// How it was found out.
    pub reason: String,
    /// Who says so.
    pub by: String,
}

/// Says how a call ended whose outcome nobody knows.
///
/// # Errors
///
/// There is no such run or call, it is not unsettled, or the result is none that a worker could give.
pub async fn settle(store: &StoreArgs, run: &RunRef, word: Word) -> anyhow::Result<()> {
    let result = word.result.as_deref().map(answer).transpose()?;
    let store = store.open_beside().await?;
    let run = latest(store.as_ref(), run).await?;
    let settle = Settle {
        run: run.id,
        by: SettledBy::Person(word.by),
        id: word.call.clone(),
        outcome: match word.outcome {
            SettleOutcome::Completed => CallOutcome::Completed,
            SettleOutcome::Failed => CallOutcome::Failed,
        },
        result,
        reason: word.reason,
    };
    match store.settle(&settle).await.context("settling the call")? {
        Completed::Ok => print_line!("settled: {}", word.call),
        Completed::Duplicate => print_line!("settled before, with the same outcome: {}", word.call),
        Completed::Conflict(why) => bail!("{}: {why}", word.call),
        Completed::TooLarge => bail!(
            "with this result the open calls of the run would be too large: say where it stands, in at most {} bytes",
            Limits::SMALL_RESULT_BYTES
        ),
        Completed::NoSuchCall => {
            bail!("the run has no call {:?}; `dalsegno show --calls` lists them", word.call)
        }
        Completed::Finished => bail!("the run is over"),
        Completed::Fenced | Completed::NotFound => bail!("the run is gone"),
    }
    Ok(())
}

/// A tool's answer, within what the gateway takes of a worker: the next attempt has to read it.
fn answer(text: &str) -> anyhow::Result<Box<RawValue>> {
    let (bytes, limit) = (text.len(), Limits::BODY_BYTES);
    ensure!(
        bytes <= limit,
        "the result has {bytes} bytes, the limit is {limit}: say in a smaller one where it stands"
    );
    // A worker's stands in a body, which is a level itself.
    let limit = Limits::DEPTH - 1;
    ensure!(
        nesting::deeper_than(limit, text.as_bytes()).is_none(),
        "the result is nested deeper than {limit} levels: put the inner part into a string"
    );
    serde_json::from_str(text).context("the result is not JSON")
}

/// Moves the runs of a namespace to the UID that it has now.
///
/// # Errors
///
/// The store does not answer, or has no run of that namespace.
pub async fn adopt_namespace(
    store: &StoreArgs,
    old: &str,
    new: &str,
    reason: &str,
    by: &str,
) -> anyhow::Result<()> {
    let store = store.open_beside().await?;
    match store.adopt_namespace(old, new, by, reason).await.context("moving the runs")? {
        0 => bail!("the store has no run of a namespace with UID {old}"),
        runs => print_line!("{runs} runs now belong to the namespace with UID {new}"),
    }
    Ok(())
}

/// The run; and those before it that had its name, the newest first, where it is named so.
async fn find(store: &dyn Store, run: &RunRef) -> anyhow::Result<(RunRecord, Vec<RunRecord>)> {
    let found = match run {
        RunRef::Id(id) => store.get_run(*id).await.map(Vec::from_iter),
        RunRef::Name { namespace, name } => store.find(namespace, name).await,
    };
    let mut found = found.context("looking for the run")?.into_iter();
    let last = found.next().with_context(|| format!("the store has never had a run {run}"))?;
    Ok((last, found.collect()))
}

/// The same for a verb that may take the last run of a name: that there were others it tells.
async fn latest(store: &dyn Store, run: &RunRef) -> anyhow::Result<RunRecord> {
    let (last, earlier) = find(store, run).await?;
    if !earlier.is_empty() {
        mention(&format!(
            "{run}: of {} runs of this name the last, with the id {}; `dalsegno show` lists the others",
            earlier.len() + 1,
            last.id
        ));
    }
    Ok(last)
}
