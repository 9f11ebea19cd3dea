//! Which runs need a snapshot, and which get one.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use dalsegno_store::{RunId, SNAPSHOT_DUE};
use quick_cache::sync::Cache;
use tokio::sync::Semaphore;

/// Runs whose lag is remembered. What is forgotten is asked of the store.
const RUNS: usize = 16_384;

/// Snapshots that are made at once.
const AT_ONCE: usize = 2;

/// Which runs need a snapshot, and which get one.
pub(crate) struct Snapshots {
    pub(crate) marks: Cache<RunId, Mark>,
    under_way: Arc<Mutex<HashSet<RunId>>>,
    pub(crate) permits: Arc<Semaphore>,
}

/// How far a run is past what a lookup can begin with, as far as this gateway knows.
#[derive(Clone, Copy)]
pub(crate) struct Mark {
    pub(crate) turn: i32,
    pub(crate) lag: i32,
    /// Ask no sooner than at this lag, unless one is overdue.
    pub(crate) ask_at: i32,
}

impl Default for Snapshots {
    fn default() -> Self {
        Self {
            marks: Cache::new(RUNS),
            under_way: Arc::default(),
            permits: Arc::new(Semaphore::new(AT_ONCE)),
        }
    }
}

impl Snapshots {
    /// A boundary of this turn was committed; `whole`: a lookup can begin with it. How far the run is past such a one.
    pub(crate) fn lag(&self, run: RunId, turn: i32, whole: bool) -> Mark {
        let mark = match self.marks.get(&run) {
            _ if whole => Mark { turn, lag: 0, ask_at: SNAPSHOT_DUE },
            // Other gateways may have committed turns in between.
            Some(mark) => Mark { turn, lag: mark.lag + (turn - mark.turn).max(1), ..mark },
            None => Mark { turn, lag: turn, ask_at: SNAPSHOT_DUE },
        };
        self.marks.insert(run, mark);
        mark
    }
}

/// One snapshot of a run at a time; it is over when this is dropped.
pub(crate) struct UnderWay {
    run: RunId,
    all: Arc<Mutex<HashSet<RunId>>>,
}

impl UnderWay {
    pub(crate) fn begin(snapshots: &Snapshots, run: RunId) -> Option<Self> {
        let all = snapshots.under_way.clone();
        let first = all.lock().unwrap_or_else(PoisonError::into_inner).insert(run);
        // Made only if it is: one that is dropped ends the snapshot that is under way.
        first.then(|| Self { run, all })
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.all.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.run);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUN: RunId = RunId::from_u128(1);

    #[test]
    fn the_lag_counts_boundaries_and_what_others_have_committed() {
        let snapshots = Snapshots::default();
        assert_eq!(snapshots.lag(RUN, 7, false).lag, 7, "of an unknown run nothing better is known");
        assert_eq!(snapshots.lag(RUN, 7, false).lag, 8, "a result after its plan");
        assert_eq!(snapshots.lag(RUN, 12, false).lag, 13, "four turns elsewhere");
        assert_eq!(snapshots.lag(RUN, 13, true).lag, 0);
        assert_eq!(snapshots.lag(RUN, 14, false).lag, 1);
    }

    #[test]
    fn a_run_gets_one_snapshot_at_a_time() {
        let snapshots = Snapshots::default();
        let first = UnderWay::begin(&snapshots, RUN).unwrap();
        for _ in 0..2 {
            assert!(UnderWay::begin(&snapshots, RUN).is_none(), "however often it is asked for");
        }
        assert!(UnderWay::begin(&snapshots, RunId::from_u128(2)).is_some());
        drop(first);
        assert!(UnderWay::begin(&snapshots, RUN).is_some());
    }
}
