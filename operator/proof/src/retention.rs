//! Dropped payloads: the audit must record them, and name the snapshot that replaces the dropped payloads of a live
//! run.

use std::collections::BTreeMap;

use dalsegno_model::audit::kind;
use dalsegno_model::read_transaction::{StoredBoundary, StoredSnapshot};
use dalsegno_model::{AuditRow, BoundaryId, Digest, PayloadLoss, RunId};
use dalsegno_protocol::Boundary;
use serde::Deserialize;

use super::encoding::Hash;
use super::problem::Problem;

/// What is known about a run's retention, added in any order.
#[derive(Clone, Debug, Default)]
pub(super) struct Retention {
    /// Whether the run is past its retention, so that all payloads may be missing.
    is_over: bool,
    /// The last dropped boundary of the live branch, according to the audit.
    dropped_up_to: Option<DroppedUpTo>,
    /// The last dropped boundary of each epoch.
    dropped: BTreeMap<i64, BoundaryId>,
    snapshots: Vec<(BoundaryId, Option<Digest>)>,
}

/// The last dropped boundary, and the digest of the snapshot that replaces the payloads.
#[derive(Clone, Copy, Debug)]
struct DroppedUpTo {
    to: BoundaryId,
    snapshot: Digest,
}

#[derive(Deserialize)]
struct Detail {
    to: To,
    epoch: i64,
    snapshot: Hash,
}

#[derive(Deserialize)]
struct To {
    turn: i32,
    boundary: Boundary,
}

impl Retention {
    /// Whether the run is past its retention, so that all payloads may be missing.
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// Adds a row of the run's audit. A row with an unreadable detail is ignored.
    pub fn add_audit_row(&mut self, row: &AuditRow) {
        match row.kind.as_str() {
            kind::EXPIRED => self.is_over = true,
            kind::DROPPED => {
                let detail = serde_json::from_str(&row.detail).ok();
                self.dropped_up_to = detail.map(|Detail { to, epoch, snapshot }| DroppedUpTo {
                    to: BoundaryId { turn: to.turn, boundary: to.boundary, epoch },
                    snapshot: snapshot.0,
                });
            }
            _ => {}
        }
    }

    /// Adds a boundary of the run.
    pub fn add_boundary(&mut self, boundary: &StoredBoundary) {
        if boundary.payload_loss == Some(PayloadLoss::Dropped) {
            let boundary_id = boundary.decoded.id();
            self.dropped.insert(boundary_id.epoch, boundary_id);
        }
    }

    /// Adds a snapshot of the run.
    pub fn add_snapshot(&mut self, snapshot: &StoredSnapshot) {
        self.snapshots.push((snapshot.boundary, snapshot.digest));
    }

    /// To be called after the last boundary and audit row.
    pub fn end(&self, run: RunId) -> Option<Problem> {
        let is_audited = |boundary_id: &BoundaryId| {
            self.dropped_up_to.is_some_and(|DroppedUpTo { to, .. }| {
                (boundary_id.turn, boundary_id.boundary) <= (to.turn, to.boundary)
                    || boundary_id.epoch < to.epoch
            })
        };
        let boundary_id =
            self.dropped.values().find(|boundary_id| !self.is_over && !is_audited(boundary_id))?;
        let what = "its payloads are missing, and the audit does not say that they were dropped";
        Some(Problem::of(run, boundary_id.to_string(), what))
    }

    /// To be called after the last snapshot.
    pub fn end_snapshots(&self, run: RunId) -> Option<Problem> {
        let DroppedUpTo { to, snapshot } = self.dropped_up_to.filter(|_| !self.is_over)?;
        let what = match self.snapshots.iter().find(|(boundary_id, _)| *boundary_id == to) {
            None => "it replaces dropped payloads, and is missing",
            // It is shredded, or its problem is reported already.
            Some((_, None)) => return None,
            Some((_, Some(digest))) if *digest == snapshot => return None,
            Some(_) => "it is not the snapshot that replaced the dropped payloads",
        };
        Some(Problem::of(run, format!("snapshot after {to}"), what))
    }
}
