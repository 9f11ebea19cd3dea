//! Audit rows, boundaries, leaves of anchors and purge records as four streams, each sorted by run.

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
    purges: VecDeque<(RunId, AuditRow)>,
    purges_after: RunId,
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
            purges: VecDeque::new(),
            // Purge records are read for whole stores only.
            purges_after: from,
        }
    }

    /// Reads the rows after those of this run as they are now.
    pub async fn renew_after(&mut self, run: RunId) -> Result<()> {
        self.reading.renew().await?;
        self.audit.clear();
        self.audit_after = AuditKey::after(run);
        self.boundaries.clear();
        self.boundaries_after = BoundaryKey::after(run);
        self.leaves.clear();
        self.leaves_after = RunLeafKey { run, anchor: i64::MAX };
        self.purges.clear();
        self.purges_after = run;
        Ok(())
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

    /// The next purge record, if its run satisfies the condition.
    pub async fn next_purge(
        &mut self,
        of: impl Fn(RunId) -> bool + Send,
    ) -> Result<Option<(RunId, AuditRow)>> {
        if self.purges.is_empty() {
            self.purges = self.reading.purges(self.purges_after, self.to).await?.into();
            if let Some((run, _)) = self.purges.back() {
                self.purges_after = *run;
            }
        }
        Ok(self.purges.pop_front_if(|(run, _)| of(*run)))
    }
}
