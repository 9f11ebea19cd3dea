//! What the operator does, in words.

use dalsegno_model::NextStep;

use crate::decision::Effect;

/// Describes an effect for people.
pub fn describe(effect: &Effect) -> String {
    match effect {
        Effect::CreateRun { .. } => "create the run in the store".to_owned(),
        Effect::EndAttempt { ending, then, .. } => {
            let then = match then {
                NextStep::Reserve => "and reserve the next one".to_owned(),
                NextStep::Nothing => "and reserve no other".to_owned(),
                NextStep::Finish(finish) => {
                    format!("and end the run: {:?}, {}", finish.outcome, finish.reason)
                }
            };
            let message =
                if ending.message.is_empty() { String::new() } else { format!(": {}", ending.message) };
            format!("end attempt {} ({}, {:?}{message}) {then}", ending.attempt, ending.cause, ending.class)
        }
        Effect::ForgiveEnd(_, it) => format!("take back the charge of attempt {}: {}", it.attempt, it.cause),
        Effect::ReadTemplate(_) => "read the template that wrote the checkpoint".to_owned(),
        Effect::ReadCallsToSettle(_) => "read the calls that a person must settle".to_owned(),
        Effect::VerifyHead(_) => "verify that the state at the checkpoint can be rebuilt".to_owned(),
        Effect::Rewind(_, rewind) => format!("go back to {}", rewind.to),
        Effect::RequestRewind(_, request) => format!("go back to the end of turn {}", request.to_turn),
        Effect::StepBack(..) => "go back one turn before the last try".to_owned(),
        Effect::Fork(..) => "copy a part of the other run".to_owned(),
        Effect::CreateWorker { attempt, .. } => format!("create the pod of attempt {attempt}"),
        Effect::RecordPod { attempt, pod, .. } => format!("record the pod {} of attempt {attempt}", pod.name),
        Effect::RecordScheduled { attempt, node, .. } => {
            format!("record the node {node} of attempt {attempt}")
        }
        Effect::RecordStarted { attempt, .. } => {
            format!("record that the worker of attempt {attempt} has started")
        }
        Effect::RecordIdentity { identity, .. } => {
            format!("record the version {}: {:?}", identity.agent_version, identity.verdict)
        }
        Effect::RequestCancel(_) => "record the cancel".to_owned(),
        Effect::Suspend(_) => "record the suspend".to_owned(),
        Effect::Resume(_) => "record that the suspend is lifted".to_owned(),
        Effect::SettleTime(_) => "let the store's clock answer what is due".to_owned(),
        Effect::ParkUnattended { attempt, .. } => format!("park attempt {attempt} on its open waits"),
        Effect::ResetBudget { to, .. } => format!("grant a fresh budget, generation {to}"),
        Effect::SetDeadlines(..) => "take over the deadlines".to_owned(),
        Effect::SetLimits(..) => "take over the limits".to_owned(),
        Effect::SetRetention(..) => "take over the retention settings".to_owned(),
        Effect::Approval(effect) => format!("do for an AgentApproval: {}", effect.name()),
        Effect::StopWorker { name, .. } => format!("delete the pod {name}"),
        Effect::ReleasePod { name, .. } => format!("let the API server remove the pod {name}"),
        Effect::DeleteRun => "delete the AgentRun".to_owned(),
        Effect::MarkDeleted => "close the run in the store".to_owned(),
    }
}
