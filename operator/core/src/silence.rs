//! Silence: the absence of evidence, of a worker in a pod that is there and has not ended.
//!
//! *Our silence is not theirs*: every clock counts by the store's time, only while the gateways beat, and from the
//! moment they began to at the earliest. What the pulse found wakes us; whether it is so is judged by the row that was
//! read since, in which a late heartbeat or a longer deadline may stand.

use dalsegno_crds::Cause;
use dalsegno_model::{
    AttemptState, BEAT_GAP_MS, CANCEL_TOLD_MS, CANCEL_UNTOLD_MS, Class, Deadline, RunRecord,
};
use jiff::Timestamp;

use crate::evidence::{End, disruption};
use crate::pod;
use crate::text::said;
use crate::{NodeSight, PodSight};

/// Why the current attempt is over, if its silence says so.
pub(crate) fn end_of(
    run: &RunRecord,
    seen: &PodSight,
    node: Option<NodeSight>,
    now: Timestamp,
) -> Option<End> {
    let end = if has_run_out(run, Deadline::Lease) {
        no_heartbeat(run, node)
    } else if has_run_out(run, Deadline::Start) {
        never_attached(seen)
    } else if has_run_out(run, Deadline::Progress) {
        let what = "alive, but no boundary was committed within liveness.progressDeadlineSeconds";
        End::new(Cause::ProgressDeadline, Class::Crash, what)
    } else if node_is_lost(run, node, now) {
        let what =
            "the node has not been Ready for liveness.heartbeatTimeoutSeconds, and nothing was committed";
        End::new(Cause::NodeLost, Class::Disruption, what)
    } else {
        return None;
    };
    // A worker that is being stopped may well fall silent: then what stops it is what ended it.
    Some(disruption(seen).unwrap_or(end))
}

/// Whether this deadline of the run has run out, as the pulse computes it.
pub(crate) fn has_run_out(run: &RunRecord, deadline: Deadline) -> bool {
    let attempt = &run.attempt;
    let after = |from: Option<Timestamp>, length: i64| from.is_some_and(|from| lasts(run, from, length));
    match deadline {
        Deadline::Cancel => run.cancel.as_ref().is_some_and(|cancel| {
            after(cancel.told_at, CANCEL_TOLD_MS) || after(Some(cancel.requested_at), CANCEL_UNTOLD_MS)
        }),
        Deadline::Lease => {
            attempt.state == AttemptState::Attached
                && after(attempt.lease_renewed_at, run.deadlines.heartbeat_ms.max(run.lease_ms))
        }
        Deadline::Start => {
            attempt.state == AttemptState::Created && after(attempt.scheduled_at, run.deadlines.start_ms)
        }
        Deadline::Progress => {
            let last = attempt.attached_at.max(last_boundary(run));
            attempt.state == AttemptState::Attached && after(last, run.deadlines.progress_ms)
        }
    }
}

/// Whether more than `length` milliseconds have passed since then, all of them while the gateways beat.
fn lasts(run: &RunRecord, from: Timestamp, length: i64) -> bool {
    let beating = millis(run.beat.last, run.now).abs() <= BEAT_GAP_MS;
    beating && millis(from.max(run.beat.since), run.now) > length
}

/// Without a lease a node's silence is all there is to go by.
///
/// The node's clock is ours, the worker's is the store's: each is compared with its own.
fn node_is_lost(run: &RunRecord, node: Option<NodeSight>, now: Timestamp) -> bool {
    let attempt = &run.attempt;
    let Some(node) = node.filter(|it| !it.ready && attempt.lease_renewed_at.is_none()) else { return false };
    let length = run.deadlines.heartbeat_ms;
    let last = attempt.created_at.max(attempt.attached_at).max(last_boundary(run));
    millis(node.since, now) > length && lasts(run, last.unwrap_or(run.created_at), length)
}

/// A worker that hung is a crash. On a node that was away meanwhile it may not have been the worker.
fn no_heartbeat(run: &RunRecord, node: Option<NodeSight>) -> End {
    let last = run.attempt.lease_renewed_at.unwrap_or(run.now);
    let (cause, class, which) = match node {
        Some(node) if node.ready && node.since <= last => (Cause::Silent, Class::Crash, "that is Ready"),
        Some(node) if node.ready => (Cause::NodeLost, Class::Disruption, "that was not Ready all the time"),
        Some(_) => (Cause::NodeLost, Class::Disruption, "that is not Ready"),
        None => (Cause::NodeLost, Class::Disruption, "that is not known"),
    };
    End::new(cause, class, format!("no heartbeat within liveness.heartbeatTimeoutSeconds, on a node {which}"))
}

fn never_attached(seen: &PodSight) -> End {
    let Some((reason, message)) = pod::waiting(&seen.pod) else {
        let what = "the worker did not attach within liveness.startDeadlineSeconds";
        return End::new(Cause::StartDeadline, Class::Neutral, what);
    };
    let waits = said(reason, message);
    if pod::is_image_problem(reason) {
        return End::new(Cause::ImageUnavailable, Class::Neutral, waits);
    }
    let what = format!("not attached within liveness.startDeadlineSeconds; {waits}");
    End::new(Cause::StartDeadline, Class::Neutral, what)
}

/// The last boundary of the current attempt.
fn last_boundary(run: &RunRecord) -> Option<Timestamp> {
    run.head.as_ref().filter(|head| head.attempt == run.attempt.number).map(|head| head.at)
}

fn millis(from: Timestamp, to: Timestamp) -> i64 {
    i64::try_from(to.duration_since(from).as_millis()).unwrap_or(i64::MAX)
}
