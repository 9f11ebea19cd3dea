//! The status of an AgentRun and its Kubernetes events. They describe the run's stage and the store's row for people.

mod builder;
mod conditions;
pub(crate) mod events;
mod mirror;

use dalsegno_crds::{AgentRunStatus, names};

use crate::run_stage::RunStage;

pub(crate) use conditions::StatusInput;

/// Computes the new status.
pub(crate) fn of(input: &StatusInput<'_>) -> AgentRunStatus {
    let StatusInput { run, row, stage, .. } = *input;
    let old = run.status.clone().unwrap_or_default();
    if stage.keeps_status(&old) {
        return old;
    }
    let (summary, reason) = stage.summary_and_reason(row, &old);
    let agent_ref = run.spec.agent_ref.as_ref().map(|it| it.name.as_str());
    let mut status = AgentRunStatus {
        queue_position: match stage {
            RunStage::Queued(position) => Some(*position),
            _ => None,
        },
        conditions: conditions::of(input),
        summary: Some(summary),
        reason: Some(reason),
        agent: Some(agent_ref.unwrap_or(names::INLINE_AGENT).to_owned()),
        observed_generation: run.metadata.generation,
        ..old
    };
    if let Some(row) = row {
        mirror::copy_row(row, stage, &mut status);
    }
    status
}
