//! The AgentRun is deleted on purpose.

use serde_json::json;

use super::end::fence_and_end;
use super::{Change, Decision, Rows, Transition, asked};
use crate::audit::{actor, kind};
use crate::fault::Work;
use crate::reads::EnumText;
use crate::{AskedBy, Cause, Lifecycle, RunId};

/// [`crate::Store::mark_deleted`].
#[derive(Clone, Debug)]
pub(crate) struct MarkDeleted {
    pub object_uid: String,
    pub asked: AskedBy,
}

impl Transition for MarkDeleted {
    type Answer = ();
    const OPERATION: &'static str = "closing a deleted run";

    fn decide(&self, rows: Rows) -> Work<Decision<()>> {
        let mut change = Change::of(rows);
        // Its row may have changed hands (adoption) while the lock was waited for: then it is no longer this object's.
        let is_its_own = change.row().object_uid == self.object_uid;
        if is_its_own && matches!(change.row().lifecycle.0, Lifecycle::Live | Lifecycle::Finished) {
            fence_and_end(&mut change, Cause::Deleted)?;
            let now = change.now();
            let run = change.run();
            (run.lifecycle, run.over_at) = (EnumText(Lifecycle::Deleted), Some(now));
            let detail = json!({ "epoch": run.epoch });
            change.audit(kind::DELETED, actor::OPERATOR, asked(&self.asked, detail));
        }
        Ok(change.decide(()))
    }

    fn without_run(&self, _: RunId) -> Work<()> {
        Ok(())
    }
}
