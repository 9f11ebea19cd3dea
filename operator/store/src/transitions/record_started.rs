//! Records that the worker of an agent with checkpoints of its own has started. Nobody gets a capability.

use serde_json::json;

use super::record_identity::note_writer;
use super::{Change, Decision, Rows, Transition};
use crate::db_error::DbResult;
use crate::reads::EnumText;
use dalsegno_model::audit::{actor, kind};
use dalsegno_model::{AttemptState, Recorded};

/// [`dalsegno_model::Store::record_started`].
#[derive(Clone, Debug)]
pub(crate) struct RecordStarted {
    pub attempt: i32,
}

impl Transition for RecordStarted {
    type Answer = Recorded;
    const OPERATION: &'static str = "recording the start of a worker";

    fn decide(&self, rows: Rows) -> DbResult<Decision<Recorded>> {
        let mut change = Change::of(rows);
        let run = change.row();
        if run.attempt != self.attempt || !run.external {
            return change.refused();
        }
        if change.is_live() && run.attempt_state.0 == AttemptState::Created {
            let now = change.now();
            let run = change.run();
            run.attempt_state = EnumText(AttemptState::Attached);
            run.attached_at = Some(now);
            let attempt = change.attempt()?;
            attempt.state = EnumText(AttemptState::Attached);
            attempt.attached_at = Some(now);
            let detail = json!({ "attempt": attempt.number });
            change.audit(kind::STARTED, actor::OPERATOR, detail);
            note_writer(&mut change);
        }
        change.recorded()
    }
}
