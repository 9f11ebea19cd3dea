//! `dalsegno runs purge`: deletes runs that ended long ago from the store.

use anyhow::Context as _;
use dalsegno_core::text::counted;
use dalsegno_model::{EndedRun, PurgeScope, Store};

use crate::config::{Justification, PurgeArgs};
use crate::output::print_line;
use crate::purge::{Purger, Totals};

/// Purges the runs that ended before the given time, or only counts them.
///
/// # Errors
///
/// The store is unavailable, or the database role may not delete runs. What was done before stays done, and the same
/// command continues.
pub async fn run(args: PurgeArgs) -> anyhow::Result<()> {
    let PurgeArgs { store, before, namespace, dry_run, justification } = args;
    let Justification { reason, by } = justification;
    let scope = PurgeScope { before, namespace };
    if dry_run {
        let store = store.open_read_only().await?;
        let runs = count(store.as_ref(), &scope).await.context("listing the runs")?;
        print_line!("would be purged: {}", counted(runs, "run", "runs"));
        return Ok(());
    }
    let store = store.open_beside().await?;
    let purger = Purger { store: store.as_ref(), scope, actor: by, reason };
    let Totals { purged, rows, waiting } = purger.run().await.context("purging the runs")?;
    print_line!("{} purged: {}", counted(purged, "run was", "runs were"), counted(rows, "row", "rows"));
    if waiting > 0 {
        print_line!(
            "{} for the next anchor, which names the purge: run the command again after it",
            counted(waiting, "run waits", "runs wait")
        );
    }
    Ok(())
}

async fn count(store: &dyn Store, scope: &PurgeScope) -> dalsegno_model::Result<usize> {
    let (mut after, mut runs) = (EndedRun::FIRST, 0);
    loop {
        let page = store.runs_to_purge(scope, after).await?;
        let Some(last) = page.last() else { return Ok(runs) };
        after = *last;
        runs += page.len();
    }
}
