//! Deadlines: the end of an attempt whose pod exists and shows no end.
//!
//! # Invariant
//!
//! An outage of the gateways is not charged to a worker. Every deadline counts by the store's clock, only while the
//! gateways beat, and from the start of their beats at the earliest.
//!
//! The deadline poll only wakes the operator. Whether a deadline has expired is decided by the row that was read after
//! that: a late heartbeat or a longer deadline may have changed it.

use dalsegno_crds::Cause;
use dalsegno_model::{
    AttemptState, BEAT_GAP_MS, CANCEL_TOLD_MS, CANCEL_UNTOLD_MS, Class, Deadline, RunRecord,
};
use jiff::Timestamp;

use crate::end::End;
use crate::observed::{ObservedNode, ObservedPod};
use crate::pod;
use crate::pod_end::disruption;
use crate::text::reason_and_message;

/// Returns why the current attempt has ended, if one of its deadlines has expired.
pub(crate) fn end_of(
    run: &RunRecord,
    seen: &ObservedPod,
    node: Option<ObservedNode>,
    now: Timestamp,
) -> Option<End> {
    let end = if is_expired(run, Deadline::Lease) {
        missed_heartbeat(run, node)
    } else if is_expired(run, Deadline::Start) {
        missed_start(seen)
    } else if is_expired(run, Deadline::Progress) {
        let message = "alive, but no boundary was committed within liveness.progressDeadlineSeconds";
        End::new(Cause::ProgressDeadline, Class::Crash, message)
    } else if node_is_lost(run, node, now) {
        let message =
            "the node has not been Ready for liveness.heartbeatTimeoutSeconds, and nothing was committed";
        End::new(Cause::NodeLost, Class::Disruption, message)
    } else {
        return None;
    };
    // A worker that is being stopped may miss its heartbeats. Then the disruption is the cause.
    Some(disruption(seen).unwrap_or(end))
}

/// Whether this deadline of the run has expired. The store's deadline poll follows the same rule.
pub(crate) fn is_expired(run: &RunRecord, deadline: Deadline) -> bool {
    let attempt = &run.attempt;
    let elapsed = |from: Option<Timestamp>, ms: i64| from.is_some_and(|from| has_elapsed(run, from, ms));
    match deadline {
        Deadline::Cancel => run.cancel.as_ref().is_some_and(|cancel| {
            elapsed(cancel.told_at, CANCEL_TOLD_MS) || elapsed(Some(cancel.requested_at), CANCEL_UNTOLD_MS)
        }),
        Deadline::Lease => {
            attempt.state == AttemptState::Attached
                && elapsed(attempt.lease_renewed_at, run.deadlines.heartbeat_ms.max(run.lease_ms))
        }
        Deadline::Start => {
            attempt.state == AttemptState::Created && elapsed(attempt.scheduled_at, run.deadlines.start_ms)
        }
        Deadline::Progress => {
            let last = attempt.attached_at.max(last_boundary(run));
            attempt.state == AttemptState::Attached && elapsed(last, run.deadlines.progress_ms)
        }
    }
}

/// Whether more than `ms` milliseconds have passed since `from`, without an outage of the gateways in between.
fn has_elapsed(run: &RunRecord, from: Timestamp, ms: i64) -> bool {
    let gateways_beat = millis(run.beat.last, run.now).abs() <= BEAT_GAP_MS;
    gateways_beat && millis(from.max(run.beat.since), run.now) > ms
}

/// Whether the node of a worker without a lease has not been Ready for the heartbeat timeout. Without a lease the node
/// is the only evidence.
///
/// The node's times are by the operator's clock, the worker's by the store's clock. Each is compared with its own
/// clock.
fn node_is_lost(run: &RunRecord, node: Option<ObservedNode>, now: Timestamp) -> bool {
    let attempt = &run.attempt;
    let Some(node) = node.filter(|it| !it.ready && attempt.lease_renewed_at.is_none()) else { return false };
    let timeout = run.deadlines.heartbeat_ms;
    let last = attempt.created_at.max(attempt.attached_at).max(last_boundary(run));
    millis(node.since, now) > timeout && has_elapsed(run, last.unwrap_or(run.created_at), timeout)
}

/// A worker that stops its heartbeats on a Ready node has crashed. If the node was not Ready in between, the node may
/// be the cause.
fn missed_heartbeat(run: &RunRecord, node: Option<ObservedNode>) -> End {
    let last = run.attempt.lease_renewed_at.unwrap_or(run.now);
    let (cause, class, which) = match node {
        Some(node) if node.ready && node.since <= last => (Cause::Silent, Class::Crash, "that is Ready"),
        Some(node) if node.ready => (Cause::NodeLost, Class::Disruption, "that was not always Ready"),
        Some(_) => (Cause::NodeLost, Class::Disruption, "that is not Ready"),
        None => (Cause::NodeLost, Class::Disruption, "that is not known"),
    };
    End::new(cause, class, format!("no heartbeat within liveness.heartbeatTimeoutSeconds, on a node {which}"))
}

fn missed_start(seen: &ObservedPod) -> End {
    let Some((reason, message)) = pod::waiting(&seen.pod) else {
        let message = "the worker did not attach within liveness.startDeadlineSeconds";
        return End::new(Cause::StartDeadline, Class::Neutral, message);
    };
    let waits_for = reason_and_message(reason, message);
    if pod::is_image_problem(reason) {
        return End::new(Cause::ImageUnavailable, Class::Neutral, waits_for);
    }
    let message = format!("not attached within liveness.startDeadlineSeconds; {waits_for}");
    End::new(Cause::StartDeadline, Class::Neutral, message)
}

/// When the current attempt committed its last boundary.
fn last_boundary(run: &RunRecord) -> Option<Timestamp> {
    run.head.as_ref().filter(|head| head.attempt == run.attempt.number).map(|head| head.at)
}

fn millis(from: Timestamp, to: Timestamp) -> i64 {
    i64::try_from(to.duration_since(from).as_millis()).unwrap_or(i64::MAX)
}
