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
    /// Rows, and when an anchor first named each.
    audit: BTreeMap<(i64, Digest), i64>,
    boundaries: BTreeSet<(Place, Digest)>,
}

impl Marks {
    /// Takes what an anchor says.
    pub fn take(&mut self, anchor: &Anchor) {
        for Standing { run, audit_seq, audit_hash, head } in anchor.standings() {
            let mark = self.0.entry(run).or_default();
            if audit_seq > 0 {
                let at = mark.audit.entry((audit_seq, audit_hash)).or_insert(anchor.at());
                *at = anchor.at().min(*at);
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

    /// The last of a run's audit rows that was named before a time, in milliseconds, and stands before row `seq`.
    pub fn last(&self, run: RunId, before: i64, seq: i64) -> Option<(i64, Digest)> {
        let named = self.0.get(&run)?.audit.iter().rev();
        named.filter(|((row, _), at)| *row < seq && **at < before).map(|(row, _)| *row).next()
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

    /// The rows up to this one were pruned: it must be named, and those before it cannot be there.
    pub fn see_pruned(&mut self, run: RunId, last: (i64, Digest)) -> Option<Problem> {
        let is_named = self.audit.contains_key(&last);
        self.audit.retain(|(seq, _), _| *seq > last.0);
        let what = "the rows up to it were pruned, and no anchor names it";
        (!is_named).then(|| Problem::of(run, format!("audit row {}", last.0), what))
    }

    /// A boundary of the run is there.
    pub fn see_boundary(&mut self, boundary: &StoredBoundary) {
        self.boundaries.remove(&(boundary.kept.place(), boundary.kept.row.content_hash));
    }

    /// What was not there.
    pub fn rest(&self, run: RunId) -> impl Iterator<Item = Problem> + '_ {
        let audit = self.audit.keys().map(|(seq, _)| format!("audit row {seq}"));
        let boundaries = self.boundaries.iter().map(|(place, _)| place.to_string());
        let what = "an anchor names it, and it is not there, or is another";
        audit.chain(boundaries).map(move |place| Problem::of(run, place, what))
    }
}
