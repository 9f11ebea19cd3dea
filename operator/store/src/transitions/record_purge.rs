//! A run that ended long ago is to be deleted. The audit records it first: a check accepts that rows are missing only if
//! an anchor names that row.

use serde_json::json;

use super::{Change, Decision, LastAudit, Needs, Rows, Transition, text};
use crate::db_error::DbResult;
use crate::texts::HoldsRecord;
use dalsegno_model::audit::kind;
use dalsegno_model::{Lifecycle, Purge, RunId};

/// The rule of [`dalsegno_model::Admin::purge`].
#[derive(Clone, Debug)]
pub(crate) struct RecordPurge(pub Purge);

impl HoldsRecord for PurgeRecord {}

/// Whether rows of the run may be deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PurgeRecord {
    /// No: the run is not over, still has payloads, or ended too late.
    Kept,
    /// Not yet: the audit has recorded the purge just now.
    Recorded,
    /// Not yet: no anchor names the row that records it.
    NotAnchored,
    /// Yes: an anchor names the last row of the audit, this one, and it records the purge.
    Anchored(i64),
}

impl Transition for RecordPurge {
    type Answer = PurgeRecord;
    const OPERATION: &'static str = "purging a run";

    fn needs(&self) -> Needs<'_> {
        Needs::LastAudit
    }

    fn decide(&self, rows: Rows) -> DbResult<Decision<PurgeRecord>> {
        let Purge { before, actor, reason, run: _ } = &self.0;
        let last = rows.last_audit.clone();
        let mut change = Change::of(rows);
        let run = change.row();
        let is_over = matches!(run.lifecycle.0, Lifecycle::Deleted | Lifecycle::Abandoned);
        let ended_at = run.finish_at.or(run.over_at);
        if !is_over || !run.emptied || ended_at.is_none_or(|at| at >= before.as_millisecond()) {
            return Ok(change.decide(PurgeRecord::Kept));
        }
        match last {
            Some(LastAudit { kind, has_moved: true, .. }) if kind == kind::PURGED => {
                Ok(change.decide(PurgeRecord::NotAnchored))
            }
            Some(LastAudit { kind, has_moved: false, .. }) if kind == kind::PURGED => {
                let seq = run.audit_seq;
                Ok(change.decide(PurgeRecord::Anchored(seq)))
            }
            _ => {
                let detail = json!({
                    "reason": text(reason), "tenant": run.tenant, "namespace": run.namespace, "name": run.name,
                    "objectUID": run.object_uid, "lifecycle": run.lifecycle.0,
                    "outcome": run.finish_outcome.map(|outcome| outcome.0), "endedAt": ended_at,
                });
                change.audit(kind::PURGED, actor, detail);
                Ok(change.decide(PurgeRecord::Recorded))
            }
        }
    }

    fn without_run(&self, _: RunId) -> DbResult<PurgeRecord> {
        Ok(PurgeRecord::Kept)
    }
}
