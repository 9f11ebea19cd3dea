//! What is past its retention is dropped, and so are what stands before the last boundaries that a run keeps and templates
//! that no run needs, while the operator works: a step at a time, so that no step holds the store up.

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
/// Steps in which templates are dropped at one look.
const TEMPLATE_STEPS: u32 = 20;
/// Between two steps, so that workers' commits come in between.
const PAUSE: Duration = Duration::from_millis(100);

/// Looks and drops until told to stop. A store that is away is asked again the next time.
pub async fn follow(store: Arc<dyn Store>, metrics: Metrics, stop: CancellationToken) {
    let mut ticks = interval(PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while stop.run_until_cancelled(ticks.tick()).await.is_some() {
        let all = async {
            if let Err(error) = drop_expired(store.as_ref(), &metrics).await {
                tracing::warn!(error = chain(&error), "no run can be asked for what is past its retention");
            }
            if let Err(error) = drop_old(store.as_ref(), &metrics).await {
                tracing::warn!(
                    error = chain(&error),
                    "no run can be asked for what stands before its last boundaries"
                );
            }
            if let Err(error) = drop_templates(store.as_ref()).await {
                tracing::warn!(error = chain(&error), "templates that no run needs were not dropped");
            }
        };
        if stop.run_until_cancelled(all).await.is_none() {
            return;
        }
    }
}

/// Of all runs that are past their retention. One of which nothing can be dropped stops no other.
async fn drop_expired(store: &dyn Store, metrics: &Metrics) -> Result<()> {
    let mut after = RunId::nil();
    loop {
        let runs = store.expired(after).await?;
        let Some(last) = runs.last() else { return Ok(()) };
        after = *last;
        for run in runs {
            if let Err(error) = drop_expired_of(store, run, metrics).await {
                metrics.failed("retention", &error);
                tracing::warn!(%run, error = chain(&error), "what is past its retention was not dropped");
            }
        }
    }
}

async fn drop_expired_of(store: &dyn Store, run: RunId, metrics: &Metrics) -> Result<()> {
    loop {
        let Dropped { run, rows, done } = store.drop_expired(run, ROWS).await?;
        let Some(run) = run else { return Ok(()) };
        metrics.dropped(rows, done);
        if done {
            tracing::info!(%run, "what its worker wrote is past its retention, and dropped");
            return Ok(());
        }
        tokio::time::sleep(PAUSE).await;
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
                metrics.failed("retention", &error);
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

/// Templates that no run needs any more. What is left after so many steps has the next look: whoever makes templates as fast
/// as they are dropped keeps nothing else from being dropped.
async fn drop_templates(store: &dyn Store) -> Result<()> {
    for _ in 0..TEMPLATE_STEPS {
        if store.drop_revisions(ROWS).await? == 0 {
            break;
        }
        tokio::time::sleep(PAUSE).await;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a case that cannot go on has failed")]

    use dalsegno_store::{AskedBy, Recorded, Retention};

    use super::*;
    use crate::world::{self, Disk, begun, worked};

    /// A run that is over, and past its retention.
    async fn over(store: &dyn Store, name: &str) -> RunId {
        let run = begun(store, name).await;
        store.set_retention(run, &Retention { days: 0, ..Retention::default() }).await.unwrap();
        store.mark_deleted(name, &AskedBy::default()).await.unwrap();
        run
    }

    /// A run of three turns that keeps the last one, and is over.
    async fn keeper(store: &dyn Store, name: &str) -> RunId {
        let run = worked(store, name, 3).await;
        store.set_retention(run, &Retention { keep_last: Some(1), ..Retention::default() }).await.unwrap();
        store.mark_deleted(name, &AskedBy::default()).await.unwrap();
        run
    }

    #[tokio::test]
    async fn a_run_of_which_nothing_can_be_dropped_stops_no_other() {
        let disk = Disk::new();
        let store = disk.store().await;
        let (first, _) = (over(&*store, "first").await, over(&*store, "second").await);
        disk.execute(
            "CREATE TRIGGER heavy BEFORE UPDATE ON runs WHEN NEW.name = 'first' \
             BEGIN SELECT RAISE(ABORT, 'canceling statement due to statement timeout'); END",
        )
        .await;
        drop_expired(&*store, &Metrics::default()).await.unwrap();
        assert_eq!(store.expired(RunId::nil()).await.unwrap(), [first]);
    }

    #[tokio::test]
    async fn damage_that_keeps_a_run_from_being_dropped_is_counted_and_stops_no_other() {
        let disk = Disk::new();
        let store = disk.store().await;
        let (first, second) = (keeper(&*store, "first").await, keeper(&*store, "second").await);
        disk.execute(
            "UPDATE boundaries SET ops = substr(ops, 1, length(ops) - 1) \
             WHERE turn = 2 AND run = (SELECT id FROM runs WHERE name = 'first')",
        )
        .await;
        let metrics = Metrics::default();
        drop_old(&*store, &metrics).await.unwrap();
        let told = world::metrics(&metrics);
        assert!(told.contains("damage_total{place=\"retention\"} 1\n"), "{told}");
        let dropped = async |run| store.get_run(run).await.unwrap().unwrap().dropped_to.map(|to| to.turn);
        assert_eq!((dropped(first).await, dropped(second).await), (None, Some(2)));
    }

    #[tokio::test]
    async fn templates_that_no_run_needs_are_dropped_step_by_step_and_the_others_stay() {
        let disk = Disk::new();
        let store = disk.store().await;
        let (lives, over) = (begun(&*store, "lives").await, begun(&*store, "over").await);
        for (run, template) in [(lives, "needed"), (over, "a"), (over, "b"), (over, "c")] {
            let document = "x".repeat(5 << 20);
            let kept = store.put_revision(run, 1, template, &document).await.unwrap();
            assert!(matches!(kept, Recorded::Done(_)), "{kept:?}");
        }
        store.mark_deleted("over", &AskedBy::default()).await.unwrap();
        drop_templates(&*store).await.unwrap();
        let mut left = Vec::new();
        for template in ["needed", "a", "b", "c"] {
            left.extend(store.get_revision(template).await.unwrap().map(|_| template));
        }
        assert_eq!(left, ["needed"]);
    }

    #[tokio::test]
    async fn whoever_makes_templates_as_fast_as_they_are_dropped_keeps_nothing_else_from_being_dropped() {
        let disk = Disk::new();
        let store = disk.store().await;
        let over = begun(&*store, "over").await;
        store.put_revision(over, 1, "a", "{}").await.unwrap();
        store.mark_deleted("over", &AskedBy::default()).await.unwrap();
        disk.execute(
            "CREATE TRIGGER churn AFTER DELETE ON revisions \
             BEGIN INSERT INTO revisions VALUES (OLD.hash || 'a', OLD.document, OLD.created_at); END",
        )
        .await;
        let dropping = tokio::time::timeout(Duration::from_secs(20), drop_templates(&*store)).await;
        dropping.expect("it comes to an end").unwrap();
        assert!(store.drop_revisions(ROWS).await.unwrap() > 0, "the next look goes on");
    }
}
