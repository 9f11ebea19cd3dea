//! Makes snapshots off the hot path: the gateway that commits the boundary at which a snapshot is due requests it.
//!
//! Correctness does not depend on it. The store decides whether a snapshot is due, and any number of gateways may
//! request one at once; a missing snapshot only makes the next lookup slower.

use std::time::Duration;

use dalsegno_model::{RunId, Snapshotted};
use tokio::runtime::Handle;

use crate::background::snapshot_schedule::Lag;
use crate::error_chain::error_chain;
use crate::gateway::Gateway;

/// Longer than any snapshot takes.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Call after a commit. Starts a task that makes a snapshot if one seems due and a permit is free. If the snapshot is
/// overdue, every commit starts the task, whatever the last request returned, and the task waits for its permit.
///
/// `is_full`: a lookup can begin with the committed boundary.
pub(crate) fn after_commit(gateway: &Gateway, run: RunId, turn: i32, is_full: bool) {
    let schedule = &gateway.snapshot_schedule;
    let lag = schedule.committed(run, turn, is_full);
    gateway.metrics.snapshot_lag(lag.boundaries);
    if !lag.needs_request() {
        return;
    }
    let Some(in_progress) = schedule.begin(run) else { return };
    let permits = schedule.permits.clone();
    let permit = permits.clone().try_acquire_owned().ok();
    if permit.is_none() && !lag.is_overdue() {
        return;
    }
    let gateway = gateway.clone();
    tokio::spawn(async move {
        let _in_progress = in_progress;
        let _permit = match permit {
            Some(permit) => Some(permit),
            None => permits.acquire_owned().await.ok(),
        };
        write_snapshot(&gateway, run, lag).await;
    });
}

/// Waits until the state may be read, requests the snapshot and records the new lag.
async fn write_snapshot(gateway: &Gateway, run: RunId, lag: Lag) {
    let Ok(bytes) = gateway.state_bytes(run, None).await else { return };
    // No time-out: nobody waits for the snapshot, so it queues behind all inspections.
    let read = gateway.inspection_reads.budget().acquire_bytes(bytes);
    let Some(Some(_read)) = gateway.stopping.run_until_cancelled(read).await else { return };
    // On a blocking thread, because decoding and comparing states would stall the threads that answer calls.
    let (on_thread, runtime) = (gateway.clone(), Handle::current());
    let requested = tokio::task::spawn_blocking(move || {
        runtime.block_on(on_thread.stopping.run_until_cancelled(request(&on_thread, run)))
    });
    let snapshot = requested.await.ok().flatten().flatten();
    gateway.metrics.snapshot_requested(snapshot.map(|snapshot| snapshot.made));
    let lag = match snapshot {
        Some(Snapshotted { turn, lag, due, .. }) => Lag { turn, boundaries: lag, request_at: due, due },
        None => Lag { request_at: lag.boundaries + lag.due, ..lag },
    };
    gateway.snapshot_schedule.set(run, lag);
}

/// Asks the store for a snapshot; `None` if that failed.
async fn request(gateway: &Gateway, run: RunId) -> Option<Snapshotted> {
    match tokio::time::timeout(TIMEOUT, gateway.store.snapshot(run)).await {
        Ok(Ok(snapshot)) => Some(snapshot),
        Ok(Err(error)) => {
            gateway.metrics.store_call_failed(&error);
            tracing::warn!(%run, error = error_chain(&error), "a snapshot could not be made");
            None
        }
        Err(_) => {
            tracing::warn!(%run, "making a snapshot timed out");
            None
        }
    }
}
