//! What is past its retention is dropped, and so is what stands before the last boundaries that a run keeps, while the
//! operator works: a step at a time, so that no step holds the store up.

use std::sync::Arc;
use std::time::Duration;

use dalsegno_store::{Dropped, Result, RunId, Store};
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use crate::telemetry::{Metrics, chain};

/// How often it is looked whether anything is: neither days nor last boundaries need haste, and each look asks of many runs.
const PERIOD: Duration = Duration::from_secs(60);
/// Rows of one step.
const ROWS: u32 = 500;
/// Between two steps, so that workers' commits come in between.
const PAUSE: Duration = Duration::from_millis(100);

/// Looks and drops until told to stop. A store that is away is asked again the next time.
pub async fn follow(store: Arc<dyn Store>, metrics: Metrics, stop: CancellationToken) {
    let mut ticks = interval(PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while stop.run_until_cancelled(ticks.tick()).await.is_some() {
        let both = async {
            if let Err(error) = drop_all(store.as_ref(), &metrics).await {
                tracing::warn!(error = chain(&error), "what is past its retention could not be dropped");
            }
            if let Err(error) = drop_old(store.as_ref(), &metrics).await {
                tracing::warn!(
                    error = chain(&error),
                    "no run can be asked for what stands before its last boundaries"
                );
            }
        };
        if stop.run_until_cancelled(both).await.is_none() {
            return;
        }
    }
}

/// Of all runs that keep no more than their last boundaries. One of which nothing can be dropped stops no other.
async fn drop_old(store: &dyn Store, metrics: &Metrics) -> Result<()> {
    let mut after = RunId::nil();
    loop {
        let runs = store.keepers(after).await?;
        let Some(last) = runs.last() else { return Ok(()) };
        after = *last;
        for run in runs {
            if let Err(error) = drop_old_of(store, run, metrics).await {
                tracing::warn!(%run, error = chain(&error), "what stands before its last boundaries was not dropped");
            }
        }
    }
}

async fn drop_old_of(store: &dyn Store, run: RunId, metrics: &Metrics) -> Result<()> {
    loop {
        let Dropped { run, rows, done } = store.drop_old(run, ROWS).await?;
        metrics.dropped_old(rows);
        if run.is_none() || done {
            return Ok(());
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn drop_all(store: &dyn Store, metrics: &Metrics) -> Result<()> {
    loop {
        let Dropped { run, rows, done } = store.drop_expired(ROWS).await?;
        let Some(run) = run else { return Ok(()) };
        metrics.dropped(rows, done);
        if done {
            tracing::info!(%run, "what its worker wrote is past its retention, and dropped");
        }
        tokio::time::sleep(PAUSE).await;
    }
}
