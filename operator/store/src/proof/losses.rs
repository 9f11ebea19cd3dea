//! Payloads that are gone: the audit says so.

use super::Problem;
use super::retention::Retention;
use crate::audit::kind;
use crate::reading::{StoredBoundary, StoredSnapshot};
use crate::{AuditRow, Gone, Place, RunId};

/// What is seen of a run's lost payloads, whichever rows come first.
#[derive(Clone, Debug, Default)]
pub(super) struct Losses {
    retention: Retention,
    is_shredding_told: bool,
    first_shredded: Option<Place>,
}

impl Losses {
    /// A row of the run's audit is there.
    pub fn see_audit(&mut self, row: &AuditRow) {
        self.retention.see_audit(row);
        self.is_shredding_told |= row.kind == kind::SHREDDED;
    }

    /// A boundary of the run is there.
    pub fn see_boundary(&mut self, boundary: &StoredBoundary) {
        self.retention.see_boundary(boundary);
        if boundary.gone == Some(Gone::Shredded) {
            self.first_shredded.get_or_insert(boundary.kept.place());
        }
    }

    /// A snapshot of the run is there.
    pub fn see_snapshot(&mut self, snapshot: &StoredSnapshot) {
        self.retention.see_snapshot(snapshot);
    }

    /// Whether payloads were shredded.
    pub fn is_shredded(&self) -> bool {
        self.first_shredded.is_some()
    }

    /// After the last boundary and row.
    pub fn end(&self, run: RunId) -> impl Iterator<Item = Problem> {
        let what = "nobody can read its payloads, and the audit does not say that they were shredded";
        let untold = self.first_shredded.filter(|_| !self.is_shredding_told);
        let untold = untold.map(|place| Problem::of(run, place.to_string(), what));
        self.retention.end(run).into_iter().chain(untold)
    }

    /// After the last snapshot.
    pub fn end_snapshots(&self, run: RunId) -> Option<Problem> {
        self.retention.end_snapshots(run)
    }
}
