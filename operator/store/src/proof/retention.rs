//! Payloads that were dropped: the audit says so.

use super::Problem;
use crate::audit::kind;
use crate::reading::StoredBoundary;
use crate::{AuditRow, Place, RunId};

/// What is seen of a run's retention, whichever rows come first.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Retention {
    is_told: bool,
    dropped: Option<Place>,
}

impl Retention {
    /// A row of the run's audit is there.
    pub fn see_audit(&mut self, row: &AuditRow) {
        self.is_told |= row.kind == kind::EXPIRED;
    }

    /// A boundary of the run is there.
    pub fn see_boundary(&mut self, boundary: &StoredBoundary) {
        if boundary.is_dropped() {
            self.dropped.get_or_insert(boundary.kept.place());
        }
    }

    /// After the last row.
    pub fn end(&self, run: RunId) -> Option<Problem> {
        let place = self.dropped.filter(|_| !self.is_told)?;
        let what = "its payloads are gone, and the audit does not say that they were dropped";
        Some(Problem::of(run, place.to_string(), what))
    }
}
