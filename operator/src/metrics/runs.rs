//! Metrics of runs: how many there are in each state, and how long recoveries take.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dalsegno_crds::WaitKind;
use dalsegno_model::{AttemptState, RunRecord};
use jiff::Timestamp;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use crate::mutex::lock;

/// The metrics of runs. Clones share their values.
#[derive(Clone)]
pub struct RunMetrics {
    runs: Family<StateLabel, Gauge>,
    waiting: Family<WaitLabel, Gauge>,
    oldest_wait: Gauge<f64, AtomicU64>,
    /// The states that `runs` has now.
    states: Arc<Mutex<Vec<StateLabel>>>,
    recovery_seconds: Family<StageLabel, Histogram, fn() -> Histogram>,
    /// The recoveries under way, by UID of the AgentRun.
    recoveries: Arc<Mutex<HashMap<String, Recovery>>>,
}

/// `status.summary` and `status.reason` of runs.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet, serde::Deserialize)]
pub struct StateLabel {
    /// The summary.
    pub summary: String,
    /// The reason.
    pub reason: String,
}

/// What a run waits for.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WaitLabel {
    kind: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StageLabel {
    stage: &'static str,
}

/// A stage of a recovery, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    /// The next attempt is reserved.
    Reserved,
    /// Its pod exists.
    Created,
    /// Its worker is attached.
    Attached,
    /// Its worker has committed.
    Committed,
}

/// How far the recovery of a run was when it was last looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Recovery {
    attempt: i32,
    stage: Stage,
}

impl Default for RunMetrics {
    fn default() -> Self {
        // 10 ms to 5,243 s.
        let histogram: fn() -> Histogram = || Histogram::new(exponential_buckets(0.01, 2.0, 20));
        Self {
            runs: Family::default(),
            waiting: Family::default(),
            oldest_wait: Gauge::default(),
            states: Arc::default(),
            recovery_seconds: Family::new_with_constructor(histogram),
            recoveries: Arc::default(),
        }
    }
}

impl RunMetrics {
    /// Registers the metrics.
    pub fn register(&self, registry: &mut Registry) {
        registry.register("runs", "AgentRuns, by summary and reason of their status", self.runs.clone());
        for kind in WaitKind::ALL {
            drop(self.waiting.get_or_create(&WaitLabel { kind: kind.as_str() }));
        }
        registry.register("waiting", "Open waits of parked runs, by kind", self.waiting.clone());
        registry.register(
            "oldest_wait_seconds",
            "Age of the oldest open wait of a parked run; 0 if there is none",
            self.oldest_wait.clone(),
        );
        registry.register(
            "recovery_seconds",
            "Time that each stage of a recovery took: fence, create, attach, commit",
            self.recovery_seconds.clone(),
        );
    }

    /// Sets the number of runs in each state, and removes the series of states that no run has any more.
    pub fn set_runs(&self, counts: HashMap<StateLabel, i64>) {
        let mut states = lock(&self.states);
        for gone in states.iter().filter(|state| !counts.contains_key(state)) {
            self.runs.remove(gone);
        }
        for (state, count) in &counts {
            self.runs.get_or_create(state).set(*count);
        }
        *states = counts.into_keys().collect();
    }

    /// Sets the number of open waits of parked runs of each kind, and the age of the oldest.
    pub fn set_waits(&self, counts: &HashMap<WaitKind, i64>, oldest: Duration) {
        for kind in WaitKind::ALL {
            let count = counts.get(kind).copied().unwrap_or_default();
            self.waiting.get_or_create(&WaitLabel { kind: kind.as_str() }).set(count);
        }
        self.oldest_wait.set(oldest.as_secs_f64());
    }

    /// Records the time from when the operator saw the end of a worker until the store had fenced it.
    pub fn observe_fence(&self, took: Duration) {
        self.recovery_seconds.get_or_create(&StageLabel { stage: "fence" }).observe(took.as_secs_f64());
    }

    /// Records the stages that a run's recovery has passed since it was last looked at. What was passed before the first
    /// look, as before a restart of the operator, is not recorded. The time that a run was suspended or parked is not recorded
    /// either.
    pub fn observe_recovery(&self, run: &RunRecord) {
        let attempt = run.attempt.number;
        let stage = stage_of(run);
        let mut recoveries = lock(&self.recoveries);
        let is_over = stage == Stage::Committed || run.finish.is_some() || attempt == 1;
        let before = recoveries.remove(&run.object_uid).filter(|it| it.attempt == attempt);
        if !is_over {
            let unmeasured =
                if run.suspend.is_some() || run.park.is_some() { Stage::Created } else { Stage::Reserved };
            let passed = before.map_or(stage, |it| it.stage.max(stage)).max(unmeasured);
            recoveries.insert(run.object_uid.clone(), Recovery { attempt, stage: passed });
        }
        drop(recoveries);
        // Without an earlier look at this attempt, only an attempt that is still reserved has passed no stage unseen.
        let Some(before) = before else { return };
        let times = [
            (Stage::Created, "create", run.past.first().and_then(|it| it.ended_at), run.attempt.created_at),
            (Stage::Attached, "attach", run.attempt.created_at, run.attempt.attached_at),
            (Stage::Committed, "commit", run.attempt.attached_at, run.head.as_ref().map(|head| head.at)),
        ];
        for (passed, name, from, to) in times {
            if before.stage < passed && passed <= stage {
                self.observe(name, from, to);
            }
        }
    }

