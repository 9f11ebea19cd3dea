//! What anchors name of one run, compared with its rows.

use std::collections::{BTreeMap, BTreeSet};

use dalsegno_model::anchor::AnchoredHead;
use dalsegno_model::read_transaction::{RunHead, StoredBoundary};
use dalsegno_model::{AuditRow, BoundaryId, Digest, RunId};

use super::problem::Problem;

/// What anchors name of one run. Rows that are found are removed, so that whatever is left at the end is missing. A
/// rebuilt chain contradicts the anchors from before, but not those from after.
#[derive(Clone, Debug, Default)]
pub(super) struct AnchoredRun {
    /// Rows of the audit, and whether a proven anchor names them: then they may replace the rows up to them.
    audit: BTreeMap<(i64, Digest), bool>,
    boundaries: BTreeSet<(BoundaryId, Digest)>,
    /// The last leaf of a proven anchor.
    last_proven: Option<AnchoredHead>,
}

/// A prune that the audit of a run records.
#[derive(Clone, Copy, Debug)]
pub(super) struct RecordedPrune {
    /// The last row that was pruned.
    pub last: (i64, Digest),
    /// Number of the row that records it.
    pub row: i64,
    /// Whether anchors were pruned as well.
    pub are_anchors_pruned: bool,
}

impl AnchoredRun {
    /// Adds a leaf of an anchor. Later anchors are added later.
    pub fn add(&mut self, leaf: &AnchoredHead, is_proven: bool) {
        let AnchoredHead { run: _, audit_seq, audit_hash, head } = *leaf;
        if audit_seq > 0 {
            *self.audit.entry((audit_seq, audit_hash)).or_default() |= is_proven;
        }
        self.boundaries.extend(head);
        if is_proven {
            self.last_proven = Some(*leaf);
        }
    }

    /// Whether a proven anchor names exactly where the run is now.
    pub fn proves(&self, run: &RunHead) -> bool {
        self.last_proven.is_some_and(|leaf| {
            (leaf.audit_seq, leaf.audit_hash) == (run.audit_seq, run.audit_hash)
                && leaf.head == run.head.map(|head| (head.boundary, head.content_hash))
        })
    }

    /// An audit row exists: removes it from what is expected.
    pub fn found_audit_row(&mut self, row: &AuditRow) {
        self.audit.remove(&(row.seq, row.hash));
    }

    /// Checks that a proven anchor allows this prune: it names the last row that was pruned, or, if that anchor was
    /// pruned too, a row from the one on that records the prune. Then none of the pruned rows is expected any more. If
    /// two anchors name different rows with the same number, one of the two was never pruned and stays expected.
    pub fn check_pruned(&mut self, run: RunId, prune: RecordedPrune) -> Option<Problem> {
        let RecordedPrune { last, row, are_anchors_pruned } = prune;
        let what = match self.audit.get(&last) {
            Some(true) => {
                let mut before = None;
                self.audit.retain(|row, _| {
                    let again = before.replace(row.0) == Some(row.0);
                    row.0 > last.0 || (*row != last && (row.0 == last.0 || again))
                });
                return None;
            }
            Some(false) => {
                self.audit.retain(|row, is_proven| row.0 > last.0 || *is_proven);
                "the rows up to it were pruned, and only the store's own anchors name it"
            }
            None if are_anchors_pruned && self.last_proven.is_some_and(|leaf| leaf.audit_seq >= row) => {
                return None;
            }
            None => "the rows up to it were pruned, and no anchor names it",
        };
        Some(Problem::of(run, format!("audit row {}", last.0), what))
    }

    /// Whether a proven anchor names this row.
    pub fn is_proven(&self, row: &AuditRow) -> bool {
        self.audit.get(&(row.seq, row.hash)) == Some(&true)
    }

    /// Checks the purge record of a run that does not exist any more: a proven anchor must name it, and no anchor may
    /// name a later row. If anchors were pruned, none need name the run.
    pub fn check_purge(&self, run: RunId, record: &AuditRow, are_anchors_pruned: bool) -> Option<Problem> {
        let AuditRow { seq, hash, .. } = *record;
        let is_last = self.audit.last_key_value().is_none_or(|(last, _)| *last <= (seq, hash));
        let what = match self.audit.get(&(seq, hash)) {
            Some(true) if is_last => return None,
            None if self.is_empty() && are_anchors_pruned => return None,
            Some(true) => "an anchor names a later row, or another one with its number",
            Some(false) => "the run is missing, and only the store's own anchors name this row",
            None => "the run is missing, and no anchor names this row",
        };
        Some(Problem::of(run, purge_record(record), what))
    }

    /// Whether no anchor names the run.
    fn is_empty(&self) -> bool {
        self.audit.is_empty() && self.boundaries.is_empty()
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

/// Where a problem of a purge record is.
pub(super) fn purge_record(record: &AuditRow) -> String {
    format!("purge record {}", record.seq)
}
