//! Retention: drops payloads of runs that are past their retention, rows before the last boundaries that a run keeps, and
//! templates that no run needs. It works in small steps, so that workers' commits are not delayed.

use std::sync::Arc;
use std::time::Duration;

use dalsegno_model::{Dropped, Result, RunId, Store};
use jiff::Timestamp;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use crate::log::error_chain;
use crate::metrics::Metrics;

/// Interval between two rounds. Retention is in days, and each round asks for many runs.
const INTERVAL: Duration = Duration::from_secs(60);
/// Rows per step.
const ROWS: u32 = 500;
/// Most steps per round in which templates are dropped.
const TEMPLATE_STEPS: u32 = 20;
/// Pause between two steps, for workers' commits.
const PAUSE: Duration = Duration::from_millis(100);

/// Drops until `stop`. If the store is unavailable, the next round tries again.
pub async fn run(store: Arc<dyn Store>, metrics: Metrics, stop: CancellationToken) {
    let mut ticks = interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while stop.run_until_cancelled(ticks.tick()).await.is_some() {
        if stop.run_until_cancelled(run_round(store.as_ref(), &metrics)).await.is_none() {
            return;
        }
    }
}

async fn run_round(store: &dyn Store, metrics: &Metrics) {
    let mut is_complete = true;
    for what in [Obsolete::Expired, Obsolete::BeforeLast] {
        if let Err(error) = drop_all(store, what, metrics).await {
            is_complete = false;
            tracing::warn!(error = error_chain(&error), what = what.as_str(), "the runs could not be listed");
        }
    }
    if let Err(error) = drop_templates(store).await {
        is_complete = false;
        tracing::warn!(error = error_chain(&error), "unused templates could not be dropped");
    }
    if is_complete {
        metrics.retention_round_ended(Timestamp::now());
    }
}

/// Data of a run that is no longer kept.
#[derive(Clone, Copy, Debug)]
enum Obsolete {
    /// The payloads of a run past its retention.
    Expired,
    /// The rows before the last boundaries, of a run that keeps only those.
    BeforeLast,
}

impl Obsolete {
    fn as_str(self) -> &'static str {
        match self {
            Self::Expired => "payloads past their retention",
            Self::BeforeLast => "rows before the last boundaries",
        }
    }

    /// Runs that have such data, in order, after this one.
    async fn runs(self, store: &dyn Store, after: RunId) -> Result<Vec<RunId>> {
        match self {
            Self::Expired => store.runs_to_expire(after).await,
            Self::BeforeLast => store.runs_to_compact(after).await,
        }
    }

    /// Drops and counts the next rows of a run. Returns whether nothing is left.
    async fn drop_next(self, store: &dyn Store, run: RunId, metrics: &Metrics) -> Result<bool> {
        match self {
            Self::Expired => {
                let Dropped { run, rows, done } = store.expire(run, ROWS).await?;
                let Some(run) = run else { return Ok(true) };
                metrics.count_expired_rows(rows, done);
                if done {
                    tracing::info!(%run, "the payloads are past their retention and were dropped");
                }
                Ok(done)
            }
            Self::BeforeLast => {
                let Dropped { run, rows, done } = store.compact(run, ROWS).await?;
                metrics.count_old_rows(rows);
                Ok(run.is_none() || done)
            }
        }
    }
}

/// Drops such data of all runs. A run that fails stops no other.
async fn drop_all(store: &dyn Store, what: Obsolete, metrics: &Metrics) -> Result<()> {
    let mut after = RunId::nil();
    loop {
        let runs = what.runs(store, after).await?;
        let Some(last) = runs.last() else { return Ok(()) };
        after = *last;
        for run in runs {
            if let Err(error) = drop_of(store, what, run, metrics).await {
                metrics.count_store_error("retention", &error);
                tracing::warn!(%run, error = error_chain(&error), what = what.as_str(), "data could not be dropped");
            }
        }
    }
}

async fn drop_of(store: &dyn Store, what: Obsolete, run: RunId, metrics: &Metrics) -> Result<()> {
    while !what.drop_next(store, run, metrics).await? {
        tokio::time::sleep(PAUSE).await;
    }
    Ok(())
}

