//! `dalsegno keys`: rotates the key that wraps data keys, and deletes the data key of a run.

use anyhow::{Context as _, bail, ensure};
use dalsegno_model::{Shred, Shredded};
use dalsegno_store::keys::Rewrapped;

use super::runs::{FoundRun, find, summary, unsealed_note};
use crate::config::{Justification, ShredArgs, StoreArgs};
use crate::output::print_line;

/// Wraps the data keys of all runs with the current key. A data key that cannot be unwrapped does not stop the others.
///
/// # Errors
///
/// No encryption keys are given, a data key could not be unwrapped, or the store is unavailable.
pub async fn rewrap(store: &StoreArgs) -> anyhow::Result<()> {
    let store = store.open_beside().await?;
    let Rewrapped { count, failed } = store.rewrap_keys().await.context("wrapping the data keys")?;
    match count {
        0 if failed.is_empty() => print_line!("the current key already wraps all data keys"),
        count => {
            print_line!("data keys that were wrapped by another key, and now by the current one: {count}")
        }
    }
    for (id, error) in &failed {
        let run = store.get_run(*id).await.context("looking for a run")?;
        let name = run.map_or_else(String::new, |run| format!("{}/{} ", run.namespace, run.name));
        print_line!("run {name}(id {id}): {error}");
    }
    ensure!(
        failed.is_empty(),
        "data keys that could not be unwrapped, and were left unchanged: {}",
        failed.len()
    );
    Ok(())
}

/// Deletes the data key of a run that is over.
///
/// # Errors
///
/// There is no such run or several of this name, it is live, it was never sealed, or the store is unavailable.
pub async fn shred(args: ShredArgs) -> anyhow::Result<()> {
    let ShredArgs { store, run: run_ref, justification: Justification { reason, by } } = args;
    let store = store.open_beside().await?;
    let FoundRun { run, earlier } = find(store.as_ref(), &run_ref).await?;
    if !earlier.is_empty() {
        let runs: Vec<_> = [&run].into_iter().chain(&earlier).map(summary).collect();
        bail!(
            "several runs have had the name {run_ref}: say by its id which one to shred\n{}",
            runs.join("\n")
        );
    }
    let name = format!("{}/{} (id {})", run.namespace, run.name, run.id);
    match store.shred(&Shred { run: run.id, actor: by, reason }).await.context("shredding the run")? {
        Shredded::Done => {
            print_line!("shredded: the data key of run {name} is deleted");
            print_line!("a gateway that has read the key recently may use it for up to one more minute");
            print_line!(
                "a backup of the database from before still holds the key, and so does a replica that lags behind"
            );
            let unsealed =
                store.count_unsealed(run.id).await.context("counting payloads that were never sealed")?;
            if let Some(note) = unsealed_note(&run, unsealed) {
                print_line!("{note}");
            }
        }
        Shredded::GoneBefore => print_line!(
            "the data key of run {name} was gone before, so nothing was written, not even the reason; `dalsegno show` shows \
             who shredded the run and why, unless the run is past its retention"
        ),
        Shredded::NeverSealed => bail!(
            "the run was never sealed, so there is nothing to shred: its payloads are not encrypted, and retention drops \
             them {} days after the end of the run",
            run.retention.days
        ),
        Shredded::Live => bail!(
            "the run is live, and its worker would write payloads that nobody can read: cancel it first; if its AgentRun is \
             gone, create one of that name with operatingMode: Cancelled and onPriorRun: Adopt (docs/reference/retention.md)"
        ),
        Shredded::NotFound => bail!("the store no longer has the run"),
    }
    Ok(())
}
