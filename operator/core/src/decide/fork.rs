//! A run that begins as a fork gets no pod before everything is copied.

use std::time::Duration;

use dalsegno_crds::Reason;
use dalsegno_model::ForkState;

use super::plan::{Context, Plan, RECHECK_INTERVAL};
use crate::decision::Effect;
use crate::fork;
use crate::observed::ForkProgress;
use crate::recovery::Hold;
use crate::run_stage::RunStage;

/// Pause between two reconciles that copy: other runs get their turn.
const PAUSE: Duration = Duration::from_millis(50);

/// What is left to do. `None`: the run is no fork, or it is copied.
pub(super) fn plan(ctx: &Context<'_>) -> Option<Plan> {
    let Context { run, observed, row, .. } = *ctx;
    row.fork.as_ref().filter(|fork| fork.state != ForkState::Done)?;
    let Some(request) = fork::requested(run) else {
        let message = "the run is a fork that has not begun, and spec.resumeFrom is not set";
        return Some(Plan::hold(Hold::new(Reason::ForkRefused, message)).requeue_after(RECHECK_INTERVAL));
    };
    Some(match &observed.fork {
        None => Plan::act(Effect::Fork(row.id, request)),
        Some(ForkProgress::Copying) => Plan::wait(RunStage::Forking).requeue_after(PAUSE),
        Some(ForkProgress::Refused(refusal)) => {
            Plan::hold(fork::hold(refusal)).requeue_after(RECHECK_INTERVAL)
        }
    })
}
