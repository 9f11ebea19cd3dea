//! An attempt ends, and its worker may no longer write.

use super::end::{end_with_audit, finish_with_audit, reserve_next};
use super::{Change, Decision, Rows, Transition};
use crate::db_error::DbResult;
use dalsegno_model::audit::actor;
use dalsegno_model::{Ending, NextStep, RunRecord};

/// [`dalsegno_model::Store::end_attempt`].
#[derive(Clone, Debug)]
pub(crate) struct EndAttempt {
    pub ending: Ending,
    pub then: NextStep,
}

impl Transition for EndAttempt {
    type Answer = RunRecord;
    const OPERATION: &'static str = "ending an attempt";

    fn decide(&self, rows: Rows) -> DbResult<Decision<RunRecord>> {
        let Self { ending, then } = self;
        let mut change = Change::of(rows);
        if change.is_live() && change.row().attempt == ending.attempt {
            end_with_audit(&mut change, ending)?;
            match then {
                NextStep::Reserve => reserve_next(&mut change),
                NextStep::Nothing => {}
                NextStep::Finish(finish) => finish_with_audit(&mut change, finish, None, actor::OPERATOR),
            }
        }
        change.with_record()
    }
}
