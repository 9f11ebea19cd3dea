//! A user deletes the AgentRun, and the run is closed.

use serde_json::json;

use super::end::fence_and_end;
use super::waits::withdraw_waits;
use super::{Change, Decision, Rows, Transition, with_attribution};
use crate::db_error::DbResult;
use crate::reads::EnumText;
use dalsegno_model::audit::{actor, kind};
use dalsegno_model::{Cause, Lifecycle, RequestedBy, RunId};

/// [`dalsegno_model::Store::mark_deleted`].
#[derive(Clone, Debug)]
pub(crate) struct MarkDeleted {
    pub object_uid: String,
    pub requested_by: RequestedBy,
}

impl Transition for MarkDeleted {
    type Answer = ();
    const OPERATION: &'static str = "closing a deleted run";

    fn decide(&self, rows: Rows) -> DbResult<Decision<()>> {
        let mut change = Change::of(rows);
        // Another object may have adopted the run while this call waited for the lock.
        let is_own = change.row().object_uid == self.object_uid;
        if is_own && matches!(change.row().lifecycle.0, Lifecycle::Live | Lifecycle::Finished) {
            fence_and_end(&mut change, Cause::RunDeleted)?;
            let now = change.now();
            let run = change.run();
            (run.lifecycle, run.over_at) = (EnumText(Lifecycle::Deleted), Some(now));
            let detail = json!({ "epoch": run.epoch });
            change.audit(kind::DELETED, actor::OPERATOR, with_attribution(&self.requested_by, detail));
            withdraw_waits(&mut change);
        }
        Ok(change.decide(()))
    }

    fn without_run(&self, _: RunId) -> DbResult<()> {
        Ok(())
    }
}
