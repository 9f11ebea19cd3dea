//! What anchors say of each run, held to its rows.

use std::collections::{BTreeMap, BTreeSet};

use super::Problem;
use super::anchor::{Anchor, Standing};
use crate::reading::StoredBoundary;
use crate::{AuditRow, Digest, Place, RunId};

/// All that anchors say of each run: a chain that was built anew is contradicted by the anchors from before, and not by
/// those from after.
#[derive(Clone, Debug, Default)]
pub(super) struct Marks(BTreeMap<RunId, Mark>);

/// Of one run. What is seen is taken away: what is left at the end is not there.
#[derive(Clone, Debug, Default)]
pub(super) struct Mark {
    audit: BTreeSet<(i64, Digest)>,
    boundaries: BTreeSet<(Place, Digest)>,
}

impl Marks {
    /// Takes what an anchor says.
    pub fn take(&mut self, anchor: &Anchor) {
        for Standing { run, audit_seq, audit_hash, head } in anchor.standings() {
            let mark = self.0.entry(run).or_default();
            if audit_seq > 0 {
                mark.audit.insert((audit_seq, audit_hash));
            }
            mark.boundaries.extend(head);
        }
    }

    /// Takes what others say.
    pub fn add(&mut self, others: Self) {
        for (run, Mark { audit, boundaries }) in others.0 {
            let mark = self.0.entry(run).or_default();
            mark.audit.extend(audit);
            mark.boundaries.extend(boundaries);
        }
    }

    /// What is said of a run, which is there.
    pub fn of(&mut self, run: RunId) -> Mark {
        self.0.remove(&run).unwrap_or_default()
    }

    /// Runs that were not asked for.
    pub fn rest(&self) -> impl Iterator<Item = Problem> + '_ {
        self.0.keys().map(|run| Problem::of(*run, "runs", "anchors name the run, and it is not there"))
    }
}

impl Mark {
    /// A row of the run's audit is there.
    pub fn see_audit(&mut self, row: &AuditRow) {
        self.audit.remove(&(row.seq, row.hash));
    }

    /// A boundary of the run is there.
    pub fn see_boundary(&mut self, boundary: &StoredBoundary) {
        self.boundaries.remove(&(boundary.kept.place(), boundary.kept.row.content_hash));
    }

    /// What was not there.
    pub fn rest(&self, run: RunId) -> impl Iterator<Item = Problem> + '_ {
        let audit = self.audit.iter().map(|(seq, _)| format!("audit row {seq}"));
        let boundaries = self.boundaries.iter().map(|(place, _)| place.to_string());
        let what = "an anchor names it, and it is not there, or is another";
        audit.chain(boundaries).map(move |place| Problem::of(run, place, what))
    }
}
