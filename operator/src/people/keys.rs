//! The keys by which payloads are encrypted.

use anyhow::{Context as _, bail, ensure};
use dalsegno_store::keys::Rewrapped;
use dalsegno_store::{RunRecord, Shredded};

use super::find;
use super::show::brief;
use crate::config::{RunRef, StoreArgs};
use crate::output::print_line;

/// Wraps the data keys of all runs by the current key.
///
/// # Errors
///
/// No keys are named, a data key could not be unwrapped, which stops no other, or the store does not answer.
pub async fn rewrap(store: &StoreArgs) -> anyhow::Result<()> {
    let store = store.open_beside().await?;
    let Rewrapped { count, failed } = store.rewrap_keys().await.context("wrapping the data keys")?;
    match count {
        0 if failed.is_empty() => print_line!("the current key wraps all data keys"),
        count => print_line!("data keys that the current key wraps now, and another one did before: {count}"),
    }
    for (id, error) in &failed {
        let run = store.get_run(*id).await.context("looking for a run")?;
        let name = run.map_or_else(String::new, |run| format!("{}/{} ", run.namespace, run.name));
        print_line!("run {name}(id {id}): {error}");
    }
    ensure!(
        failed.is_empty(),
        "data keys that could not be unwrapped, and are as they were: {}",
        failed.len()
    );
    Ok(())
}

/// Deletes the data key of a run that is over.
///
/// # Errors
///
/// There is no such run, or several of this name, it lives, it was never sealed, or the store does not answer.
pub async fn shred(store: &StoreArgs, which: &RunRef, reason: &str, by: &str) -> anyhow::Result<()> {
    let store = store.open_beside().await?;
    let (run, earlier) = find(store.as_ref(), which).await?;
    if !earlier.is_empty() {
        let runs: Vec<_> = [&run].into_iter().chain(&earlier).map(brief).collect();
        bail!(
            "several runs have had the name {which}: say by its id which one to shred\n{}",
            runs.join("\n")
        );
    }
    match store.shred(run.id, reason, by).await.context("shredding the run")? {
        Shredded::Done => {
            print_line!(
                "shredded: the data key of run {}/{} (id {}) is deleted",
                run.namespace,
                run.name,
                run.id
            );
            print_line!("a gateway that has read it lately may use it for another minute");
            print_line!(
                "a backup of the database from before holds it still, and so does a replica that lags behind"
            );
            let plain = store.unsealed(run.id).await.context("counting what was never sealed")?;
            if let Some(still) = still_plain(&run, plain) {
                print_line!("{still}");
            }
        }
        Shredded::GoneBefore => print_line!(
            "the data key of run {}/{} (id {}) was gone before: nothing was written, the reason neither; `dalsegno show` tells \
             who shredded the run, and why, unless it is past its retention",
            run.namespace,
            run.name,
            run.id
        ),
        Shredded::NeverSealed => bail!(
            "the run was never sealed, so that there is nothing to shred: what its worker wrote is plain, and its \
             retention drops it, {} days after its end",
            run.retention.days
        ),
        Shredded::Live => bail!(
            "the run lives, and its worker would write what nobody can read: cancel it first; if its AgentRun is gone, create \
             one of that name with operatingMode: Cancelled and onPriorRun: Adopt (docs/reference/retention.md)"
        ),
        Shredded::NotFound => bail!("the run is gone"),
    }
    Ok(())
}

/// What is said of payloads that are left plain in a run that was shredded.
pub(super) fn still_plain(run: &RunRecord, payloads: u64) -> Option<String> {
    (payloads > 0).then(|| {
        format!(
            "payloads from before encryption was switched on, which were never sealed: {payloads}; whoever has the database \
             reads them until its retention drops them, {} days after its end",
            run.retention.days
        )
    })
}
