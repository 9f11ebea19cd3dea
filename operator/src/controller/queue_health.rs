//! Whether the queue of reconciles still moves.
//!
//! A slow operator and a wedged one both let runs wait. The difference: a slow one still begins and ends reconciles. Each
//! reconcile is cut off after [`RECONCILE_TIMEOUT`], so something moves at least that often while a run waits, whatever a
//! webhook, the API server or the store do. An operator in which nothing moves is wedged, and only a restart helps.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::cache::pods::RunKey;
use crate::mutex::lock;

/// Longest time of one reconcile. Its requests and its calls of the store have timeouts, but their number has no other
/// limit. The next reconcile continues from what is done.
pub const RECONCILE_TIMEOUT: Duration = Duration::from_mins(15);
/// If nothing moves for so long, the operator is wedged. Longer than [`RECONCILE_TIMEOUT`].
const LONGEST_STANDSTILL: Duration = Duration::from_mins(20);

/// What the queue does. Clones share their content. An operator that does not lead has an empty queue.
#[derive(Clone, Debug, Default)]
pub struct QueueHealth(Arc<Mutex<Moves>>);

#[derive(Debug, Default)]
struct Moves {
    /// Since when the run waits that has waited longest.
    waiting_since: Option<Instant>,
    /// When a reconcile last began or ended.
    moved: Option<Instant>,
    /// The reconciles under way, and when each began.
    working: HashMap<RunKey, Instant>,
}

impl QueueHealth {
    /// Records since when the run waits that has waited longest. `None`: no run waits.
    pub fn set_waiting_since(&self, since: Option<Instant>) {
        lock(&self.0).waiting_since = since;
    }

    /// Records that the reconcile of a run begins.
    pub fn began(&self, run: RunKey, now: Instant) {
        let mut moves = lock(&self.0);
        moves.moved = Some(now);
        moves.working.insert(run, now);
    }

    /// Records that the reconcile of a run has ended.
    pub fn ended(&self, run: &RunKey, now: Instant) {
        let mut moves = lock(&self.0);
        moves.moved = Some(now);
        moves.working.remove(run);
    }

    /// How long the run that waits longest has waited; zero if none waits.
    pub fn oldest(&self, now: Instant) -> Duration {
        lock(&self.0).waiting_since.map(|since| now.duration_since(since)).unwrap_or_default()
    }

    /// Why the operator must be restarted: a reconcile has not ended although it was cut off, or a run waits and nothing
    /// moves.
    pub fn failure(&self, now: Instant) -> Option<String> {
        let moves = lock(&self.0);
        let is_over = |since: &Instant| now.duration_since(*since) >= LONGEST_STANDSTILL;
        if let Some((run, _)) = moves.working.iter().find(|(_, since)| is_over(since)) {
            let RunKey { namespace, name } = run;
            return Some(format!("the reconcile of {namespace}/{name} does not end"));
        }
        let stands_since =
            moves.waiting_since.map(|since| moves.moved.map_or(since, |moved| moved.max(since)));
        stands_since
            .filter(is_over)
            .map(|_| "runs wait for their reconcile, and none begins or ends".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(name: &str) -> RunKey {
        RunKey { namespace: "shop".into(), name: name.into() }
    }

    /// A queue in which a run waits from the start, and a function of seconds since then.
    fn waiting() -> (QueueHealth, impl Fn(u64) -> Instant) {
        let (health, start) = (QueueHealth::default(), Instant::now());
        health.set_waiting_since(Some(start));
        (health, move |second| start + Duration::from_secs(second))
    }

    #[test]
    fn a_queue_in_which_a_run_waits_and_nothing_moves_is_wedged() {
        let (health, at) = waiting();
        assert_eq!((health.failure(at(1_199)), health.oldest(at(1_199))), (None, Duration::from_secs(1_199)));
        let why = health.failure(at(1_200)).unwrap_or_default();
        assert!(why.contains("none begins or ends"), "{why}");
        health.set_waiting_since(None);
        assert_eq!((health.failure(at(9_999)), health.oldest(at(9_999))), (None, Duration::ZERO));
    }

    #[test]
    fn a_slow_queue_is_not_wedged_however_long_a_run_waits() {
        let (health, at) = waiting();
        // Each reconcile takes as long as it may, with one slot, for a day.
        for second in (0..86_400).step_by(900) {
            health.began(run("slow"), at(second));
            assert_eq!(health.failure(at(second + 899)), None);
            health.ended(&run("slow"), at(second + 900));
        }
        assert_eq!(health.oldest(at(86_400)), Duration::from_secs(86_400));
    }

    #[test]
    fn a_reconcile_that_does_not_end_although_it_was_cut_off_wedges_the_operator() {
        let (health, at) = waiting();
        health.began(run("stuck"), at(0));
        for second in (0..1_200).step_by(10) {
            health.began(run("other"), at(second));
            health.ended(&run("other"), at(second + 9));
            assert_eq!(health.failure(at(second + 9)), None, "the others move");
        }
        let why = health.failure(at(1_200)).unwrap_or_default();
        assert_eq!(why, "the reconcile of shop/stuck does not end");
        health.ended(&run("stuck"), at(1_201));
        assert_eq!(health.failure(at(1_202)), None);
    }

    #[test]
    fn a_reconcile_is_cut_off_well_before_it_counts_as_wedged() {
        assert!(RECONCILE_TIMEOUT + Duration::from_mins(2) < LONGEST_STANDSTILL);
    }
}
