//! Purging, as the command and the operator's task do it: all runs of a scope, in small steps.

use std::time::Duration;

use dalsegno_model::{EndedRun, Purge, PurgeScope, PurgeStep, Result, Store};

/// Rows per step.
const ROWS: u32 = 2_000;
/// Pause after a step that deleted rows, for workers' commits.
const PAUSE: Duration = Duration::from_millis(20);

/// Purges the runs of a scope.
pub struct Purger<'s> {
    /// The store.
    pub store: &'s dyn Store,
    /// Which runs.
    pub scope: PurgeScope,
    /// Who purges, for the audit.
    pub actor: String,
    /// Why, for the audit.
    pub reason: String,
}

/// What was done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Runs that are gone.
    pub purged: u64,
    /// Rows that were deleted.
    pub rows: u64,
    /// Runs whose purge no anchor names yet. They are deleted by a later pass.
    pub waiting: u64,
}

impl Purger<'_> {
    /// One pass over all runs of the scope, the earliest end first.
    ///
    /// # Errors
    ///
    /// The store is unavailable, or its role may not delete runs. A later pass continues.
    pub async fn run(&self) -> Result<Totals> {
        let (mut after, mut totals) = (EndedRun::FIRST, Totals::default());
        loop {
            let page = self.store.runs_to_purge(&self.scope, after).await?;
            let Some(last) = page.last() else { return Ok(totals) };
            after = *last;
            for EndedRun { run, .. } in page {
                let purge = Purge {
                    run,
                    before: self.scope.before,
                    actor: self.actor.clone(),
                    reason: self.reason.clone(),
                };
                self.purge(&purge, &mut totals).await?;
            }
        }
    }

    async fn purge(&self, purge: &Purge, totals: &mut Totals) -> Result<()> {
        loop {
            match self.store.purge(purge, ROWS).await? {
                PurgeStep::Kept => return Ok(()),
                PurgeStep::Recorded | PurgeStep::NotAnchored => {
                    totals.waiting += 1;
                    return Ok(());
                }
                PurgeStep::Deleted { rows, done } => {
                    totals.rows += rows;
                    if done {
                        totals.purged += 1;
                        return Ok(());
                    }
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }
}
