//! Records the node of the attempt's pod: the start deadline begins.

use super::{Change, Decision, Rows, Transition};
use crate::db_error::DbResult;
use dalsegno_model::{AttemptState, Recorded};

/// [`dalsegno_model::Store::record_scheduled`].
#[derive(Clone, Debug)]
pub(crate) struct RecordScheduled {
    pub attempt: i32,
    pub node: String,
}

impl Transition for RecordScheduled {
    type Answer = Recorded;
    const OPERATION: &'static str = "recording a pod's node";

    fn decide(&self, rows: Rows) -> DbResult<Decision<Recorded>> {
        let mut change = Change::of(rows);
        let run = change.row();
        if run.attempt != self.attempt {
            return change.refused();
        }
        let has_ended = run.attempt_state.0 == AttemptState::Ended;
        if change.is_live() && !has_ended && run.scheduled_at.is_none() {
            let now = change.now();
            change.run().scheduled_at = Some(now);
            let attempt = change.attempt()?;
            attempt.scheduled_at = Some(now);
            attempt.node = Some(self.node.clone());
        }
        change.recorded()
    }
}
