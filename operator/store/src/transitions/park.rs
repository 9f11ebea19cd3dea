//! The worker parks: its attempt ends, and the next one is reserved.

use super::acknowledge_cancel::{acknowledge, set_acknowledged};
use super::end::{end_with_audit, neutral_ending, reserve_next};
use super::worker::{has_capability, has_unsettled};
use super::{Change, Decision, Rows, Transition};
use crate::db_error::DbResult;
use crate::reads::Hash;
use dalsegno_model::{Cause, Park, Parked, RunId};

impl Transition for Park {
    type Answer = Parked;
    const OPERATION: &'static str = "parking a run";

    fn decide(&self, rows: Rows) -> DbResult<Decision<Parked>> {
        let mut change = Change::of(rows);
        let run = change.row();
        let refused = if !has_capability(run, &self.capability) {
            let is_retry =
                run.last_capability == Some(Hash(self.capability)) && run.park_id == Some(self.park_id);
            Some(if is_retry { Parked::Parked } else { Parked::Fenced })
        } else if !change.is_live() {
            Some(Parked::Finished)
        } else if has_unsettled(run) {
            Some(Parked::UnsettledCalls)
        } else if run.own_open_calls > 0 {
            Some(Parked::OpenCalls)
        } else if !run.suspend && run.cancel_requested_at.is_none() {
            Some(Parked::Ready)
        } else {
            None
        };
        if let Some(answer) = refused {
            return Ok(change.decide(answer));
        }
        if change.row().cancel_requested_at.is_some() {
            acknowledge(&mut change, self.capability, Some(self.park_id))?;
            return Ok(change.decide(Parked::Parked));
        }
        let ending = neutral_ending(change.row().attempt, Cause::Suspended);
        end_with_audit(&mut change, &ending)?;
        set_acknowledged(change.run(), self.capability, Some(self.park_id));
        reserve_next(&mut change);
        change.notify();
        Ok(change.decide(Parked::Parked))
    }

    fn without_run(&self, _: RunId) -> DbResult<Parked> {
        Ok(Parked::Fenced)
    }
}
