//! Audit rows, boundaries and leaves of anchors as three streams, each sorted by run.

use std::collections::VecDeque;

use dalsegno_model::anchor::AnchoredHead;
use dalsegno_model::read_transaction::{
    AuditKey, BoundaryKey, EVERY_RUN, NO_RUN, RunLeafKey, StoredBoundary,
};
use dalsegno_model::{AuditRow, ReadTransaction, Result, RunId};

/// Holds one page of each stream.
pub(super) struct SortedRows<'r> {
    pub reading: &'r mut dyn ReadTransaction,
    to: RunId,
    audit: VecDeque<(RunId, AuditRow)>,
    audit_after: AuditKey,
    boundaries: VecDeque<StoredBoundary>,
    boundaries_after: BoundaryKey,
    leaves: VecDeque<(i64, AnchoredHead)>,
    leaves_after: RunLeafKey,
}

impl<'r> SortedRows<'r> {
    /// The rows of all runs, and of missing runs.
    pub fn all(reading: &'r mut dyn ReadTransaction) -> Self {
        Self::between(reading, NO_RUN, EVERY_RUN)
    }

    /// The rows of one run.
    pub fn of(reading: &'r mut dyn ReadTransaction, run: RunId) -> Self {
        Self::between(reading, run, run)
    }

    fn between(reading: &'r mut dyn ReadTransaction, from: RunId, to: RunId) -> Self {
        Self {
            reading,
            to,
            audit: VecDeque::new(),
            audit_after: AuditKey::before(from),
            boundaries: VecDeque::new(),
            boundaries_after: BoundaryKey::before(from),
            leaves: VecDeque::new(),
            leaves_after: RunLeafKey::before(from),
        }
    }

    /// The next audit row, if its run satisfies the condition.
    pub async fn next_audit(
        &mut self,
        of: impl Fn(RunId) -> bool + Send,
    ) -> Result<Option<(RunId, AuditRow)>> {
        if self.audit.is_empty() {
            self.audit = self.reading.audit(self.audit_after, self.to).await?.into();
            if let Some((run, row)) = self.audit.back() {
                self.audit_after = AuditKey { run: *run, seq: row.seq };
            }
        }
        Ok(self.audit.pop_front_if(|(run, _)| of(*run)))
    }

    /// The next boundary, if its run satisfies the condition.
    pub async fn next_boundary(
        &mut self,
        of: impl Fn(RunId) -> bool + Send,
    ) -> Result<Option<StoredBoundary>> {
        if self.boundaries.is_empty() {
            self.boundaries = self.reading.boundaries(self.boundaries_after, self.to).await?.into();
            if let Some(last) = self.boundaries.back() {
                self.boundaries_after = last.key();
            }
        }
        Ok(self.boundaries.pop_front_if(|boundary| of(boundary.run)))
    }

    /// The next leaf of an anchor, and the number of that anchor, if the leaf's run satisfies the condition. The leaves
    /// of a run are in the order of their anchors.
    pub async fn next_leaf(
        &mut self,
        of: impl Fn(RunId) -> bool + Send,
    ) -> Result<Option<(i64, AnchoredHead)>> {
        if self.leaves.is_empty() {
            self.leaves = self.reading.leaves_by_run(self.leaves_after, self.to).await?.into();
            if let Some((anchor, leaf)) = self.leaves.back() {
                self.leaves_after = RunLeafKey { run: leaf.run, anchor: *anchor };
            }
        }
        Ok(self.leaves.pop_front_if(|(_, leaf)| of(leaf.run)))
    }
}
