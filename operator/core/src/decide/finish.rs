//! The end of a run: how the operator ends one, and what to do after the end.

use dalsegno_crds::{Cause, Reason};
use dalsegno_model::{Class, NewFinish, NextStep, RunOutcome, RunRecord};
use dalsegno_protocol::Limits;
use jiff::SignedDuration;

use super::plan::{Context, Plan};
use crate::decision::Effect;
use crate::end::End;
use crate::orphaned_pods;
use crate::recovery::Hold;
use crate::run_stage::RunStage;
use crate::text;

/// The run has ended. Its worker has some time to exit on its own. After its time to live the AgentRun is deleted.
pub(super) fn finished_run(ctx: &Context<'_>) -> Plan {
    let Context { run, observed, row, settings, .. } = *ctx;
    let plan = Plan::wait(RunStage::Terminal);
    if let Some(left) = observed.pods.iter().find_map(|it| orphaned_pods::exit_grace(row, it)) {
        return plan.requeue_when_left(left);
    }
    let Some((finish, ttl)) = row.finish.as_ref().zip(settings.ttl_after_finished) else { return plan };
    let left = ttl - row.now.duration_since(finish.at);
    // The end must be in the status first, so that clients that wait for the run can see it.
    let status_shows_end = run.status.as_ref().is_some_and(|status| status.completion_time.is_some());
    if left.is_positive() || !status_shows_end {
        return plan.requeue_when_left(left.max(SignedDuration::ZERO));
    }
    Plan { effects: vec![Effect::DeleteRun], ..plan }
}

/// Ends a cancelled run.
pub(super) fn cancelled(row: &RunRecord, when: &str) -> Plan {
    let end = End::new(Cause::Cancelled, Class::Neutral, format!("the run was cancelled {when}"));
    finish(row, RunOutcome::Cancelled, Reason::Cancelled, end)
}

/// Ends a run whose worker keeps its own checkpoints and has done its task.
pub(super) fn succeeded(row: &RunRecord) -> Plan {
    let end = End::new(Cause::Finished, Class::Neutral, "the worker exited with 0").with_exit_code(Some(0));
    finish(row, RunOutcome::Succeeded, Reason::Completed, end)
}

/// Ends a run whose recovery budget is exhausted.
pub(super) fn failed(row: &RunRecord, hold: Hold) -> Plan {
    finish(row, RunOutcome::Failed, hold.reason, End::new(Cause::Finished, Class::Neutral, hold.message))
}

/// Ends the run, and with it the current attempt.
fn finish(row: &RunRecord, outcome: RunOutcome, reason: Reason, end: End) -> Plan {
    let reason = reason.as_str().to_owned();
    let message = text::keep_start(&end.message, Limits::FINISH_MESSAGE_BYTES);
    let finish = NewFinish { outcome, reason, message, output: None };
    Plan::end(row, end, NextStep::Finish(finish))
}
