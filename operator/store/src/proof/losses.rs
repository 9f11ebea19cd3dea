//! Payloads that are gone: the audit says so.

use super::Problem;
use crate::audit::kind;
use crate::reading::StoredBoundary;
use crate::{AuditRow, Gone, Place, RunId};

/// What is seen of a run's lost payloads, whichever rows come first.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Losses {
    dropped: Loss,
    shredded: Loss,
}

/// One way to lose payloads.
#[derive(Clone, Copy, Debug, Default)]
struct Loss {
    is_told: bool,
    first: Option<Place>,
}

impl Losses {
    /// A row of the run's audit is there.
    pub fn see_audit(&mut self, row: &AuditRow) {
        self.dropped.is_told |= row.kind == kind::EXPIRED;
        self.shredded.is_told |= row.kind == kind::SHREDDED;
    }

    /// A boundary of the run is there.
    pub fn see_boundary(&mut self, boundary: &StoredBoundary) {
        let loss = match boundary.gone {
            Some(Gone::Dropped) => &mut self.dropped,
            Some(Gone::Shredded) => &mut self.shredded,
            None => return,
        };
        loss.first.get_or_insert(boundary.kept.place());
    }

    /// Whether payloads were shredded.
    pub fn is_shredded(&self) -> bool {
        self.shredded.first.is_some()
    }

    /// After the last row.
    pub fn end(&self, run: RunId) -> Vec<Problem> {
        let untold = [
            (self.dropped, "its payloads are gone, and the audit does not say that they were dropped"),
            (
                self.shredded,
                "nobody can read its payloads, and the audit does not say that they were shredded",
            ),
        ];
        let untold = untold.into_iter().filter(|(loss, _)| !loss.is_told);
        untold.filter_map(|(loss, what)| Some(Problem::of(run, loss.first?.to_string(), what))).collect()
    }
}
