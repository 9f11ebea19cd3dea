//! Counts the AgentRuns by the summary and reason of their status, for the metric `dalsegno_runs`.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use dalsegno_crds::{WaitKind, WaitingStatus};
use jiff::Timestamp;
use kube::runtime::reflector;
use serde::Deserialize;

use crate::cache::raw_object::RawRun;
use crate::cache::watch_health::WatchHealth;
use crate::controller::queue_health::QueueHealth;
use crate::metrics::{Metrics, StateLabel};

/// Interval between two counts. Each reads the status of every run in the cache.
const INTERVAL: Duration = Duration::from_secs(15);

/// The part of an AgentRun that is counted.
#[derive(Deserialize)]
struct WithState {
    status: Option<StateLabel>,
}

/// The part of an AgentRun that says what it waits for.
#[derive(Deserialize)]
struct WithWaits {
    status: Option<WaitingPart>,
}

#[derive(Deserialize)]
struct WaitingPart {
    waiting: Option<WaitingStatus>,
}

/// The open waits that the statuses of parked runs show.
#[derive(Default)]
struct Waits {
    counts: HashMap<WaitKind, i64>,
    oldest: Option<Timestamp>,
}

impl Waits {
    fn of<'a>(runs: impl Iterator<Item = &'a RawRun>) -> Self {
        let mut found = Self::default();
        for run in runs {
            let waiting = run.part::<WithWaits>().and_then(|run| run.status?.waiting);
            for wait in waiting.into_iter().flat_map(|it| it.waits) {
                *found.counts.entry(wait.kind).or_default() += 1;
                found.oldest = found.oldest.into_iter().chain(wait.since.map(|it| it.0)).min();
            }
        }
        found
    }

    /// The age of the oldest wait. The times are by the store's clock, which may be a little ahead.
    fn age(&self, now: Timestamp) -> Duration {
        self.oldest.map_or(Duration::ZERO, |at| now.duration_since(at).try_into().unwrap_or_default())
    }
}

/// What ages while the operator waits for something.
pub struct Ages {
    /// The watches of the API server.
    pub watches: WatchHealth,
    /// The queue of reconciles.
    pub queue: QueueHealth,
}

/// Counts periodically until cancelled, and shows how long ago each watch was heard and how long runs have waited.
pub async fn run(runs: reflector::Store<RawRun>, metrics: Metrics, ages: Ages) {
    let mut ticks = tokio::time::interval(INTERVAL);
    loop {
        ticks.tick().await;
        metrics.runs.set_runs(count(runs.state().iter().map(AsRef::as_ref)));
        let waits = Waits::of(runs.state().iter().map(AsRef::as_ref));
        metrics.runs.set_waits(&waits.counts, waits.age(Timestamp::now()));
        let now = Instant::now();
        for (kind, age) in ages.watches.ages(now) {
            metrics.set_watch_age(&kind, age);
        }
        metrics.set_queue_oldest(ages.queue.oldest(now));
    }
}

/// A run without a status, or one that cannot be read, counts as `Unknown`.
fn count<'a>(runs: impl Iterator<Item = &'a RawRun>) -> HashMap<StateLabel, i64> {
    let mut counts = HashMap::new();
    for run in runs {
        let state = run.part::<WithState>().and_then(|run| run.status);
        let unknown = || StateLabel { summary: "Unknown".to_owned(), reason: "Unknown".to_owned() };
        *counts.entry(state.unwrap_or_else(unknown)).or_default() += 1;
    }
    counts
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a panic fails the test")]

    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn the_waits_of_parked_runs_are_counted_by_kind_and_the_oldest_has_an_age() {
        let run = |waits: Value| -> RawRun {
            serde_json::from_value(json!({
                "apiVersion": "dalsegno.dev/v1alpha1", "kind": "AgentRun", "metadata": { "name": "a" }, "spec": {},
                "status": { "waiting": { "since": "2026-11-26T12:00:00Z", "waits": waits } },
            }))
            .unwrap()
        };
        let wait = |kind: &str, since: &str| json!({ "id": "w", "kind": kind, "since": since });
        let runs = [
            run(json!([wait("Approval", "2026-11-26T11:00:00Z"), wait("Until", "2026-11-26T11:30:00Z")])),
            run(json!([wait("Approval", "2026-11-26T11:50:00Z")])),
        ];
        let waits = Waits::of(runs.iter());
        assert_eq!(waits.counts[&WaitKind::Approval], 2);
        assert_eq!(waits.counts[&WaitKind::Until], 1);
        assert_eq!(waits.age("2026-11-26T12:00:00Z".parse().unwrap()), Duration::from_secs(3_600));
        assert_eq!(Waits::of(std::iter::empty()).age(Timestamp::now()), Duration::ZERO);
    }

    #[test]
    fn runs_are_counted_by_the_summary_and_reason_of_their_status() {
        let run = |name: &str, status: Value| -> RawRun {
            serde_json::from_value(json!({
                "apiVersion": "dalsegno.dev/v1alpha1", "kind": "AgentRun",
                "metadata": { "name": name }, "spec": {}, "status": status,
            }))
            .unwrap()
        };
        let held = || json!({ "summary": "Held", "reason": "RecoveryLoop", "attempt": { "number": 3 } });
        let runs = [run("a", held()), run("b", held()), run("c", Value::Null)];
        let counts = count(runs.iter());
        let of = |summary: &str, reason: &str| {
            counts.get(&StateLabel { summary: summary.into(), reason: reason.into() }).copied()
        };
        assert_eq!((of("Held", "RecoveryLoop"), of("Unknown", "Unknown")), (Some(2), Some(1)));
    }
}
