//! Purging: deletes runs that ended more than a number of days ago from the store. Off unless an administrator sets the
//! number.

use std::sync::Arc;
use std::time::Duration;

use dalsegno_model::{PurgeScope, Result, Store, audit};
use jiff::{SignedDuration, Timestamp};
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use crate::log::error_chain;
use crate::metrics::Metrics;
use crate::purge::{Purger, Totals};

/// Interval between two passes. A run takes two of them, with an anchor in between.
const INTERVAL: Duration = Duration::from_secs(3600);

/// Purges runs that ended more than `days` ago, until `stop`. If the store is unavailable, the next pass continues.
pub async fn run(store: Arc<dyn Store>, days: u16, metrics: Metrics, stop: CancellationToken) {
    let mut ticks = interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while stop.run_until_cancelled(ticks.tick()).await.is_some() {
        match stop.run_until_cancelled(pass(store.as_ref(), days, &metrics)).await {
            Some(Ok(Totals { purged: 0, .. })) => {}
            Some(Ok(Totals { purged, rows, .. })) => {
                tracing::info!(runs = purged, rows, "runs that ended long ago were purged");
            }
            Some(Err(error)) => {
                metrics.count_store_error("purge", &error);
                tracing::warn!(error = error_chain(&error), "runs that ended long ago could not be purged");
            }
            None => return,
        }
    }
}

async fn pass(store: &dyn Store, days: u16, metrics: &Metrics) -> Result<Totals> {
    let before = Timestamp::now() - SignedDuration::from_hours(24 * i64::from(days));
    let purger = Purger {
        store,
        scope: PurgeScope { before, namespace: None },
        actor: audit::actor::OPERATOR.to_owned(),
        reason: format!("it ended more than {days} days ago (retention.purgeDays)"),
    };
    let totals = purger.run().await?;
    metrics.count_purged(totals.purged, totals.rows);
    Ok(totals)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a panic fails the test")]

    use dalsegno_model::{RequestedBy, Retention, RunId};
    use dalsegno_proof::{Anchor, Signer};

    use super::*;
    use crate::test_context::{Disk, create_worked_run, render_metrics};

    async fn anchor(store: &dyn Store) {
        let moved = store.heads_to_anchor(RunId::nil()).await.unwrap();
        let signer = Signer::load(store, None).await.unwrap();
        let anchor = Anchor::next(&moved, store.id().await.unwrap(), Timestamp::now(), &signer).unwrap();
        assert!(store.put_anchor(anchor.stored()).await.unwrap());
    }

    #[tokio::test]
    async fn runs_that_ended_long_ago_are_purged_by_two_passes_and_the_others_stay() {
        let disk = Disk::new();
        let store = disk.store().await;
        let mut runs = Vec::new();
        for name in ["old", "young"] {
            let run = create_worked_run(&*store, name, 3).await;
            store.set_retention(run, &Retention { days: 0, ..Retention::default() }).await.unwrap();
            store.mark_deleted(name, &RequestedBy::default()).await.unwrap();
            while !store.expire(run, 500).await.unwrap().done {}
            runs.push(run);
        }
        disk.execute("UPDATE runs SET over_at = over_at - 8 * 86400000 WHERE name = 'old'").await;
        let metrics = Metrics::default();
        let first = pass(&*store, 7, &metrics).await.unwrap();
        assert_eq!(first, Totals { purged: 0, rows: 0, waiting: 1 });
        anchor(&*store).await;
        let second = pass(&*store, 7, &metrics).await.unwrap();
        assert_eq!((second.purged, second.waiting), (1, 0));
        let mut left = Vec::new();
        for run in runs {
            left.extend(store.get_run(run).await.unwrap().map(|run| run.name));
        }
        assert_eq!(left, ["young"]);
        let text = render_metrics(&metrics);
        assert!(text.contains("purged_runs_total 1\n"), "{text}");
        assert!(text.contains(&format!("purged_rows_total {}\n", second.rows)), "{text}");
    }
}
