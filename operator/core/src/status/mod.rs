//! The status of an AgentRun and its Kubernetes events. They describe the run's stage and the store's row for people.

mod builder;
mod conditions;
pub(crate) mod events;
mod mirror;

use dalsegno_crds::{AgentRun, AgentRunStatus, SuspendStatus, names};
use dalsegno_model::{RequestedBy, RunRecord};

use crate::attribution::{self, Request};
use crate::run_stage::{RunStage, current_suspend};
use crate::settings::needs_four_eyes;

pub(crate) use conditions::StatusInput;

/// Computes the new status.
pub(crate) fn of(input: &StatusInput<'_>) -> AgentRunStatus {
    let StatusInput { run, row, observed, stage, .. } = *input;
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
        suspend: row.map_or_else(|| old.suspend.clone(), |row| suspend(run, row)),
        fork: row.map_or_else(|| old.fork.clone(), |row| mirror::fork(row, input.observed.fork.as_ref())),
        waiting: row.map_or_else(|| old.waiting.clone(), mirror::waiting),
        conditions: conditions::of(input),
        summary: Some(summary),
        reason: Some(reason),
        four_eyes: needs_four_eyes(run, &observed.agent).then_some(true),
        agent: Some(agent_ref.unwrap_or(names::INLINE_AGENT).to_owned()),
        observed_generation: run.metadata.generation,
        ..old
    };
    if let Some(row) = row {
        mirror::copy_row(row, stage, &mut status);
    }
    status
}

/// Who suspended the run, if it is suspended. Later changes of the AgentRun do not change who suspended it, and why.
fn suspend(run: &AgentRun, row: &RunRecord) -> Option<SuspendStatus> {
    let since = Some(mirror::time(current_suspend(row)?.requested_at));
    let old = run.status.as_ref().and_then(|it| it.suspend.as_ref()).filter(|it| it.since == since);
    Some(old.cloned().unwrap_or_else(|| {
        let RequestedBy { manager, user, reason } =
            attribution::of(&run.metadata, Request::OperatingMode, attribution::observed(run));
        SuspendStatus { since, by: user.or(manager), reason }
    }))
}
