//! A person suspends a run, or lifts the suspend.

use serde_json::json;

use super::{Change, Decision, Rows, Transition, with_attribution};
use crate::db_error::DbResult;
use dalsegno_model::audit::{actor, kind};
use dalsegno_model::{RequestedBy, RunRecord};

/// [`dalsegno_model::Operator::suspend`].
#[derive(Clone, Debug)]
pub(crate) struct Suspend {
    pub requested_by: RequestedBy,
}

impl Transition for Suspend {
    type Answer = RunRecord;
    const OPERATION: &'static str = "suspending a run";

    fn decide(&self, rows: Rows) -> DbResult<Decision<RunRecord>> {
        let mut change = Change::of(rows);
        if change.is_live() && !change.row().suspend {
            let now = change.now();
            let run = change.run();
            run.suspend = true;
            run.suspend_requested_at = Some(now);
            let detail = json!({ "attempt": run.attempt });
            change.audit(kind::SUSPENDED, actor::OPERATOR, with_attribution(&self.requested_by, detail));
        }
        change.with_record()
    }
}

/// [`dalsegno_model::Operator::resume`].
#[derive(Clone, Debug)]
pub(crate) struct Resume {
    pub requested_by: RequestedBy,
}

impl Transition for Resume {
    type Answer = RunRecord;
    const OPERATION: &'static str = "resuming a run";

    fn decide(&self, rows: Rows) -> DbResult<Decision<RunRecord>> {
        let mut change = Change::of(rows);
        if change.is_live() && change.row().suspend {
            let run = change.run();
            run.suspend = false;
            run.suspend_requested_at = None;
            run.suspend_told_at = None;
            let detail = json!({ "attempt": run.attempt });
            change.audit(kind::RESUMED, actor::OPERATOR, with_attribution(&self.requested_by, detail));
        }
        change.with_record()
    }
}
