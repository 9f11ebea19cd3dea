//! Decides the state of a run and what to do next. Read it from the top: the first rule that applies decides.

mod external;
mod finish;
mod fork;
mod plan;
mod reserved;
mod rule_of;
mod start;
mod supervise;

use std::time::Duration;

use dalsegno_crds::{
    Agent, AgentRun, ConditionStatus, ConditionType, OperatingMode, find_condition, has_status,
};
use dalsegno_model::{AttemptState, HoldNotice, NextStep, ObjectHold, ObjectName, RunRecord};
use jiff::Timestamp;

use crate::approvals;
use crate::decision::{Announcement, Decision, Effect};
use crate::end::recorded_end;
use crate::external::unsupported;
use crate::late_node_loss;
use crate::observed::Observed;
use crate::orphaned_pods;
use crate::recovery::Hold;
use crate::rewind;
use crate::run_stage::{RunStage, ready_until};
use crate::settings::{Settings, needs_four_eyes};
use crate::status::{self, StatusInput, events};
use crate::store_consistency::{self, StoreConsistency};

pub use plan::RECHECK_INTERVAL;
use plan::{Context, Plan, STORE_RETRY, WAKE_MARGIN, missing_agent};

/// Decides. Pure and total: the same run, observation and time give the same decision.
pub fn decide(run: &AgentRun, observed: &Observed, now: Timestamp) -> Decision {
    let consistency = store_consistency::check(run, observed);
    let row = consistency.row();
    let approvals = plan_approvals(run, observed, &consistency, now);
    // Both kinds of plans may change the row. The next decision sees the results of the first.
    let plan = match approvals.effects.is_empty() {
        true => plan(run, observed, &consistency, now),
        false => Plan { effects: approvals.effects, stage: RunStage::EffectsPending, requeue: None },
    };
    let rule = rule_of::rule_of(&plan, row);
    let Plan { mut effects, stage, requeue } = plan;
    if let Some(row) = row.filter(|_| stage != RunStage::EffectsPending) {
        // The definition may say how many pods to keep. Without it, no ended pod is deleted.
        let keep = match observed.agent() {
            Some(_) => Settings::of(run, &observed.agent).keep_pods,
            None => usize::MAX,
        };
        effects.extend(orphaned_pods::deletions(run, row, observed, keep));
        effects.extend(orphaned_pods::releases(run, row, observed));
    }
    if matches!(consistency, StoreConsistency::OrphanedTerminal) {
        effects.extend(orphaned_pods::releases_of_ended(run, observed));
    }
    let pod = row.and_then(|row| observed.pod(row.attempt.pod_uid.as_deref()?));
    let status = status::of(&StatusInput { run, row, observed, pod, stage: &stage, now });
    let mut events = events::of(run, &status);
    events.extend(approvals.events);
    let announcement = match &consistency {
        StoreConsistency::Row(row) => announcement(row, &stage),
        StoreConsistency::Hold(hold) => announcement_without_row(run, hold),
        StoreConsistency::Unknown(_) | StoreConsistency::NewRun | StoreConsistency::OrphanedTerminal => None,
    };
    let not_ready = row.filter(|_| stage.is_recovering()).and_then(until_not_ready);
    let last_look = row.and_then(|row| until_last_look(row, observed));
    let exit = row.and_then(|row| until_parked_pod_is_deleted(row, observed));
    let timer = row.and_then(until_next_timer);
    let others = [not_ready, last_look, exit, timer, approvals.requeue].into_iter().flatten();
    let requeue = requeue.into_iter().chain(others).min();
    Decision { rule, effects, status, announcement, events, requeue }
}

/// The hold of the run, unless it was announced. A hold that ends by itself and comes back is one hold, until the run has
/// made progress; another hold has another epoch, because an attempt has ended in between.
fn announcement(row: &RunRecord, stage: &RunStage) -> Option<Announcement> {
    let RunStage::Held(hold) = stage else { return None };
    let since = match hold.retry_at {
        Some(_) => format!("budget {}, turn {}", row.observed_reset_generation, row.highest_turn),
        None => format!("epoch {}", row.epoch),
    };
    let notice = HoldNotice { key: format!("{}, {since}", hold.reason), attempt: row.attempt.number };
    (row.announced.as_ref() != Some(&notice.key)).then_some(Announcement::Run(row.id, notice))
}

