//! A claim names an approval that does not allow its call.

use serde_json::json;

use super::worker::has_capability;
use super::{Change, Decision, Needs, Rows, Transition, text};
use crate::db_error::DbResult;
use dalsegno_model::audit::{actor, kind};
use dalsegno_model::{Claim, Claimed, Digest, RunId};

/// Notes in the audit that a claim was refused for its approval. A repeated claim is noted once.
#[derive(Clone, Debug)]
pub(crate) struct RefuseUse {
    capability: Digest,
    call: String,
    approval: String,
    is_spent: bool,
}

impl RefuseUse {
    /// For this answer to the claim, if its approval is the reason.
    pub fn of(claim: &Claim, claimed: &Claimed) -> Option<Self> {
        let is_spent = match claimed {
            Claimed::ApprovalSpent => true,
            Claimed::ApprovalNotGranted(_) => false,
            _ => return None,
        };
        let Claim { capability, ref id, ref approval, .. } = *claim;
        Some(Self { capability, call: text(id), approval: text(approval.as_deref()?), is_spent })
    }
}

impl Transition for RefuseUse {
    type Answer = ();
    const OPERATION: &'static str = "refusing the use of an approval";

    fn needs(&self) -> Needs<'_> {
        Needs::LastAudit
    }

    fn decide(&self, rows: Rows) -> DbResult<Decision<()>> {
        let last = rows.last_audit.clone();
        let mut change = Change::of(rows);
        let reason = if self.is_spent { "spent" } else { "notGranted" };
        let detail = json!({ "wait": self.approval, "call": self.call, "reason": reason });
        let is_noted = last.is_some_and(|last| last.is(kind::APPROVAL_REFUSED, &detail));
        if has_capability(change.row(), &self.capability) && change.is_live() && !is_noted {
            change.audit(kind::APPROVAL_REFUSED, actor::WORKER, detail);
        }
        Ok(change.decide(()))
    }

    fn without_run(&self, _: RunId) -> DbResult<()> {
        Ok(())
    }
}
