//! A person's decision that does not count.

use serde_json::json;

use super::{Change, Decision, Rows, Transition};
use crate::db_error::DbResult;
use dalsegno_model::audit::{actor, kind};
use dalsegno_model::{RefusedDecision, RunRecord};

/// [`dalsegno_model::Operator::refuse_decision`].
#[derive(Clone, Debug)]
pub(crate) struct RefuseDecision(pub RefusedDecision);

impl Transition for RefuseDecision {
    type Answer = RunRecord;
    const OPERATION: &'static str = "refusing a decision";

    fn decide(&self, rows: Rows) -> DbResult<Decision<RunRecord>> {
        let mut change = Change::of(rows);
        let RefusedDecision { id, epoch, by, reason } = &self.0;
        if change.is_live() && change.waits().iter().any(|wait| wait.id == *id && wait.epoch == *epoch) {
            let detail = json!({ "wait": id, "epoch": epoch, "by": by, "reason": reason });
            change.audit(kind::DECISION_REFUSED, actor::OPERATOR, detail);
        }
        change.with_record()
    }
}
