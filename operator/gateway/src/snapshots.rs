//! Snapshots are asked for off the hot path: by whichever gateway commits the boundary at which one is due.
//!
//! Nothing rests on it. The store decides whether one is due, and any number of gateways may ask at once; a snapshot
//! that is not made costs the next lookup time.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use dalsegno_store::{RunId, SNAPSHOT_DUE, SNAPSHOT_OVERDUE, Snapshotted};
use quick_cache::sync::Cache;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;

use crate::gateway::{Gateway, chain};

/// Runs whose lag is remembered. What is forgotten is asked of the store.
const RUNS: usize = 16_384;

/// Snapshots that are made at once.
const AT_ONCE: usize = 2;

/// Longer than any snapshot takes.
const DEADLINE: Duration = Duration::from_secs(60);

/// Which runs need a snapshot, and which get one.
pub(crate) struct Snapshots {
    marks: Cache<RunId, Mark>,
    under_way: Arc<Mutex<HashSet<RunId>>>,
    permits: Arc<Semaphore>,
}

/// How far a run is past what a lookup can begin with, as far as this gateway knows.
#[derive(Clone, Copy)]
struct Mark {
    turn: i32,
    lag: i32,
    /// Ask no sooner than at this lag, unless one is overdue.
    ask_at: i32,
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
    fn lag(&self, run: RunId, turn: i32, whole: bool) -> Mark {
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

/// A boundary was committed: asks for a snapshot if one seems due and there is a place. One that is overdue is asked for at
/// each commit, whatever became of the last one, and waits for its place.
pub(crate) fn committed(gateway: &Gateway, run: RunId, turn: i32, whole: bool) {
    let mark = gateway.snapshots.lag(run, turn, whole);
    gateway.metrics.lagging(mark.lag);
    let overdue = mark.lag > SNAPSHOT_OVERDUE;
    if mark.lag < mark.ask_at && !overdue {
        return;
    }
    let Some(under_way) = UnderWay::begin(&gateway.snapshots, run) else {
        return;
    };
    let permits = gateway.snapshots.permits.clone();
    let permit = permits.clone().try_acquire_owned().ok();
    if permit.is_none() && !overdue {
        return;
    }
    let gateway = gateway.clone();
    tokio::spawn(async move {
        let _under_way = under_way;
        let _permit = match permit {
            Some(permit) => Some(permit),
            None => permits.acquire_owned().await.ok(),
        };
        let Ok(bytes) = gateway.state_bytes(run, None).await else { return };
        // Nobody waits for it: it has its place behind whoever looks, however long they all take.
        let room = gateway.states.room().take_bytes(bytes);
        let Some(Some(_room)) = gateway.closing.run_until_cancelled(room).await else { return };
        // Its decoding and comparing would keep a thread from those that answer calls.
        let (asking, runtime) = (gateway.clone(), Handle::current());
        let asked = tokio::task::spawn_blocking(move || {
            runtime.block_on(asking.closing.run_until_cancelled(ask(&asking, run)))
        });
        let outcome = asked.await.ok().flatten().flatten();
        gateway.metrics.snapshotted(outcome.map(|snapshot| snapshot.made));
        let mark = match outcome {
            Some(Snapshotted { turn, lag, .. }) => Mark { turn, lag, ask_at: SNAPSHOT_DUE },
            None => Mark { ask_at: mark.lag + SNAPSHOT_DUE, ..mark },
        };
        gateway.snapshots.marks.insert(run, mark);
    });
}

async fn ask(gateway: &Gateway, run: RunId) -> Option<Snapshotted> {
    match tokio::time::timeout(DEADLINE, gateway.store.snapshot(run)).await {
        Ok(Ok(snapshot)) => Some(snapshot),
        Ok(Err(error)) => {
            gateway.metrics.store_failed(&error);
            tracing::warn!(%run, error = chain(&error), "a snapshot could not be made");
            None
        }
        Err(_) => {
            tracing::warn!(%run, "a snapshot was not made in time");
            None
        }
    }
}

/// One snapshot of a run at a time; it is over when this is dropped.
struct UnderWay {
    run: RunId,
    all: Arc<Mutex<HashSet<RunId>>>,
}

impl UnderWay {
    fn begin(snapshots: &Snapshots, run: RunId) -> Option<Self> {
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
