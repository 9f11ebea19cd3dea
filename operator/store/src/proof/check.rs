//! Every run of a store: its audit, its boundaries, and rows that belong to no run.

use std::collections::VecDeque;

use super::account::Account;
use super::marks::Marks;
use super::snapshots;
use super::{Anchors, AuditChain, BoundaryChain, Problem};
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
    /// Their calls.
    pub calls: u64,
    /// Anchors that the store keeps.
    pub anchors: u64,
    /// Their snapshots.
    pub snapshots: u64,
    /// Runs that were shredded: of them only the chains can be proved.
    pub shredded: u64,
    /// Problems that were told.
    pub problems: u64,
}

/// Walks all anchors and runs and tells every problem. Holds one page of each kind of row, what anchors say, and of one
/// run what it has undone and which calls it made. `copy`: anchors that were kept outside; none of them: there is no copy.
pub async fn check_store(
    reading: &mut dyn Reading,
    copy: Anchors,
    tell: &mut (dyn FnMut(Problem) + Send),
) -> Result<Summary> {
    let mut summary = Summary::default();
    let marks = anchors(reading, copy, &mut summary, tell).await?;
    let mut walk = Walk::new(reading, marks);
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
    for problem in walk.marks.rest() {
        summary.problems += 1;
        tell(problem);
    }
    Ok(summary)
}

/// What the store's anchors and the copy of them say, once they are held to each other.
async fn anchors(
    reading: &mut dyn Reading,
    copy: Anchors,
    summary: &mut Summary,
    tell: Tell<'_>,
) -> Result<Marks> {
    let mut kept = Anchors::default();
    let mut after = i64::MIN;
    let mut problems = copy.breaks(false);
    loop {
        let page = reading.anchors(after).await?;
        let Some((last, _)) = page.last() else { break };
        after = *last;
        for (seq, line) in &page {
            problems.extend(kept.take(&format!("anchor {seq}"), line));
        }
    }
    problems.extend(kept.breaks(true));
    problems.extend(copy.missing_from(&kept));
    summary.anchors = kept.count() as u64;
    summary.problems += problems.len() as u64;
    problems.into_iter().for_each(tell);
    // Who can write to the store can name anything there: where there is a copy, the store's own anchors excuse nothing.
    let stand = copy.count() == 0;
    let mut marks = copy.marks;
    marks.add(kept.marks, stand);
    Ok(marks)
}

/// All calls of a run. How many there are.
pub(super) async fn see_calls(reading: &mut dyn Reading, run: RunId, account: &mut Account) -> Result<u64> {
    let (mut count, mut after) = (0, None);
    loop {
        let page = reading.calls(run, after).await?;
        let Some(last) = page.last() else { return Ok(count) };
        after = Some(last.key());
        count += page.len() as u64;
        page.iter().for_each(|call| account.see_call(call));
    }
}

/// Three sorted streams side by side.
struct Walk<'r> {
    reading: &'r mut dyn Reading,
    audit: VecDeque<(RunId, AuditRow)>,
    audit_after: AuditKey,
    boundaries: VecDeque<StoredBoundary>,
    boundaries_after: BoundaryKey,
    marks: Marks,
}

type Tell<'t> = &'t mut (dyn FnMut(Problem) + Send);

impl<'r> Walk<'r> {
    fn new(reading: &'r mut dyn Reading, marks: Marks) -> Self {
        Self {
            reading,
            audit: VecDeque::new(),
            audit_after: AuditKey::before(NO_RUN),
            boundaries: VecDeque::new(),
            boundaries_after: BoundaryKey::before(NO_RUN),
            marks,
        }
    }

    async fn run(&mut self, run: &RunHead, summary: &mut Summary, tell: Tell<'_>) -> Result<()> {
        let mut problems = Vec::new();
        let mut mark = self.marks.of(run.id);
        let mut chain = AuditChain::new(run.id);
        let mut account = Account::default();
        while let Some((_, row)) = self.next_audit(|of| of == run.id).await? {
            account.see_audit(&row);
            problems.extend(chain.push(&row));
            mark.see_audit(&row);
            summary.audit += 1;
        }
        match chain.pruned() {
            Ok(last) => problems.extend(last.and_then(|last| mark.see_pruned(run.id, last))),
            Err(problem) => problems.push(problem),
        }
        problems.extend(chain.end(run.audit_seq, &run.audit_hash));
        let mut chain = BoundaryChain::new(run.id, run.head);
        while let Some(boundary) = self.next_boundary(|of| of == run.id).await? {
            problems.extend(chain.push(&boundary));
            account.see_boundary(&boundary);
            mark.see_boundary(&boundary);
            summary.boundaries += 1;
        }
        problems.extend(chain.end());
        summary.calls += see_calls(self.reading, run.id, &mut account).await?;
        problems.extend(account.end(run.id));
        problems.extend(account.end_calls(run.id));
        problems.extend(account.end_run(run));
        problems.extend(account.end_outcome(run));
        summary.shredded += u64::from(account.is_shredded());
        problems.extend(mark.rest(run.id));
        let snapshots = snapshots::check(self.reading, run.id, account).await?;
        summary.snapshots += snapshots.count;
        problems.extend(snapshots.problems);
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
