//! An attempt ends, and its worker may no longer write.

use super::end::{end_with_message, finish_with_audit, reserve_next};
use super::{Change, Decision, Rows, Transition};
use crate::db_error::DbResult;
use crate::texts::{EndMessage, sealed_step};
use dalsegno_format::seal::PayloadCipher;
use dalsegno_model::audit::actor;
use dalsegno_model::{Ending, NextStep, RunRecord};

/// [`dalsegno_model::Store::end_attempt`].
#[derive(Clone, Debug)]
pub(crate) struct EndAttempt {
    pub ending: Ending,
    /// The ending's message, as it is stored.
    pub message: EndMessage,
    pub then: NextStep,
}

impl EndAttempt {
    /// Seals the texts of an end, and of the finish that comes with it.
    pub fn of(ending: &Ending, then: &NextStep, cipher: Option<&PayloadCipher>) -> Self {
        Self {
            message: EndMessage::of(&ending.message, ending.attempt, cipher),
            ending: ending.clone(),
            then: sealed_step(then, cipher),
        }
    }
}

impl Transition for EndAttempt {
    type Answer = RunRecord;
    const OPERATION: &'static str = "ending an attempt";

    fn decide(&self, rows: Rows) -> DbResult<Decision<RunRecord>> {
        let Self { ending, message, then } = self;
        let mut change = Change::of(rows);
        if change.is_live() && change.row().attempt == ending.attempt {
            end_with_message(&mut change, ending, message)?;
            match then {
                NextStep::Reserve => reserve_next(&mut change),
                NextStep::Nothing => {}
                NextStep::Finish(finish) => finish_with_audit(&mut change, finish, None, actor::OPERATOR),
            }
        }
        change.with_record()
    }
}
