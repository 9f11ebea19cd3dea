//! What anchors name, compared with the rows of each run.

use std::collections::{BTreeMap, BTreeSet};

use dalsegno_model::anchor::AnchoredHead;
use dalsegno_model::read_transaction::StoredBoundary;
use dalsegno_model::{AuditRow, BoundaryId, Digest, RunId};

use super::anchor::Anchor;
use super::problem::Problem;

/// Everything that anchors name, by run. A rebuilt chain contradicts the anchors from before, but not those from
/// after.
#[derive(Clone, Debug, Default)]
pub(super) struct AnchorIndex(BTreeMap<RunId, AnchoredRun>);

/// What anchors name of one run. Rows that are found in the store are removed here, so that the rest is missing.
#[derive(Clone, Debug, Default)]
pub(super) struct AnchoredRun {
    audit: BTreeMap<(i64, Digest), AnchoredRow>,
    boundaries: BTreeSet<(BoundaryId, Digest)>,
}

/// An audit row that an anchor names.
#[derive(Clone, Copy, Debug)]
struct AnchoredRow {
    /// When an anchor first named it, in milliseconds since 1970.
    at: i64,
    /// Whether it may replace the rows up to it, so that these may be pruned.
    may_replace: bool,
}

impl AnchorIndex {
    /// Adds what an anchor names.
    pub fn add(&mut self, anchor: &Anchor) {
        for AnchoredHead { run, audit_seq, audit_hash, head } in anchor.heads() {
            let anchored = self.0.entry(run).or_default();
            if audit_seq > 0 {
                let first = AnchoredRow { at: anchor.at(), may_replace: true };
                let anchored_row = anchored.audit.entry((audit_seq, audit_hash)).or_insert(first);
                anchored_row.at = anchored_row.at.min(first.at);
            }
            anchored.boundaries.extend(head);
        }
    }

    /// Adds what other anchors name. `may_replace`: whether rows that only the others name may replace the rows up to
    /// them.
    pub fn merge(&mut self, others: Self, may_replace: bool) {
        for (run, AnchoredRun { audit, boundaries }) in others.0 {
            let anchored = self.0.entry(run).or_default();
            for (row, AnchoredRow { at, may_replace: _ }) in audit {
                anchored.audit.entry(row).or_insert(AnchoredRow { at, may_replace });
            }
            anchored.boundaries.extend(boundaries);
        }
    }

    /// The last audit row of a run with a number below `seq` that an anchor named before this time, in milliseconds
    /// since 1970.
    pub fn last(&self, run: RunId, before: i64, seq: i64) -> Option<(i64, Digest)> {
        let rows = self.0.get(&run)?.audit.iter().rev();
        rows.filter(|((row, _), anchored_row)| *row < seq && anchored_row.at < before)
            .map(|(row, _)| *row)
            .next()
    }

    /// Removes and returns what anchors name of an existing run.
    pub fn take_run(&mut self, run: RunId) -> AnchoredRun {
        self.0.remove(&run).unwrap_or_default()
    }

    /// Runs that were never requested with [`Self::take_run`]: they are missing.
    pub fn missing_runs(&self) -> impl Iterator<Item = Problem> + '_ {
        self.0.keys().map(|run| Problem::of(*run, "runs", "anchors name the run, and it is missing"))
    }
}

impl AnchoredRun {
    /// An audit row exists: removes it from what is expected.
    pub fn found_audit_row(&mut self, row: &AuditRow) {
        self.audit.remove(&(row.seq, row.hash));
    }

    /// Checks that an anchor allows that the rows up to this one were pruned. Then none of the rows before it is
    /// expected any more. If two anchors name different rows with the same number, one of the two was never pruned
    /// and stays expected.
    pub fn check_pruned(&mut self, run: RunId, last: (i64, Digest)) -> Option<Problem> {
        let what = match self.audit.get(&last) {
            Some(AnchoredRow { may_replace: true, .. }) => {
                let mut before = None;
                self.audit.retain(|row, _| {
                    let again = before.replace(row.0) == Some(row.0);
                    row.0 > last.0 || (*row != last && (row.0 == last.0 || again))
                });
                return None;
            }
            Some(_) => {
                self.audit.retain(|row, anchored_row| row.0 > last.0 || anchored_row.may_replace);
                "the rows up to it were pruned, and only the store's own anchors name it"
            }
            None => "the rows up to it were pruned, and no anchor names it",
        };
        Some(Problem::of(run, format!("audit row {}", last.0), what))
    }

    /// A boundary exists: removes it from what is expected.
    pub fn found_boundary(&mut self, boundary: &StoredBoundary) {
        self.boundaries.remove(&(boundary.decoded.id(), boundary.decoded.row.content_hash));
    }

    /// What is missing.
    pub fn missing(&self, run: RunId) -> impl Iterator<Item = Problem> + '_ {
        let audit = self.audit.keys().map(|(seq, _)| format!("audit row {seq}"));
        let boundaries = self.boundaries.iter().map(|(boundary_id, _)| boundary_id.to_string());
        let what = "an anchor names it, and it is missing or different";
        audit.chain(boundaries).map(move |boundary_id| Problem::of(run, boundary_id, what))
    }
}