/// The hold of a run whose row cannot be used, unless the status shows it: then it was announced before.
fn announcement_without_row(run: &AgentRun, hold: &Hold) -> Option<Announcement> {
    let conditions = run.status.as_ref().map(|it| it.conditions.as_slice()).unwrap_or_default();
    let held = find_condition(conditions, ConditionType::Held);
    if held.is_some_and(|it| has_status(it, ConditionStatus::True) && it.reason == hold.reason.as_str()) {
        return None;
    }
    // A later hold for the same reason comes after another change of the condition.
    let since = held.map(|it| it.last_transition_time.0.to_string()).unwrap_or_default();
    let object = ObjectName {
        namespace: run.metadata.namespace.clone().unwrap_or_default(),
        name: run.metadata.name.clone().unwrap_or_default(),
        uid: run.metadata.uid.clone().unwrap_or_default(),
    };
    Some(Announcement::Object(ObjectHold { object, key: format!("{}, after {since}", hold.reason) }))
}

/// What to do about the run's approvals. Without the definition it is not known whether they need four eyes.
fn plan_approvals(
    run: &AgentRun,
    observed: &Observed,
    consistency: &StoreConsistency<'_>,
    now: Timestamp,
) -> approvals::ApprovalPlan {
    match (consistency, &observed.approvals) {
        (StoreConsistency::Row(row), Some(approvals)) if observed.agent().is_some() => {
            let four_eyes = needs_four_eyes(run, &observed.agent);
            approvals::plan(&approvals::Facts { run, row, approvals, four_eyes, now })
        }
        (StoreConsistency::Row(_) | StoreConsistency::Unknown(_) | StoreConsistency::NewRun, _)
        | (StoreConsistency::Hold(_) | StoreConsistency::OrphanedTerminal, _) => Default::default(),
    }
}

/// Delay until the next time of a wait, if the deadline poll does not report it. The poll reports a run by the first of its
/// times, and the deadline of an approval may have passed and stay the first.
fn until_next_timer(row: &RunRecord) -> Option<Duration> {
    row.wake_at.filter(|at| *at <= row.now && row.finish.is_none())?;
    let left = row.next_timer()?.duration_since(row.now);
    Duration::try_from(left + WAKE_MARGIN).ok()
}

/// Delay until a pod is deleted whose worker has parked and does not exit.
fn until_parked_pod_is_deleted(row: &RunRecord, observed: &Observed) -> Option<Duration> {
    let left = observed.pods.iter().filter_map(|it| orphaned_pods::parked_exit_grace(row, it)).min()?;
    Duration::try_from(left + WAKE_MARGIN).ok()
}

/// Delay until the nodes of past attempts are looked at for the last time.
fn until_last_look(row: &RunRecord, observed: &Observed) -> Option<Duration> {
    let left =
        late_node_loss::last_look(row, observed).filter(|_| row.finish.is_none())?.duration_since(row.now);
    Duration::try_from(left + WAKE_MARGIN).ok()
}

/// Delay until a run without a worker is no longer Ready, if it still is.
fn until_not_ready(row: &RunRecord) -> Option<Duration> {
    let left = ready_until(row)?.duration_since(row.now);
    left.is_positive().then(|| Duration::try_from(left + WAKE_MARGIN).ok())?
}

fn plan(run: &AgentRun, observed: &Observed, consistency: &StoreConsistency<'_>, now: Timestamp) -> Plan {
    match consistency {
        StoreConsistency::Unknown(error) => {
            Plan::wait(RunStage::StoreUnavailable((*error).to_owned())).requeue_after(STORE_RETRY)
        }
        StoreConsistency::NewRun => create_run(run, observed),
        StoreConsistency::Row(row) => {
            let settings = Settings::of(run, &observed.agent);
            continue_run(&Context { run, observed, row, settings: &settings, now })
        }
        StoreConsistency::Hold(hold) => Plan::hold(hold.clone()).requeue_after(RECHECK_INTERVAL),
        StoreConsistency::OrphanedTerminal => {
            Plan::wait(RunStage::OrphanedTerminal).requeue_after(RECHECK_INTERVAL)
        }
    }
}