/// Drops templates that no run needs. The number of steps is limited, so that a client that creates templates as fast as
/// they are dropped does not block the rest of retention. The next round continues.
async fn drop_templates(store: &dyn Store) -> Result<()> {
    for _ in 0..TEMPLATE_STEPS {
        if store.delete_unused_revisions(ROWS).await? == 0 {
            break;
        }
        tokio::time::sleep(PAUSE).await;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a panic fails the test")]

    use dalsegno_model::{Recorded, RequestedBy, Retention, Template};

    use super::*;
    use crate::test_context::{Disk, create_run, create_worked_run, render_metrics};

    /// A run that is over and past its retention.
    async fn over(store: &dyn Store, name: &str) -> RunId {
        let run = create_run(store, name).await;
        store.set_retention(run, &Retention { days: 0, ..Retention::default() }).await.unwrap();
        store.mark_deleted(name, &RequestedBy::default()).await.unwrap();
        run
    }

    /// A run of three turns that keeps its last boundary, and is over.
    async fn keeper(store: &dyn Store, name: &str) -> RunId {
        let run = create_worked_run(store, name, 3).await;
        store.set_retention(run, &Retention { keep_last: Some(1), ..Retention::default() }).await.unwrap();
        store.mark_deleted(name, &RequestedBy::default()).await.unwrap();
        run
    }

    #[tokio::test]
    async fn a_run_whose_payloads_cannot_be_dropped_stops_no_other_run() {
        let disk = Disk::new();
        let store = disk.store().await;
        let (first, _) = (over(&*store, "first").await, over(&*store, "second").await);
        disk.execute(
            "CREATE TRIGGER heavy BEFORE UPDATE ON runs WHEN NEW.name = 'first' \
             BEGIN SELECT RAISE(ABORT, 'canceling statement due to statement timeout'); END",
        )
        .await;
        drop_all(&*store, Obsolete::Expired, &Metrics::default()).await.unwrap();
        assert_eq!(store.runs_to_expire(RunId::nil()).await.unwrap(), [first]);
    }

    #[tokio::test]
    async fn damage_that_prevents_dropping_is_counted_and_stops_no_other_run() {
        let disk = Disk::new();
        let store = disk.store().await;
        let (first, second) = (keeper(&*store, "first").await, keeper(&*store, "second").await);
        disk.execute(
            "UPDATE boundaries SET ops = substr(ops, 1, length(ops) - 1) \
             WHERE turn = 2 AND run = (SELECT id FROM runs WHERE name = 'first')",
        )
        .await;
        let metrics = Metrics::default();
        drop_all(&*store, Obsolete::BeforeLast, &metrics).await.unwrap();
        let text = render_metrics(&metrics);
        assert!(text.contains("damage_total{place=\"retention\"} 1\n"), "{text}");
        let dropped = async |run| store.get_run(run).await.unwrap().unwrap().dropped_to.map(|to| to.turn);
        assert_eq!((dropped(first).await, dropped(second).await), (None, Some(2)));
    }

    #[tokio::test]
    async fn unused_templates_are_dropped_step_by_step_and_the_others_stay() {
        let disk = Disk::new();
        let store = disk.store().await;
        let (lives, over) = (create_run(&*store, "lives").await, create_run(&*store, "over").await);
        for (run, template) in [(lives, "needed"), (over, "a"), (over, "b"), (over, "c")] {
            let document = "x".repeat(5 << 20);
            let template = Template { hash: template.into(), document };
            let stored = store.put_revision(run, 1, &template).await.unwrap();
            assert!(matches!(stored, Recorded::Done(_)), "{stored:?}");
        }
        store.mark_deleted("over", &RequestedBy::default()).await.unwrap();
        drop_templates(&*store).await.unwrap();
        let mut left = Vec::new();
        for template in ["needed", "a", "b", "c"] {
            left.extend(store.get_revision(template).await.unwrap().map(|_| template));
        }
        assert_eq!(left, ["needed"]);
    }

    #[tokio::test]
    async fn templates_that_reappear_as_fast_as_they_are_dropped_do_not_block_retention() {
        let disk = Disk::new();
        let store = disk.store().await;
        let over = create_run(&*store, "over").await;
        let template = Template { hash: "a".into(), document: "{}".into() };
        store.put_revision(over, 1, &template).await.unwrap();
        store.mark_deleted("over", &RequestedBy::default()).await.unwrap();
        disk.execute(
            "CREATE TRIGGER churn AFTER DELETE ON revisions \
             BEGIN INSERT INTO revisions VALUES (OLD.hash || 'a', OLD.document, OLD.created_at); END",
        )
        .await;
        let dropping = tokio::time::timeout(Duration::from_secs(20), drop_templates(&*store)).await;
        dropping.expect("it ends").unwrap();
        assert!(store.delete_unused_revisions(ROWS).await.unwrap() > 0, "the next round continues");
    }
}
