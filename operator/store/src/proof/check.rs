//! Every run of a store: its audit, its boundaries, and rows that belong to no run.

use std::collections::VecDeque;

use super::{AuditChain, BoundaryChain, Problem};
use crate::reading::{AuditKey, BoundaryKey, EVERY_RUN, NO_RUN, RunHead, StoredBoundary};
use crate::{AuditRow, Reading, Result, RunId};

/// What was looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Runs.
    pub runs: u64,
    /// Rows of their audits.
    pub audit: u64,
    /// Their boundaries.
    pub boundaries: u64,
    /// Problems that were told.
    pub problems: u64,
}

/// Walks all runs and tells every problem. Holds one page of each kind of row.
pub async fn check_store(
    reading: &mut dyn Reading,
    tell: &mut (dyn FnMut(Problem) + Send),
) -> Result<Summary> {
    let mut summary = Summary::default();
    let mut walk = Walk::new(reading);
    let mut after = None;
    loop {
        let page = walk.reading.runs(after).await?;
        let Some(last) = page.last() else { break };
        after = Some(last.id);
        for run in &page {
            walk.strays(run.id, &mut summary, tell).await?;
            walk.run(run, &mut summary, tell).await?;
        }
    }
    walk.strays(EVERY_RUN, &mut summary, tell).await?;
    Ok(summary)
}

/// Three sorted streams side by side.
struct Walk<'r> {
    reading: &'r mut dyn Reading,
    audit: VecDeque<(RunId, AuditRow)>,
    audit_after: AuditKey,
    boundaries: VecDeque<StoredBoundary>,
    boundaries_after: BoundaryKey,
}

type Tell<'t> = &'t mut (dyn FnMut(Problem) + Send);

impl<'r> Walk<'r> {
    fn new(reading: &'r mut dyn Reading) -> Self {
        Self {
            reading,
            audit: VecDeque::new(),
            audit_after: AuditKey::before(NO_RUN),
            boundaries: VecDeque::new(),
            boundaries_after: BoundaryKey::before(NO_RUN),
        }
    }

    async fn run(&mut self, run: &RunHead, summary: &mut Summary, tell: Tell<'_>) -> Result<()> {
        let mut problems = Vec::new();
        let mut chain = AuditChain::new(run.id);
        while let Some((_, row)) = self.next_audit(|of| of == run.id).await? {
            problems.extend(chain.push(&row));
            summary.audit += 1;
        }
        problems.extend(chain.end(run.audit_seq, &run.audit_hash));
        let mut chain = BoundaryChain::new(run.id, run.head);
        while let Some(boundary) = self.next_boundary(|of| of == run.id).await? {
            problems.extend(chain.push(&boundary));
            summary.boundaries += 1;
        }
        problems.extend(chain.end());
        summary.runs += 1;
        summary.problems += problems.len() as u64;
        problems.into_iter().for_each(tell);
        Ok(())
    }

    /// Rows before the next run are no run's.
    async fn strays(&mut self, next: RunId, summary: &mut Summary, tell: Tell<'_>) -> Result<()> {
        let mut told = None;
        let mut stray = |run: RunId| {
            if told != Some(run) {
                told = Some(run);
                summary.problems += 1;
                tell(Problem::of(run, "runs", "the run itself is not there, and rows of it are"));
            }
        };
        while let Some((run, _)) = self.next_audit(|of| of < next).await? {
            stray(run);
        }
        while let Some(boundary) = self.next_boundary(|of| of < next).await? {
            stray(boundary.run);
        }
        Ok(())
    }

    /// The next row, if it is of such a run.
    async fn next_audit(&mut self, of: impl Fn(RunId) -> bool + Send) -> Result<Option<(RunId, AuditRow)>> {
        if self.audit.is_empty() {
            self.audit = self.reading.audit(self.audit_after, EVERY_RUN).await?.into();
            if let Some((run, row)) = self.audit.back() {
                self.audit_after = AuditKey { run: *run, seq: row.seq };
            }
        }
        Ok(self.audit.pop_front_if(|(run, _)| of(*run)))
    }

    async fn next_boundary(&mut self, of: impl Fn(RunId) -> bool + Send) -> Result<Option<StoredBoundary>> {
        if self.boundaries.is_empty() {
            self.boundaries = self.reading.boundaries(self.boundaries_after, EVERY_RUN).await?.into();
            if let Some(last) = self.boundaries.back() {
                self.boundaries_after = last.key();
            }
        }
        Ok(self.boundaries.pop_front_if(|boundary| of(boundary.run)))
    }
}
