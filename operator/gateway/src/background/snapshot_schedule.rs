//! Which runs need a snapshot, and which snapshots are being made.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use dalsegno_model::{RunId, SNAPSHOT_DUE, SNAPSHOT_OVERDUE};
use quick_cache::sync::Cache;
use tokio::sync::Semaphore;

/// Runs whose lag is remembered. A run that is forgotten counts from turn 1, and the store corrects that.
const RUNS: usize = 16_384;

/// Snapshots made at once.
const MAX_CONCURRENT: usize = 2;

/// The lag of each run, and the snapshots being made.
pub(crate) struct SnapshotSchedule {
    lags: Cache<RunId, Lag>,
    in_progress: Arc<Mutex<HashSet<RunId>>>,
    pub(crate) permits: Arc<Semaphore>,
}

/// How far a run's head is from the last boundary that a lookup can begin with, as far as this gateway knows.
#[derive(Clone, Copy)]
pub(crate) struct Lag {
    /// The turn of the head.
    pub(crate) turn: i32,
    /// Boundaries since that one.
    pub(crate) boundaries: i32,
    /// Request no snapshot below this lag, unless it is overdue.
    pub(crate) request_at: i32,
    /// The lag at which a snapshot of the run is due, as far as this gateway knows. The store decides.
    pub(crate) due: i32,
}

impl Lag {
    /// An overdue snapshot is requested at every commit, whatever came of the last request.
    pub(crate) fn is_overdue(self) -> bool {
        self.boundaries > SNAPSHOT_OVERDUE
    }

    pub(crate) fn needs_request(self) -> bool {
        self.boundaries >= self.request_at || self.is_overdue()
    }
}

impl Default for SnapshotSchedule {
    fn default() -> Self {
        Self {
            lags: Cache::new(RUNS),
            in_progress: Arc::default(),
            permits: Arc::new(Semaphore::new(MAX_CONCURRENT)),
        }
    }
}

impl SnapshotSchedule {
    /// Records a committed boundary of this turn and returns the run's lag. `is_full`: a lookup can begin with it.
    pub(crate) fn committed(&self, run: RunId, turn: i32, is_full: bool) -> Lag {
        let lag = match self.lags.get(&run) {
            Some(Lag { due, .. }) if is_full => Lag { turn, boundaries: 0, request_at: due, due },
            // Other gateways may have committed the turns in between.
            Some(lag) => Lag { turn, boundaries: lag.boundaries + (turn - lag.turn).max(1), ..lag },
            None => {
                let boundaries = if is_full { 0 } else { turn };
                Lag { turn, boundaries, request_at: SNAPSHOT_DUE, due: SNAPSHOT_DUE }
            }
        };
        self.lags.insert(run, lag);
        lag
    }

    /// Records at which lag a snapshot of a run is due, whose worker has attached with the head at this turn.
    pub(crate) fn attached(&self, run: RunId, turn: i32, due: i32) {
        let lag = match self.lags.get(&run) {
            Some(lag) if lag.due == due => return,
            Some(lag) => Lag { request_at: due, due, ..lag },
            None => Lag { turn, boundaries: turn, request_at: due, due },
        };
        self.lags.insert(run, lag);
    }

    /// Replaces what is known of a run's lag.
    pub(crate) fn set(&self, run: RunId, lag: Lag) {
        self.lags.insert(run, lag);
    }

    /// Marks a snapshot as being made; `None` if one is being made already.
    pub(crate) fn begin(&self, run: RunId) -> Option<InProgress> {
        let runs = self.in_progress.clone();
        let is_first = runs.lock().unwrap_or_else(PoisonError::into_inner).insert(run);
        // Constructed only for the first: dropping one would end the other's mark.
        is_first.then(|| InProgress { run, runs })
    }
}

/// A snapshot is being made until this is dropped.
pub(crate) struct InProgress {
    run: RunId,
    runs: Arc<Mutex<HashSet<RunId>>>,
}

impl Drop for InProgress {
    fn drop(&mut self) {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.run);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUN: RunId = RunId::from_u128(1);

    #[test]
    fn the_lag_counts_boundaries_of_this_gateway_and_turns_of_others() {
        let schedule = SnapshotSchedule::default();
        let lag = |turn, is_full| schedule.committed(RUN, turn, is_full).boundaries;
        assert_eq!(lag(7, false), 7, "an unknown run counts from turn 1");
        assert_eq!(lag(7, false), 8, "a result after its plan");
        assert_eq!(lag(12, false), 13, "four turns at other gateways");
        assert_eq!(lag(13, true), 0);
        assert_eq!(lag(14, false), 1);
    }

    #[test]
    fn a_run_with_a_number_of_its_own_requests_at_that_lag() {
        let schedule = SnapshotSchedule::default();
        let requests = |turn, is_full| schedule.committed(RUN, turn, is_full).needs_request();
        schedule.attached(RUN, 0, 3);
        assert_eq!([1, 2, 3].map(|turn| requests(turn, false)), [false, false, true]);
        assert_eq!([4, 5, 6, 7].map(|turn| requests(turn, turn == 4)), [false, false, false, true]);
        schedule.attached(RUN, 7, 50);
        assert!(!requests(8, false), "the setting has changed");
        schedule.attached(RunId::from_u128(2), 40, 50);
        assert!(!schedule.committed(RunId::from_u128(2), 41, false).needs_request());
    }

    #[test]
    fn a_run_has_one_snapshot_in_progress_at_a_time() {
        let schedule = SnapshotSchedule::default();
        let first = schedule.begin(RUN).unwrap();
        for _ in 0..2 {
            assert!(schedule.begin(RUN).is_none(), "a refused request does not end the one in progress");
        }
        assert!(schedule.begin(RunId::from_u128(2)).is_some());
        drop(first);
        assert!(schedule.begin(RUN).is_some());
    }
}
