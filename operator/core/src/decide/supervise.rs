//! An attempt with a recorded pod.

use std::time::Duration;

use dalsegno_crds::{AgentRun, Cause, Reason, Summary};
use dalsegno_model::{AttemptState, Class, Deadline, Identity, NextStep, RunRecord};
use jiff::SignedDuration;

use super::finish::cancelled;
use super::plan::{Context, Plan};
use super::start;
use crate::avoided_nodes;
use crate::decision::Effect;
use crate::end::End;
use crate::evidence;
use crate::lost_sandbox;
use crate::observed::ObservedPod;
use crate::pod;
use crate::run_stage::RunStage;
use crate::slow_start;

/// Delay until a node that is not Ready is checked again.
const NODE_RECHECK: Duration = Duration::from_secs(2);
/// Delay until a pod that the watch does not show is requested again.
const UNWATCHED_RECHECK: Duration = Duration::from_secs(10);
/// Steps of a start that are less than this apart go into one status write.
const START_STEP_INTERVAL: SignedDuration = SignedDuration::from_secs(2);

pub(super) fn plan(ctx: &Context<'_>) -> Plan {
    let Context { observed, row, now, .. } = *ctx;
    let seen = row.attempt.pod_uid.as_deref().and_then(|uid| observed.pod(uid));
    let end = evidence::end_of(row, seen, observed.node, now);
    if row.cancel.is_some() {
        if let Some(plan) = end_cancelled(row, end) {
            return plan;
        }
    } else if let Some(end) = end.or_else(|| end_suspended(row)).or_else(|| end_at_limit(row)) {
        if end.cause == Cause::ProgressDeadline && row.unattended_wait().is_some() {
            return Plan::act(Effect::ParkUnattended { run: row.id, attempt: row.attempt.number });
        }
        if end.cause == Cause::StartFailed {
            return start::end_failed_start(ctx, end);
        }
        return Plan::end(row, end, NextStep::Reserve);
    }
    match seen {
        Some(seen) => supervise_pod(ctx, seen),
        // Never reached: an attempt whose pod was not seen has ended.
        None => Plan::wait(RunStage::Running),
    }
}

/// Ends a cancelled run, unless its attached worker still has time to acknowledge the cancel.
fn end_cancelled(row: &RunRecord, end: Option<End>) -> Option<Plan> {
    if row.attempt.state != AttemptState::Attached {
        return Some(cancelled(row, "before its worker attached"));
    }
    if let Some(end) = end {
        return Some(cancelled(row, &format!("and its worker ended: {}: {}", end.cause, end.message)));
    }
    row.is_expired(Deadline::Cancel).then(|| cancelled(row, "and its worker did not acknowledge the cancel"))
}

/// Ends the attempt of a suspended run, unless its attached worker still has time to park.
fn end_suspended(row: &RunRecord) -> Option<End> {
    row.suspend.as_ref()?;
    let message = if row.attempt.state != AttemptState::Attached {
        "the run was suspended before its worker attached"
    } else if row.is_expired(Deadline::Suspend) {
        "the run was suspended, and its worker did not park within suspend.graceSeconds"
    } else {
        return None;
    };
    Some(End::new(Cause::Suspended, Class::Neutral, message))
}

/// Ends the attempt of a run that has reached a limit, unless its attached worker still has time to exit.
fn end_at_limit(row: &RunRecord) -> Option<End> {
    let message = if row.attempt.state != AttemptState::Attached {
        "a limit of the run was reached before its worker attached"
    } else if row.is_expired(Deadline::Limit) {
        "a limit of the run was reached, and its worker did not exit within 30 s"
    } else {
        return None;
    };
    row.is_limit_reached().then(|| End::new(Cause::LimitReached, Class::Neutral, message))
}

/// Records what is new of a pod that has not ended. Its stage, and when to look again.
pub(super) fn supervise_pod(ctx: &Context<'_>, seen: &ObservedPod) -> Plan {
    let Context { run, observed, row, .. } = *ctx;
    let attempt = &row.attempt;
    if let Some(node) = pod::node(&seen.pod).filter(|_| attempt.scheduled_at.is_none()) {
        let node = node.to_owned();
        return Plan::act(Effect::RecordScheduled { run: row.id, attempt: attempt.number, node });
    }
    if let Some(identity) = unrecorded_identity(ctx, seen) {
        return Plan::act(Effect::RecordIdentity { run: row.id, attempt: attempt.number, identity });
    }
    let stage = RunStage::of_starting_pod(seen);
    let plan = match (attempt.state, stage, next_status_write(run, row)) {
        (AttemptState::Attached, ..) => Plan::wait(RunStage::Running),
        (_, RunStage::Starting(Reason::Starting, _), Some(left)) => {
            Plan::wait(RunStage::StartInProgress).requeue_when_left(left)
        }
        (_, starting, _) => Plan::wait(starting),
    };
    let plan = if row.cancel.is_none() { start::replace_pod(ctx, seen, plan) } else { plan };
    let plan = match slow_start::next_look(row, seen) {
        Some(left) => plan.requeue_at_latest(left),
        None => plan,
    };
    let plan = match lost_sandbox::patience_left(attempt, seen, observed.node, ctx.now) {
        Some(left) => plan.requeue_at_latest(left),
        None => plan,
    };
    // No event of the watch would wake the operator when the worker ends.
    let recheck = plan.requeue.map_or(UNWATCHED_RECHECK, |it| it.min(UNWATCHED_RECHECK));
    let plan = if seen.watched { plan } else { plan.requeue_after(recheck) };
    if let Some(until) = avoided_nodes::pending_until(&seen.pod) {
        return plan.requeue_when_left(until.duration_since(row.now));
    }
    // Without a lease the node is the only evidence, and no deadline poll wakes the operator.
    match observed.node {
        Some(node) if !node.ready && attempt.lease_renewed_at.is_none() && !row.is_external => {
            plan.requeue_after(NODE_RECHECK)
        }
        _ => plan,
    }
}

/// The identity of the pod's image, if it is known now and not recorded yet.
pub(super) fn unrecorded_identity(ctx: &Context<'_>, seen: &ObservedPod) -> Option<Identity> {
    let digest = pod::digest(&seen.pod).filter(|_| ctx.row.attempt.identity.is_none())?;
    ctx.check_image(seen, digest)
}

/// Remaining time until the steps of a start are written to the status, if the status shows this attempt already and
/// the last step was less than [`START_STEP_INTERVAL`] ago.
fn next_status_write(run: &AgentRun, row: &RunRecord) -> Option<SignedDuration> {
    let status = run.status.as_ref()?;
    let shows_start = status.attempt.as_ref().is_some_and(|it| it.number == row.attempt.number)
        && matches!(status.summary, Some(Summary::BackingOff | Summary::Pending | Summary::Starting));
    let last_step = row.attempt.created_at.max(row.attempt.scheduled_at)?;
    let left = START_STEP_INTERVAL - row.now.duration_since(last_step);
    (shows_start && left.is_positive()).then_some(left)
}