/// The store does not have the run. A cancelled run is created too, so that it can end.
fn create_run(run: &AgentRun, observed: &Observed) -> Plan {
    if observed.agent().is_none() && !is_cancelled(run) {
        return Plan::hold(missing_agent(run, observed)).requeue_after(RECHECK_INTERVAL);
    }
    if let Some(hold) = unsupported(run, observed, None).filter(|_| !is_cancelled(run)) {
        return Plan::hold(hold).requeue_after(RECHECK_INTERVAL);
    }
    let settings = Settings::of(run, &observed.agent);
    Plan::act(Effect::CreateRun {
        reset_generation: reset_generation(run).unwrap_or_default(),
        rewind_generation: run.spec.rewind.as_ref().map_or(0, |it| it.generation),
        is_fork: run.spec.resume_from.is_some(),
        is_external: observed.agent().is_some_and(Agent::is_external),
        deadlines: settings.deadlines,
        on_prior: settings.on_prior,
    })
}

/// The store has the run. Changes of the spec come first.
fn continue_run(ctx: &Context<'_>) -> Plan {
    let Context { run, observed, row, settings, .. } = *ctx;
    // Without the definition its defaults are not known, so no setting is changed.
    let has_agent = observed.agent().is_some();
    if row.retention != settings.retention && has_agent {
        return Plan::act(Effect::SetRetention(row.id, settings.retention));
    }
    if row.finish.is_some() {
        return finish::finished_run(ctx);
    }
    if let Some(to) = reset_generation(run).filter(|to| *to > row.observed_reset_generation) {
        return Plan::act(Effect::ResetBudget { run: row.id, observed: row.observed_reset_generation, to });
    }
    // A definition that was created again with another checkpointing does not change how this run is supervised.
    let is_as_begun = observed.agent().is_some_and(|agent| agent.is_external() == row.is_external);
    if row.deadlines != settings.deadlines && is_as_begun {
        return Plan::act(Effect::SetDeadlines(row.id, settings.deadlines));
    }
    if row.limits != settings.limits && has_agent {
        return Plan::act(Effect::SetLimits(row.id, settings.limits));
    }
    if let Some(forgiveness) = late_node_loss::forgiveness(row, observed) {
        return Plan::act(Effect::ForgiveEnd(row.id, forgiveness));
    }
    if is_cancelled(run) && row.cancel.is_none() {
        return Plan::act(Effect::RequestCancel(row.id));
    }
    // A cancel is final, so a cancelled run is neither suspended nor resumed.
    if row.cancel.is_none() {
        match (is_suspended(run), &row.suspend) {
            (true, None) => return Plan::act(Effect::Suspend(row.id)),
            (false, Some(_)) => return Plan::act(Effect::Resume(row.id)),
            (true, Some(_)) | (false, None) => {}
        }
    }
    // A cancel is final: the run does not go back.
    if let Some(request) = rewind::requested(run, row).filter(|_| row.cancel.is_none()) {
        return Plan::act(Effect::RequestRewind(row.id, request));
    }
    if row.needs_clock() {
        return Plan::act(Effect::SettleTime(row.id));
    }
    match row.attempt.state {
        AttemptState::Reserved => reserved::plan(ctx),
        AttemptState::Created | AttemptState::Attached if row.is_external => external::plan(ctx),
        AttemptState::Created | AttemptState::Attached => supervise::plan(ctx),
        AttemptState::Ended => reserve_successor(row),
    }
}

/// The attempt has ended and was counted, but its successor was not reserved.
fn reserve_successor(row: &RunRecord) -> Plan {
    Plan::act(Effect::EndAttempt { run: row.id, ending: recorded_end(&row.attempt), then: NextStep::Reserve })
}

fn is_cancelled(run: &AgentRun) -> bool {
    run.spec.operating_mode == Some(OperatingMode::Cancelled)
}

fn is_suspended(run: &AgentRun) -> bool {
    run.spec.operating_mode == Some(OperatingMode::Suspended)
}

fn reset_generation(run: &AgentRun) -> Option<i64> {
    run.spec.recovery.as_ref()?.reset_generation
}
