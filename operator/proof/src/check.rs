//! Every run of a store: its audit, its boundaries, and rows that belong to no run.

use dalsegno_format::keys;
use dalsegno_model::read_transaction::{EVERY_RUN, RunHead};
use dalsegno_model::{Error, Reading, Result, RunId};

use super::anchor_index::AnchorIndex;
use super::anchors::Anchors;
use super::audit_chain::AuditChain;
use super::audit_reconciler::{AuditReconciler, StoredRun};
use super::boundary_chain::BoundaryChain;
use super::problem::Problem;
use super::sorted_rows::SortedRows;

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
    /// Runs whose data key is wrapped by a key that is not there, or is another: a problem of each, and no damage, as far as
    /// can be told. Nothing proves the rows of data keys: whoever changes one can bring this about.
    pub locked: u64,
    /// Problems that were told.
    pub problems: u64,
}

/// Walks all anchors and runs and tells every problem. Holds one page of each kind of row, what anchors say, and of one
/// run what it has undone and which calls it made. `copy`: anchors that were kept outside; none of them: there is no copy.
pub async fn check_store(
    reading: &mut dyn Reading,
    copy: Anchors,
    report: &mut (dyn FnMut(Problem) + Send),
) -> Result<Summary> {
    let mut summary = Summary::default();
    let anchored = anchors(reading, copy, &mut summary, report).await?;
    let mut checker = RunChecker { rows: SortedRows::all(reading), anchored };
    let mut after = None;
    loop {
        let page = checker.rows.reading.runs(after).await?;
        let Some(last) = page.last() else { break };
        after = Some(last.id);
        for run in &page {
            checker.orphaned_rows(run.id, &mut summary, report).await?;
            checker.run(run, &mut summary, report).await?;
        }
    }
    checker.orphaned_rows(EVERY_RUN, &mut summary, report).await?;
    for problem in checker.anchored.rest() {
        summary.problems += 1;
        report(problem);
    }
    Ok(summary)
}

/// What the store's anchors and the copy of them say, once they are held to each other.
async fn anchors(
    reading: &mut dyn Reading,
    copy: Anchors,
    summary: &mut Summary,
    report: ReportFn<'_>,
) -> Result<AnchorIndex> {
    let mut kept = Anchors::default();
    let mut after = i64::MIN;
    let mut problems = copy.breaks(false);
    loop {
        let page = reading.anchors(after).await?;
        let Some((last, _)) = page.last() else { break };
        after = *last;
        for (seq, line) in &page {
            problems.extend(kept.take_kept(&format!("anchor {seq}"), line));
        }
    }
    problems.extend(kept.breaks(true));
    problems.extend(copy.missing_from(&kept));
    summary.anchors = kept.count() as u64;
    summary.problems += problems.len() as u64;
    problems.into_iter().for_each(report);
    // Who can write to the store can name anything there: where there is a copy, the store's own anchors excuse nothing.
    let may_replace = copy.count() == 0;
    let mut anchored = copy.index;
    anchored.add(kept.index, may_replace);
    Ok(anchored)
}

/// Run after run.
struct RunChecker<'r> {
    rows: SortedRows<'r>,
    anchored: AnchorIndex,
}

type ReportFn<'t> = &'t mut (dyn FnMut(Problem) + Send);

impl RunChecker<'_> {
    async fn run(&mut self, run: &RunHead, summary: &mut Summary, report: ReportFn<'_>) -> Result<()> {
        let mut problems = Vec::new();
        let mut anchored_run = self.anchored.of(run.id);
        let mut chain = AuditChain::new(run.id);
        let mut reconciler = AuditReconciler::default();
        while let Some((_, row)) = self.rows.next_audit(|of| of == run.id).await? {
            reconciler.add_audit_row(&row);
            problems.extend(chain.push(&row));
            anchored_run.add_audit_row(&row);
            summary.audit += 1;
        }
        match chain.pruned() {
            Ok(last) => problems.extend(last.and_then(|last| anchored_run.check_pruned(run.id, last))),
            Err(problem) => problems.push(problem),
        }
        problems.extend(chain.end(run.audit_seq, &run.audit_hash));
        let unwrapped = self.rows.reading.unwrap_data_key(run.id).await;
        summary.locked += u64::from(matches!(unwrapped, Err(Error::Unfit(_))));
        let key_fault = keys::unwrap_failure(unwrapped)?;
        let mut chain = BoundaryChain::new(run.id, run.head);
        while let Some(boundary) = self.rows.next_boundary(|of| of == run.id).await? {
            let problem = chain.push(&boundary);
            problems.extend(problem.filter(|it| key_fault.as_ref() != Some(&it.what)));
            reconciler.add_boundary(&boundary);
            anchored_run.add_boundary(&boundary);
            summary.boundaries += 1;
        }
        problems.extend(chain.end());
        problems.extend(anchored_run.rest(run.id));
        summary.shredded += u64::from(reconciler.is_shredded());
        let stored_run = StoredRun { id: run.id, head: Some(run), key_fault };
        let stored = reconciler.check_stored_rows(self.rows.reading, stored_run).await?;
        summary.calls += stored.calls;
        summary.snapshots += stored.snapshots;
        problems.extend(stored.problems);
        summary.runs += 1;
        summary.problems += problems.len() as u64;
        problems.into_iter().for_each(report);
        Ok(())
    }

    /// Rows before the next run are no run's.
    async fn orphaned_rows(
        &mut self,
        next: RunId,
        summary: &mut Summary,
        report: ReportFn<'_>,
    ) -> Result<()> {
        let mut last_reported = None;
        let mut report_orphan = |run: RunId| {
            if last_reported != Some(run) {
                last_reported = Some(run);
                summary.problems += 1;
                report(Problem::of(run, "runs", "the run itself is not there, and rows of it are"));
            }
        };
        while let Some((run, _)) = self.rows.next_audit(|of| of < next).await? {
            report_orphan(run);
        }
        while let Some(boundary) = self.rows.next_boundary(|of| of < next).await? {
            report_orphan(boundary.run);
        }
        Ok(())
    }
}
