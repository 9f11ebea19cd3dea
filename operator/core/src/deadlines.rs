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
use dalsegno_model::{Class, Deadline, RunRecord};
use jiff::Timestamp;

use crate::avoided_nodes;
use crate::end::End;
use crate::lost_sandbox;
use crate::observed::{ObservedNode, ObservedPod, VolumeProblem};
use crate::pod;
use crate::pod_end::disruption;
use crate::text::reason_and_message;

/// Whether only missing evidence shows that the current attempt has ended: an expired deadline, a node that is not Ready, or
/// a pod that still has no sandbox. A watch may be silent too, so the pod and the node must be read live before that counts.
pub fn is_silent(
    run: &RunRecord,
    pod: Option<&ObservedPod>,
    node: Option<ObservedNode>,
    now: Timestamp,
) -> bool {
    let deadlines = [Deadline::Lease, Deadline::Start, Deadline::Progress];
    deadlines.into_iter().any(|deadline| run.is_expired(deadline))
        || node_is_lost(run, node, now)
        || pod.is_some_and(|seen| lost_sandbox::end_of(&run.attempt, seen, node, now).is_some())
}

/// Returns why the current attempt has ended, if one of its deadlines has expired.
pub(crate) fn end_of(
    run: &RunRecord,
    seen: &ObservedPod,
    node: Option<ObservedNode>,
    now: Timestamp,
) -> Option<End> {
    let end = if run.is_expired(Deadline::Lease) {
        missed_heartbeat(run, node)
    } else if run.is_expired(Deadline::Start) {
        missed_start(seen)
    } else if run.is_expired(Deadline::Progress) {
        let message = "alive, but no boundary was committed within liveness.progressDeadlineSeconds";
        End::new(Cause::ProgressDeadline, Class::Crash, message)
    } else if avoided_nodes::pending_until(&seen.pod).is_some_and(|until| until <= run.now) {
        End::new(Cause::NoOtherNode, Class::Neutral, avoided_nodes::NO_OTHER_NODE)
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

/// Whether the node of a worker without a lease has not been Ready for the heartbeat timeout. Without a lease the node
/// is the only evidence, and it is none while most of its zone is not Ready.
///
/// The node's times are by the operator's clock, the worker's by the store's clock. Each is compared with its own
/// clock.
fn node_is_lost(run: &RunRecord, node: Option<ObservedNode>, now: Timestamp) -> bool {
    let attempt = &run.attempt;
    let Some(node) = node.filter(|it| !it.ready && !it.zone_lost && attempt.lease_renewed_at.is_none())
    else {
        return false;
    };
    let timeout = run.deadlines.heartbeat_ms;
    let last = attempt.created_at.max(attempt.attached_at).max(last_boundary(run));
    millis(node.since, now) > timeout && run.has_elapsed(last.unwrap_or(run.created_at), timeout)
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
    let message = format!("no heartbeat within liveness.heartbeatTimeoutSeconds, on a node {which}");
    if class == Class::Crash && run.lease_gateway_outage_ms() > 0 {
        let message =
            format!("{message}; not charged, because the gateway that renewed its lease was unavailable");
        return End::new(cause, Class::Neutral, message);
    }
    End::new(cause, class, message)
}

fn missed_start(seen: &ObservedPod) -> End {
    if let Some(VolumeProblem { is_attach, message }) = &seen.volume_problem {
        // Another pod would wait for the same volume to be attached, so that is no failure of the start.
        let cause = if *is_attach { Cause::VolumeUnavailable } else { Cause::StartDeadline };
        let message = format!("the worker did not attach within liveness.startDeadlineSeconds; {message}");
        return End::new(cause, Class::Neutral, message);
    }
    let Some((reason, message)) = pod::waiting(&seen.pod) else {
        let message = "the worker did not attach within liveness.startDeadlineSeconds";
        return End::new(Cause::StartDeadline, Class::Neutral, message);
    };
    let waits_for = reason_and_message(reason, message);
    if pod::is_image_problem(reason) {
        return End::new(Cause::ImageUnavailable, Class::Neutral, waits_for);
    }
    let message = format!("the worker did not attach within liveness.startDeadlineSeconds; {waits_for}");
    End::new(Cause::StartDeadline, Class::Neutral, message)
}

/// When the current attempt committed its last boundary.
fn last_boundary(run: &RunRecord) -> Option<Timestamp> {
    run.head.as_ref().filter(|head| head.attempt == run.attempt.number).map(|head| head.at)
}

fn millis(from: Timestamp, to: Timestamp) -> i64 {
    i64::try_from(to.duration_since(from).as_millis()).unwrap_or(i64::MAX)
}
