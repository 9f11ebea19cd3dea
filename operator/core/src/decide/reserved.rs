//! A reserved attempt: it has a number and no recorded pod.

use dalsegno_crds::{Cause, Reason, names};
use dalsegno_model::{Class, NextStep, PodRecord, RunRecord};
use jiff::Timestamp;

use super::finish::{cancelled, failed};
use super::fork;
use super::plan::{Context, Plan, RECHECK_INTERVAL, missing_agent};
use crate::decision::Effect;
use crate::end::End;
use crate::external::{self, Silence};
use crate::head_check::{self, HeadCheck};
use crate::late_node_loss;
use crate::observed::{NameHolder, ObservedPod};
use crate::orphaned_pods;
use crate::pod::{self, annotation};
use crate::recovery::{self, Hold};
use crate::rewind;
use crate::run_stage::RunStage;
use crate::temporary_holds::{self, StartTemplate};
use crate::version::{self, Choice, ChosenTemplate};
use crate::worker;

pub(super) fn plan(ctx: &Context<'_>) -> Plan {
    let Context { run, observed, row, settings, now } = *ctx;
    // An existing pod of this attempt is recorded first, even if it has ended. The next decision judges it.
    if let Some(seen) = observed.own_pods(run).find(|it| orphaned_pods::is_current(row, it)) {
        return Plan::act(record_pod(ctx, seen));
    }
    if let Some(other) = orphaned_pods::of_no_attempt(run, row, observed) {
        return wait_for(other, row, now);
    }
    if row.cancel.is_some() {
        return cancelled(row, "before it had a worker");
    }
    if let Some(hold) = external::unsupported(run, observed, Some(row)) {
        return Plan::hold(hold).requeue_after(RECHECK_INTERVAL);
    }
    if let Some(plan) = fork::plan(ctx) {
        return plan;
    }
    // The definition's defaults may set the limits, so no limit is checked without them.
    let Some(agent) = observed.agent() else {
        return Plan::hold(missing_agent(run, observed)).requeue_after(RECHECK_INTERVAL);
    };
    let is_suspended = row.suspend.is_some();
    if let Some(hold) = temporary_holds::find_hold(row, settings, &worker::input_text(run)) {
        let verdict = late_node_loss::last_look(row, observed).filter(|_| hold.is_by_charges());
        return match (hold.reason, verdict) {
            (_, Some(_)) if is_suspended => Plan::wait(RunStage::Suspended),
            (_, Some(_)) if row.park.is_some() => Plan::wait(RunStage::Waiting),
            (_, Some(at)) => Plan::wait(RunStage::BackingOff(at)),
            _ if hold.is_final(settings) => failed(row, hold),
            (Reason::EffectUnknown | Reason::KeyRefused, _) if observed.calls_to_settle.is_none() => {
                Plan::act(Effect::ReadCallsToSettle(row.id))
            }
            _ => Plan::hold_or_wait(row, hold),
        };
    }
    let template = match version::choose_template(row, agent, settings.on_mismatch, &observed.templates) {
        Choice::Use(template) => template,
        Choice::NeedsTemplate(revision) => return Plan::act(Effect::ReadTemplate(revision)),
        Choice::Blocked(mismatch) => return Plan::hold(Hold::new(Reason::VersionBlocked, mismatch)),
    };
    let start = StartTemplate { revision: &template.document.hash(), pinned: template.pinned };
    if let Some(hold) = temporary_holds::find_start_hold(row, settings, start) {
        return Plan::hold_or_wait(row, hold);
    }
    // What only a start finds out, such as a damaged checkpoint, is found after the suspend is lifted.
    if is_suspended {
        return Plan::wait(RunStage::Suspended);
    }
    // An answer wakes the run through the store: nothing is looked at meanwhile.
    if row.park.is_some() {
        return Plan::wait(RunStage::Waiting);
    }
    let next = recovery::next_attempt_time(row, settings).max(row.slowed_until());
    if let Some(at) = next.filter(|at| *at > row.now) {
        return Plan::wait(RunStage::BackingOff(at)).requeue_when_left(at.duration_since(row.now));
    }
    if let Some(position) = observed.queue_position.filter(|_| has_had_no_pod(row)) {
        return Plan::wait(RunStage::Queued(position));
    }
    if let Some(step) = rewind::step_back(row, settings).filter(|_| !observed.step_back_refused) {
        return Plan::act(Effect::StepBack(row.id, step));
    }
    match head_check::check(row, observed.head.as_ref(), settings.on_corrupt_checkpoint) {
        HeadCheck::Valid => create_pod(ctx, &template),
        HeadCheck::Unverified => Plan::act(Effect::VerifyHead(Box::new(row.clone()))),
        HeadCheck::Hold(hold) => Plan::hold(hold),
        HeadCheck::RewindTo(rewind) => Plan::act(Effect::Rewind(row.id, rewind)),
    }
}