    /// Forgets the recoveries of all AgentRuns but these.
    pub fn remove_all_but(&self, uids: &HashSet<&str>) {
        lock(&self.recoveries).retain(|uid, _| uids.contains(uid.as_str()));
    }

    fn observe(&self, stage: &'static str, from: Option<Timestamp>, to: Option<Timestamp>) {
        if let (Some(from), Some(to)) = (from, to) {
            let seconds = to.duration_since(from).as_secs_f64().max(0.0);
            self.recovery_seconds.get_or_create(&StageLabel { stage }).observe(seconds);
        }
    }
}

fn stage_of(run: &RunRecord) -> Stage {
    let has_committed = run.head.as_ref().is_some_and(|head| head.attempt == run.attempt.number);
    match run.attempt.state {
        _ if has_committed => Stage::Committed,
        AttemptState::Reserved => Stage::Reserved,
        AttemptState::Created => Stage::Created,
        AttemptState::Attached | AttemptState::Ended => Stage::Attached,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a panic fails the test")]

    use std::sync::Arc;

    use dalsegno_model::{Cause, Class, Ending, NextStep, PodRecord, RequestedBy, Store};
    use dalsegno_store::sqlite::Sqlite;

    use super::*;
    use crate::test_context::{commit_turns, create_worked_run};

    /// How many times each stage was recorded.
    fn counts(metrics: &RunMetrics) -> [u64; 3] {
        let mut registry = Registry::default();
        metrics.register(&mut registry);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        ["create", "attach", "commit"].map(|stage| {
            let prefix = format!("recovery_seconds_count{{stage=\"{stage}\"}} ");
            text.lines().find_map(|line| line.strip_prefix(&prefix)?.parse().ok()).unwrap_or_default()
        })
    }

    #[tokio::test]
    async fn each_stage_of_a_recovery_is_recorded_once_and_none_that_was_not_seen_to_begin() {
        let store: Arc<dyn Store> = Arc::new(Sqlite::memory().await.unwrap());
        let run = create_worked_run(&*store, "nightly", 2).await;
        let (metrics, restarted) = (RunMetrics::default(), RunMetrics::default());
        let row = async || store.get_run(run).await.unwrap().unwrap();
        metrics.observe_recovery(&row().await);
        assert_eq!(counts(&metrics), [0, 0, 0], "the first attempt is no recovery");

        let (cause, message) = (Cause::Evicted, String::new());
        let ending =
            Ending { attempt: 1, cause, class: Class::Disruption, exit_code: None, message, ran: None };
        store.end_attempt(run, &ending, &NextStep::Reserve).await.unwrap();
        metrics.observe_recovery(&row().await);
        let pod = PodRecord {
            uid: "second".into(),
            name: "nightly-2".into(),
            revision: "1".into(),
            identity: row().await.past[0].identity.clone(),
        };
        store.record_pod(run, 2, &pod).await.unwrap();
        metrics.observe_recovery(&row().await);
        metrics.observe_recovery(&row().await);
        assert_eq!(counts(&metrics), [1, 0, 0]);
        restarted.observe_recovery(&row().await);
        // The third turn is the first one of this attempt.
        commit_turns(&*store, run, "second", 0).await;
        metrics.observe_recovery(&row().await);
        assert_eq!(counts(&metrics), [1, 1, 0]);
        restarted.observe_recovery(&row().await);
        assert_eq!(counts(&restarted), [0, 1, 0], "the pod was there before it looked");
        assert_eq!(lock(&metrics.recoveries).len(), 1);
        metrics.remove_all_but(&HashSet::new());
        assert!(lock(&metrics.recoveries).is_empty());
    }

    #[tokio::test]
    async fn the_time_that_a_run_was_suspended_is_no_part_of_its_recovery() {
        let store: Arc<dyn Store> = Arc::new(Sqlite::memory().await.unwrap());
        let run = create_worked_run(&*store, "nightly", 2).await;
        let metrics = RunMetrics::default();
        let row = async || store.get_run(run).await.unwrap().unwrap();
        let by = RequestedBy::default();
        store.suspend(run, &by).await.unwrap();
        let (cause, message) = (Cause::Suspended, String::new());
        let ending = Ending { attempt: 1, cause, class: Class::Neutral, exit_code: None, message, ran: None };
        store.end_attempt(run, &ending, &NextStep::Reserve).await.unwrap();
        metrics.observe_recovery(&row().await);
        store.resume(run, &by).await.unwrap();
        metrics.observe_recovery(&row().await);
        let pod = PodRecord {
            uid: "second".into(),
            name: "nightly-2".into(),
            revision: "1".into(),
            identity: row().await.past[0].identity.clone(),
        };
        store.record_pod(run, 2, &pod).await.unwrap();
        metrics.observe_recovery(&row().await);
        assert_eq!(counts(&metrics), [0, 0, 0]);
    }
}
