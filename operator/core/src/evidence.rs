//! Why an attempt ended, and who caused it.
//!
//! The evidence has a fixed order, the most certain first:
//!
//! 1. The store's row: the image's version was refused, or a second process tried to attach.
//! 2. The pod's status: the worker's container has ended. `pod_end` has the order of this evidence.
//! 3. The pod is gone, and its worker's end was not observed.
//! 4. The pod never starts: `lost_sandbox`.
//! 5. An expired deadline, or a node that is not Ready: `deadlines`.
//!
//! Deadlines come last because they show only that evidence is missing. A container that has ended needs no deadline,
//! and a worker that is being evicted may stop its heartbeats.

use dalsegno_crds::Cause;
use dalsegno_model::{Attempt, Class, GatewayHeartbeat, HEARTBEAT_GAP_MS, RunRecord, Verdict};
use jiff::{SignedDuration, Timestamp};

use crate::deadlines;
use crate::end::End;
use crate::lost_sandbox;
use crate::observed::{ObservedNode, ObservedPod};
use crate::pod;
use crate::pod_end::{self, disruption};
use crate::text::with_log;

/// A crash this close to an outage of the gateways may be a consequence of it.
const OUTAGE_MARGIN: SignedDuration = SignedDuration::from_secs(5);

/// Returns why the current attempt (created or attached) has ended, or `None` while it has not.
///
/// `pod` is the recorded pod as it was last seen. `None` means that it was never seen and a live request did not find
/// it.
pub fn end_of(
    run: &RunRecord,
    pod: Option<&ObservedPod>,
    node: Option<ObservedNode>,
    now: Timestamp,
) -> Option<End> {
    if let Some(end) = end_by_row(&run.attempt) {
        return Some(end);
    }
    let Some(seen) = pod else { return Some(vanished()) };
    if let Some(end) = pod_end::of(&run.attempt, seen) {
        let end = forgive_refused_key(end, run);
        let end = accept_exit_at_limit(end, run);
        let end = forgive_lost_node(end, pod::finished_at(&seen.pod), node);
        return Some(forgive_gateway_outage(end, pod::finished_at(&seen.pod), &run.beat, run.now));
    }
    if seen.gone {
        return Some(disruption(seen).unwrap_or_else(vanished));
    }
    lost_sandbox::end_of(&run.attempt, seen, node, now).or_else(|| deadlines::end_of(run, seen, node, now))
}

/// Evidence 1: the store's row.
fn end_by_row(attempt: &Attempt) -> Option<End> {
    if let Some(identity) = &attempt.identity
        && identity.verdict == Verdict::Refused
    {
        return Some(End::new(Cause::VersionIncompatible, Class::Neutral, &identity.remark));
    }
    attempt.spent.then(|| {
        let message =
            "a second process of this attempt tried to attach; the memory of the first process is lost";
        End::new(Cause::ProcessRestarted, Class::Crash, message)
    })
}

/// Evidence 3: the pod is gone.
pub(crate) fn vanished() -> End {
    let message = "the pod is gone, and the end of its worker was not observed";
    End::new(Cause::PodVanished, Class::Disruption, message)
}

/// After a tool refused the key of a call, the worker can only exit. Its exit does not count as a crash.
fn forgive_refused_key(end: End, run: &RunRecord) -> End {
    if run.calls.keys_refused > 0 && end.class == Class::Crash {
        End { cause: Cause::KeyRefused, class: Class::Neutral, ..end }
    } else {
        end
    }
}

/// A worker exits with 0 when it learns that a limit of its run is reached.
fn accept_exit_at_limit(end: End, run: &RunRecord) -> End {
    if end.cause != Cause::ExitedWithoutFinish || !run.is_limit_reached() {
        return end;
    }
    let message = with_log("a limit of the run was reached, and its worker exited", &end.message);
    End { cause: Cause::LimitReached, class: Class::Neutral, message, exit_code: None }
}

/// A worker that a signal ended, on a node that stopped or restarted, did not crash. A node that does not shut down
/// gracefully ends its processes by SIGTERM and SIGKILL, and no condition of the pod says so. The kubelet's clock gives
/// both times of a node that is Ready again.
pub(crate) fn forgive_lost_node(end: End, finished: Option<Timestamp>, node: Option<ObservedNode>) -> End {
    let is_signal = end.class != Class::Disruption
        && end.cause == Cause::ExitedWithError
        && matches!(end.exit_code, Some(pod_end::SIGTERM_EXIT | pod_end::SIGKILL_EXIT));
    let Some(node) = node.filter(|_| is_signal) else { return end };
    let was_lost = !node.ready || finished.is_some_and(|finished| node.since > finished);
    if !was_lost {
        return end;
    }
    let message = with_log("the node was lost or restarted when the worker ended", &end.message);
    End { cause: Cause::NodeLost, class: Class::Disruption, message, ..end }
}

/// A crash during an outage of the gateways is recorded and not charged, because the outage may have caused it.
fn forgive_gateway_outage(
    end: End,
    finished: Option<Timestamp>,
    beat: &GatewayHeartbeat,
    now: Timestamp,
) -> End {
    let is_crash = matches!(end.class, Class::Crash | Class::CrashWithoutProgress);
    let Some(finished) = finished.filter(|_| is_crash && end.cause != Cause::WorkerFatal) else { return end };
    let within = |from: Timestamp, to: Timestamp| {
        finished.duration_since(from) >= -OUTAGE_MARGIN && finished.duration_since(to) <= OUTAGE_MARGIN
    };
    let past = beat.gap_from < beat.since && within(beat.gap_from, beat.since);
    let ongoing =
        now.duration_since(beat.last).as_millis() > i128::from(HEARTBEAT_GAP_MS) && within(beat.last, now);
    if !past && !ongoing {
        return end;
    }
    let message = with_log("not charged, because the gateway was unavailable at that time", &end.message);
    End { class: Class::Neutral, message, ..end }
}
