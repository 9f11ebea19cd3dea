//! A user requests a cancel.

use serde_json::json;

use super::{Change, Decision, Rows, Transition, with_attribution};
use crate::db_error::DbResult;
use dalsegno_model::audit::{actor, kind};
use dalsegno_model::{RequestedBy, RunRecord};

/// [`dalsegno_model::Store::request_cancel`].
#[derive(Clone, Debug)]
pub(crate) struct RequestCancel {
    pub requested_by: RequestedBy,
}

impl Transition for RequestCancel {
    type Answer = RunRecord;
    const OPERATION: &'static str = "requesting a cancel";

    fn decide(&self, rows: Rows) -> DbResult<Decision<RunRecord>> {
        let mut change = Change::of(rows);
        // Only the first request counts.
        if change.is_live() && change.row().cancel_requested_at.is_none() {
            change.run().cancel_requested_at = Some(change.now());
            let detail = json!({ "attempt": change.row().attempt });
            change.audit(
                kind::CANCEL_REQUESTED,
                actor::OPERATOR,
                with_attribution(&self.requested_by, detail),
            );
        }
        change.with_record()
    }
}
