//! Snapshots are asked for off the hot path: by whichever gateway commits the boundary at which one is due.
//!
//! Nothing rests on it. The store decides whether one is due, and any number of gateways may ask at once; a snapshot
//! that is not made costs the next lookup time.

use std::time::Duration;

use dalsegno_store::{RunId, SNAPSHOT_DUE, SNAPSHOT_OVERDUE, Snapshotted};
use tokio::runtime::Handle;

use crate::background::snapshot_schedule::{Mark, UnderWay};
use crate::error_chain::chain;
use crate::gateway::Gateway;

/// Longer than any snapshot takes.
const DEADLINE: Duration = Duration::from_secs(60);

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
