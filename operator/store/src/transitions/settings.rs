//! Settings of a run: the lengths of its deadlines, its limits, and its retention. Changes of settings are not in the audit.

use super::announce::announce_near_limits;
use super::{Change, Decision, Rows, Transition};
use crate::db_error::DbResult;
use dalsegno_model::{Deadlines, Retention, RunLimits, RunRecord};

/// [`dalsegno_model::Store::set_deadlines`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct SetDeadlines(pub Deadlines);

impl Transition for SetDeadlines {
    type Answer = RunRecord;
    const OPERATION: &'static str = "setting deadlines";

    fn decide(&self, rows: Rows) -> DbResult<Decision<RunRecord>> {
        let mut change = Change::of(rows);
        if change.is_live() {
            set_deadlines(&mut change, &self.0);
        }
        change.with_record()
    }
}

pub(super) fn set_deadlines(change: &mut Change, deadlines: &Deadlines) {
    let Deadlines { heartbeat_ms, start_ms, progress_ms, suspend_ms } = *deadlines;
    let run = change.run();
    (run.heartbeat_ms, run.start_ms, run.progress_ms) = (heartbeat_ms, start_ms, progress_ms);
    run.suspend_ms = suspend_ms;
}

/// [`dalsegno_model::Operator::set_limits`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct SetLimits(pub RunLimits);

impl Transition for SetLimits {
    type Answer = RunRecord;
    const OPERATION: &'static str = "setting limits";

    fn decide(&self, rows: Rows) -> DbResult<Decision<RunRecord>> {
        let mut change = Change::of(rows);
        if change.is_live() {
            let now = change.now();
            change.run().set_limits(self.0);
            change.run().check_usage_limits(now);
            announce_near_limits(&mut change);
        }
        change.with_record()
    }
}

/// [`dalsegno_model::Store::set_retention`]. It applies to runs that are over too.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SetRetention(pub Retention);

impl Transition for SetRetention {
    type Answer = RunRecord;
    const OPERATION: &'static str = "setting the retention";

    fn decide(&self, rows: Rows) -> DbResult<Decision<RunRecord>> {
        let mut change = Change::of(rows);
        change.run().set_retention(self.0);
        change.with_record()
    }
}
