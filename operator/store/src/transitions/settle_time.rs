//! The store's clock answers waits, and their deadlines pass.

use dalsegno_protocol::{OnTimeout, WaitKind, WaitOutcome};
use serde_json::json;

use super::end::{fence_and_end, finish_with_audit};
use super::waits::{answer_by_clock, obeys_deadline, parked_on, update_waits};
use super::{Change, Decision, Rows, Transition, text};
use crate::db_error::DbResult;
use crate::reads::WaitRow;
use dalsegno_model::audit::{actor, kind};
use dalsegno_model::{Cause, NewFinish, RunOutcome, RunRecord};

/// The reason of a run that fails because the deadline of a wait passed.
const TIMED_OUT: &str = "WaitTimedOut";

/// [`dalsegno_model::Operator::settle_time`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct SettleTime;

impl Transition for SettleTime {
    type Answer = RunRecord;
    const OPERATION: &'static str = "settling waits by the clock";

    fn decide(&self, rows: Rows) -> DbResult<Decision<RunRecord>> {
        let mut change = Change::of(rows);
        let now = change.now();
        if !change.is_live() {
            return change.with_record();
        }
        let elapsed = |wait: &&WaitRow| wait.is_open() && wait.wake_at.is_some_and(|at| at <= now);
        let elapsed: Vec<_> = change.waits().iter().filter(elapsed).map(|wait| wait.id.clone()).collect();
        for id in &elapsed {
            answer_by_clock(&mut change, id, WaitOutcome::Elapsed);
        }
        let overdue = |wait: &&WaitRow| wait.kind.0 != WaitKind::Approval && is_overdue(wait, now);
        let overdue: Vec<_> = change.waits().iter().filter(overdue).cloned().collect();
        for wait in &overdue {
            if change.is_live() {
                time_out(&mut change, wait)?;
            }
        }
        // Another run may have moved the end of a rate limit.
        if change.is_live() {
            update_waits(&mut change);
        }
        change.with_record()
    }
}

/// [`dalsegno_model::Operator::time_out_wait`].
#[derive(Clone, Debug)]
pub(crate) struct TimeOutWait {
    pub id: String,
    pub epoch: i64,
}

impl Transition for TimeOutWait {
    type Answer = RunRecord;
    const OPERATION: &'static str = "letting a wait time out";

    fn decide(&self, rows: Rows) -> DbResult<Decision<RunRecord>> {
        let mut change = Change::of(rows);
        let now = change.now();
        let is_it = |wait: &&WaitRow| (&wait.id, wait.epoch) == (&text(&self.id), self.epoch);
        let overdue = change.waits().iter().find(is_it).filter(|wait| is_overdue(wait, now)).cloned();
        if let Some(wait) = overdue.filter(|_| change.is_live()) {
            time_out(&mut change, &wait)?;
        }
        change.with_record()
    }
}

fn is_overdue(wait: &WaitRow, now: i64) -> bool {
    wait.is_open() && wait.deadline_at.is_some_and(|at| at <= now)
}

/// Does what a wait asks for whose deadline has passed.
fn time_out(change: &mut Change, wait: &WaitRow) -> DbResult<()> {
    let is_parked_on = parked_on(change.row()).is_some_and(|(on, _)| on.contains(&wait.id));
    if !obeys_deadline(wait, is_parked_on) {
        return Ok(());
    }
    let detail = json!({
        "wait": wait.id, "epoch": wait.epoch, "kind": wait.kind.0, "onTimeout": wait.on_timeout.0,
    });
    change.audit(kind::WAIT_TIMED_OUT, actor::OPERATOR, detail);
    match wait.on_timeout.0 {
        OnTimeout::Answer => answer_by_clock(change, &wait.id, WaitOutcome::TimedOut),
        OnTimeout::Hold => {
            let now = change.now();
            for held in change.waits_mut().iter_mut().filter(|held| held.id == wait.id) {
                held.timed_out_at = Some(now);
            }
            update_waits(change);
            change.notify();
        }
        OnTimeout::Fail => {
            fence_and_end(change, Cause::Finished)?;
            let finish = NewFinish {
                outcome: RunOutcome::Failed,
                reason: TIMED_OUT.into(),
                message: format!("nobody answered the wait {:?} before its deadline", wait.id),
                output: None,
            };
            finish_with_audit(change, &finish, None, actor::OPERATOR);
            change.notify();
        }
    }
    Ok(())
}