/// Waits for the end of a pod that belongs to no attempt. Two workers of this run must never run at once. The pod is
/// deleted with the other orphaned pods.
fn wait_for(other: &ObservedPod, row: &RunRecord, now: Timestamp) -> Plan {
    let message = format!("the pod {} must end first: it belongs to no attempt of the run", other.name());
    let reason = if row.cancel.is_some() { Reason::Cancelling } else { Reason::Starting };
    let plan = Plan::wait(RunStage::Starting(reason, message));
    match external::silence(other, None, now) {
        Silence::Long(hold) => Plan::hold(hold).requeue_after(RECHECK_INTERVAL),
        Silence::Short(left) => plan.requeue_when_left(left),
        Silence::None => plan.requeue_after(RECHECK_INTERVAL),
    }
}

/// Whether no attempt of the run has had a pod.
fn has_had_no_pod(row: &RunRecord) -> bool {
    // The first boundary of a fork is of an attempt of another run.
    row.head.as_ref().is_none_or(|head| head.attempt == 0) && row.past.iter().all(|it| it.pod_uid.is_none())
}

fn create_pod(ctx: &Context<'_>, template: &ChosenTemplate) -> Plan {
    let Context { run, observed, row, now, .. } = *ctx;
    if let Some(holder) = observed.name_taken {
        let (cause, owner) = match holder {
            NameHolder::DeletedRun => (Cause::NameInUse, "a deleted run of this name"),
            NameHolder::AnotherOwner => (Cause::NameTaken, "another owner"),
        };
        let name = worker::pod_name(&row.name, row.attempt.number);
        let message = format!("a pod of {owner} has the name {name}");
        return Plan::end(row, End::new(cause, Class::Neutral, message), NextStep::Reserve);
    }
    let revision = template.document.hash();
    if let Some(error) = observed.pod_create_error.as_ref().filter(|it| it.revision == revision)
        && error.retry_at() > now
    {
        let stage = RunStage::of_create_error(error, run.status.as_ref());
        return Plan::wait(stage).requeue_when_left(error.retry_at().duration_since(now));
    }
    if let Some(quota) = observed.quota.as_ref().filter(|it| it.retry_at > now) {
        let plan = Plan::wait(RunStage::Starting(Reason::QuotaExceeded, quota.message.clone()));
        let left = quota.retry_at.duration_since(now);
        return if quota.is_next { plan.requeue_when_left(left) } else { plan };
    }
    match worker::build_pod(run, row, template, observed) {
        Ok(pod) => Plan::act(Effect::CreateWorker {
            run: row.id,
            attempt: row.attempt.number,
            pod,
            revision,
            document: template.document.text(),
        }),
        Err(error) => Plan::hold(Hold::new(Reason::TemplateInvalid, error.to_string())),
    }
}

fn record_pod(ctx: &Context<'_>, seen: &ObservedPod) -> Effect {
    // A digest in the image's name is certain, so the image can be checked before the kubelet reports it.
    let digest = pod::named_digest(&seen.pod);
    Effect::RecordPod {
        run: ctx.row.id,
        attempt: ctx.row.attempt.number,
        pod: PodRecord {
            uid: seen.uid().to_owned(),
            name: seen.name().to_owned(),
            revision: annotation(&seen.pod, names::ANNOTATION_REVISION).unwrap_or_default().to_owned(),
            identity: digest.and_then(|digest| ctx.check_image(seen, digest)),
        },
    }
}
