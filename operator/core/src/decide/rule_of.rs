//! The name of the rule that a plan follows. Invariant: a plan has one effect, or it has none and a stage.

use dalsegno_crds::Cause;
use dalsegno_model::{AttemptState, NextStep, RunOutcome, RunRecord};

use super::plan::Plan;
use crate::decision::Effect;
use crate::rule::Rule;
use crate::run_stage::RunStage;

/// The rule of a plan.
pub(super) fn rule_of(plan: &Plan, row: Option<&RunRecord>) -> Rule {
    match plan.effects.first() {
        Some(effect) => of_effect(effect, row),
        None => of_stage(&plan.stage),
    }
}

fn of_effect(effect: &Effect, row: Option<&RunRecord>) -> Rule {
    match effect {
        Effect::CreateRun { .. } => Rule::RunCreated,
        Effect::EndAttempt { ending, then, .. } => match then {
            NextStep::Finish(finish) if finish.outcome == RunOutcome::Cancelled => Rule::CancelCompleted,
            NextStep::Finish(finish) if finish.outcome == RunOutcome::Succeeded => Rule::WorkerCompleted,
            NextStep::Finish(_) => Rule::RecoveryExhausted,
            NextStep::Reserve | NextStep::Nothing => match row.map(|row| row.attempt.state) {
                Some(AttemptState::Ended) => Rule::SuccessorReserved,
                Some(AttemptState::Reserved)
                    if matches!(ending.cause, Cause::NameTaken | Cause::NameInUse) =>
                {
                    Rule::NameTaken
                }
                Some(AttemptState::Reserved | AttemptState::Created | AttemptState::Attached) | None => {
                    Rule::AttemptEnded
                }
            },
        },
        Effect::ForgiveEnd(..) => Rule::ChargeTakenBack,
        Effect::ReadTemplate(_) => Rule::TemplateRead,
        // They are read to be named in the message of the hold.
        Effect::ReadCallsToSettle(_) => Rule::Held,
        Effect::VerifyHead(_) => Rule::HeadVerified,
        Effect::Rewind(..) => Rule::HeadRewound,
        Effect::RequestRewind(..) => Rule::RewindRequested,
        Effect::StepBack(..) => Rule::SteppedBack,
        Effect::Fork(..) => Rule::ForkCopied,
        Effect::CreateWorker { .. } => Rule::PodCreated,
        Effect::RecordPod { .. } => Rule::PodFound,
        Effect::RecordScheduled { .. } => Rule::NodeRecorded,
        Effect::RecordStarted { .. } => Rule::StartRecorded,
        Effect::RecordIdentity { .. } => Rule::ImageRecorded,
        Effect::RequestCancel(_) => Rule::CancelRecorded,
        Effect::Suspend(_) => Rule::SuspendRecorded,
        Effect::Resume(_) => Rule::SuspendLifted,
        Effect::SettleTime(_) => Rule::TimeHasCome,
        Effect::ParkUnattended { .. } => Rule::WaitUnattended,
        Effect::ResetBudget { .. } => Rule::BudgetGranted,
        Effect::SetDeadlines(..) => Rule::DeadlinesChanged,
        Effect::SetLimits(..) => Rule::LimitsChanged,
        Effect::SetRetention(..) => Rule::RetentionChanged,
        Effect::Approval(_) => Rule::ApprovalFirst,
        Effect::DeleteRun => Rule::TimeToLiveOver,
        Effect::StopWorker { .. } => Rule::WorkerStopped,
        // No plan begins with them, so this is never read: a pod is released beside a plan, whose rule counts, also of a run
        // that goes on; and a row is closed with the deletion of the AgentRun.
        Effect::ReleasePod { .. } | Effect::MarkDeleted => Rule::RunEnded,
    }
}

fn of_stage(stage: &RunStage) -> Rule {
    match stage {
        RunStage::StoreUnavailable(_) => Rule::StoreUnavailable,
        RunStage::Held(_) => Rule::Held,
        RunStage::Suspended => Rule::Suspended,
        RunStage::Waiting => Rule::Waiting,
        RunStage::Queued(_) => Rule::Queued,
        RunStage::Forking => Rule::ForkCopied,
        RunStage::BackingOff(_) => Rule::BackingOff,
        RunStage::Starting(..) | RunStage::StartInProgress => Rule::Starting,
        RunStage::Running | RunStage::EffectsPending => Rule::Running,
        RunStage::Terminal => Rule::RunEnded,
        RunStage::OrphanedTerminal => Rule::EndedElsewhere,
    }
}
