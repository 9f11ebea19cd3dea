//! Forks: the first boundary of a fork must begin after the boundary that the audit of the fork names.

use dalsegno_model::audit::kind;
use dalsegno_model::read_transaction::StoredBoundary;
use dalsegno_model::{AuditRow, ForkedFrom, RunId};
use serde::Deserialize;

use super::encoding::Hash;
use super::problem::Problem;

/// What the audit and the boundaries of a run say of its beginning.
#[derive(Clone, Debug, Default)]
pub(super) struct ForkOrigin {
    audited: Option<ForkedFrom>,
    /// Whether the first rows of the audit were pruned, so that the row of the fork may be missing.
    is_pruned: bool,
    /// Whether there are boundaries.
    has_boundaries: bool,
    stored: Option<ForkedFrom>,
}

/// The detail of the row that records a fork.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Detail {
    run: RunId,
    turn: i32,
    content_hash: Hash,
}

impl ForkOrigin {
    /// Adds a row of the run's audit. A row with an unreadable detail is ignored.
    pub fn add_audit_row(&mut self, row: &AuditRow) {
        self.is_pruned |= row.kind == kind::PRUNED;
        if row.kind == kind::FORKED
            && let Ok(Detail { run, turn, content_hash }) = serde_json::from_str(&row.detail)
        {
            self.audited = Some(ForkedFrom { run, turn, content_hash: content_hash.0 });
        }
    }

    /// Adds a boundary of the run.
    pub fn add_boundary(&mut self, boundary: &StoredBoundary) {
        self.has_boundaries = true;
        self.stored = boundary.decoded.row.forked_from.or(self.stored);
    }

    /// To be called after the last boundary and audit row.
    pub fn end(&self, run: RunId) -> Option<Problem> {
        let Self { audited, is_pruned, has_boundaries, stored } = *self;
        let what = match (audited, stored) {
            (Some(audited), Some(stored)) if audited != stored => {
                "the run was forked from another boundary than the audit says"
            }
            (Some(_), None) if has_boundaries => {
                "the audit says that the run was forked, and its first boundary does not say so"
            }
            (None, Some(_)) if !is_pruned => "the run was forked, and the audit does not say so",
            (Some(_) | None, Some(_) | None) => return None,
        };
        Some(Problem::of(run, "boundaries", what))
    }
}
