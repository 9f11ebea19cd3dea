//! An attempt with a pod, of an agent that keeps its own checkpoints. The worker is stopped by deleting its pod, and the
//! attempt ends once that is confirmed.

use dalsegno_crds::Cause;
use dalsegno_model::{AttemptState, Class, NextStep, RunRecord, Verdict};

use super::finish::{cancelled, succeeded};
use super::plan::{Context, Plan, RECHECK_INTERVAL};
use super::start;
use super::supervise::{supervise_pod, unrecorded_identity};
use crate::avoided_nodes;
use crate::decision::Effect;
use crate::end::End;
use crate::external::{self, ConfirmedEnd, Silence};
use crate::lost_sandbox;
use crate::observed::ObservedPod;
use crate::pod;
use crate::run_stage::RunStage;

pub(super) fn plan(ctx: &Context<'_>) -> Plan {
    let Context { observed, row, .. } = *ctx;
    let seen = row.attempt.pod_uid.as_deref().and_then(|uid| observed.pod(uid));
    let has_started = seen.is_some_and(|it| pod::worker_has_started(&it.pod));
    if has_started && row.attempt.state == AttemptState::Created {
        return Plan::act(Effect::RecordStarted { run: row.id, attempt: row.attempt.number });
    }
    // A worker may have ended before anybody looked, and it may have written checkpoints.
    if let Some(identity) = seen.and_then(|it| unrecorded_identity(ctx, it)).filter(|_| has_started) {
        return Plan::act(Effect::RecordIdentity { run: row.id, attempt: row.attempt.number, identity });
    }
    match (external::confirmed_end(row, seen, observed.node), seen) {
        (Some(end), seen) => {
            let ran = seen.and_then(|it| external::worker_ran(it, observed.node));
            ended(ctx, seen, end).with_time_of_worker(ran)
        }
        (None, Some(seen)) => supervise(ctx, seen),
        // Never reached: an attempt whose pod was not seen has ended.
        (None, None) => Plan::wait(RunStage::Running),
    }
}

fn ended(ctx: &Context<'_>, seen: Option<&ObservedPod>, end: ConfirmedEnd) -> Plan {
    let row = ctx.row;
    // A version that may not resume the checkpoints has done no task, and its crashes are not the agent's.
    let end = match (refusal(row), end) {
        (Some(refusal), ConfirmedEnd::Succeeded) => refusal.with_exit_code(Some(0)),
        (Some(refusal), ConfirmedEnd::Ended(end)) => refusal.with_exit_code(end.exit_code),
        (None, ConfirmedEnd::Succeeded) => return succeeded(row),
        (None, ConfirmedEnd::Ended(end)) => end,
    };
    if row.cancel.is_some() {
        return cancelled(row, &format!("and its worker has ended: {}: {}", end.cause, end.message));
    }
    if end.cause == Cause::StartFailed {
        return start::end_failed_start(ctx, end);
    }
    let Some(seen) = seen.filter(|_| end.cause == Cause::Deleted) else {
        return Plan::end(row, end, NextStep::Reserve);
    };
    // The operator may have deleted the pod for a reason of its own.
    if let Some(why) = reason_to_stop(ctx, seen) {
        return Plan::end(row, why, NextStep::Reserve);
    }
    let replaced = start::replace_pod(ctx, seen, Plan::wait(RunStage::Running));
    if replaced.effects.is_empty() { Plan::end(row, end, NextStep::Reserve) } else { replaced }
}

fn supervise(ctx: &Context<'_>, seen: &ObservedPod) -> Plan {
    let plan = supervise_pod(ctx, seen);
    match plan.effects.first() {
        // The pod must go first: an attempt never ends before its pod.
        Some(Effect::EndAttempt { .. }) => return stop(ctx, seen),
        Some(_) => return plan,
        None => {}
    }
    if ctx.row.cancel.is_some() || reason_to_stop(ctx, seen).is_some() {
        return stop(ctx, seen);
    }
    // No gateway tells such a worker that its time is over.
    let plan = match ctx.row.active_time_end() {
        Some(end) => plan.requeue_at_latest(end.duration_since(ctx.row.now)),
        None => plan,
    };
    with_holds(ctx, seen, plan)
}

/// Deletes the pod, and waits until its end is confirmed.
fn stop(ctx: &Context<'_>, seen: &ObservedPod) -> Plan {
    let stage = match ctx.row.attempt.state {
        AttemptState::Attached => RunStage::Running,
        _ => RunStage::of_starting_pod(seen),
    };
    let plan = with_holds(ctx, seen, Plan::wait(stage));
    let is_deleted = seen.pod.metadata.deletion_timestamp.is_some();
    let delete = Effect::StopWorker { name: seen.name().to_owned(), uid: seen.uid().to_owned() };
    Plan { effects: if is_deleted { Vec::new() } else { vec![delete] }, ..plan }
}

/// The same plan, or a hold if a person must look at the pod or at the spec. The worker is left alone.
fn with_holds(ctx: &Context<'_>, seen: &ObservedPod, plan: Plan) -> Plan {
    let Context { run, observed, row, now, .. } = *ctx;
    let plan = match external::silence(seen, observed.node, now) {
        Silence::Long(hold) => return Plan::hold(hold).requeue_after(RECHECK_INTERVAL),
        Silence::Short(left) => plan.requeue_at_latest(left),
        Silence::None => plan,
    };
    match external::unsupported(run, observed, Some(row)) {
        Some(hold) => Plan { stage: RunStage::Held(hold), ..plan },
        None => plan,
    }
}

/// Why the operator stops the worker of a run that goes on later. A cancel ends the run instead.
fn reason_to_stop(ctx: &Context<'_>, seen: &ObservedPod) -> Option<End> {
    let Context { observed, row, now, .. } = *ctx;
    let neutral = |cause, message: &str| Some(End::new(cause, Class::Neutral, message));
    // What was refused is known of the attempt for good, so it comes before what may be lifted.
    if let Some(refusal) = refusal(row) {
        Some(refusal)
    } else if row.suspend.is_some() {
        neutral(Cause::Suspended, "the run was suspended, and its pod was deleted")
    } else if row.is_limit_reached() {
        neutral(Cause::LimitReached, "a limit of the run was reached, and its pod was deleted")
    } else if avoided_nodes::pending_until(&seen.pod).is_some_and(|until| until <= row.now) {
        neutral(Cause::NoOtherNode, avoided_nodes::NO_OTHER_NODE)
    } else {
        lost_sandbox::end_of(&row.attempt, seen, observed.node, now)
    }
}

/// The end of an attempt whose version was refused, however its worker has ended.
fn refusal(row: &RunRecord) -> Option<End> {
    let identity = row.attempt.identity.as_ref().filter(|it| it.verdict == Verdict::Refused)?;
    Some(End::new(Cause::VersionIncompatible, Class::Neutral, &identity.remark))
}
