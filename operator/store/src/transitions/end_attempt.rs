//! An attempt ends, and its worker may no longer write.

use super::end::{end_with_audit, finish_with_audit, reserve_next};
use super::{Change, Decision, Rows, Transition};
use crate::audit::actor;
use crate::db_error::DbResult;
use crate::{Ending, RunRecord, Then};

/// [`crate::Store::end_attempt`].
#[derive(Clone, Debug)]
pub(crate) struct EndAttempt {
    pub ending: Ending,
    pub then: Then,
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
                Then::Reserve => reserve_next(&mut change),
                Then::Nothing => {}
                Then::Finish(finish) => finish_with_audit(&mut change, finish, None, actor::OPERATOR),
            }
        }
        change.with_record()
    }
}
