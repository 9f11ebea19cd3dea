//! The check of a whole store: the audit and boundaries of every run, and rows of missing runs.

use std::time::{Duration, Instant};

use dalsegno_format::keys;
use dalsegno_model::audit::kind;
use dalsegno_model::read_transaction::{EVERY_RUN, RunHead};
use dalsegno_model::{AuditRow, Error, ReadTransaction, Result, RunId};

use super::anchor_chain::{ProvenAnchors, check_anchors};
use super::anchored_run::{AnchoredRun, RecordedPrune, purge_record};
use super::anchors::Anchors;
use super::audit_chain::{AuditChain, is_hash_of};
use super::audit_reconciler::{AuditReconciler, StoredRun};
use super::boundary_chain::BoundaryChain;
use super::problem::Problem;
use super::sorted_rows::SortedRows;

/// Time after which the next run is checked as of a later moment. A database cannot clean up what was visible at a
/// moment that is still held.
const MOMENT: Duration = Duration::from_secs(1);

/// What was checked: the number of each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Runs.
    pub runs: u64,
    /// Audit rows.
    pub audit: u64,
    /// Boundaries.
    pub boundaries: u64,
    /// Calls.
    pub calls: u64,
    /// Anchors in the store.
    pub anchors: u64,
    /// Snapshots.
    pub snapshots: u64,
    /// Runs that were shredded. Only their chains can be verified.
    pub shredded: u64,
    /// Runs whose data key is wrapped with a key that is missing or has been replaced. This is reported as a problem
    /// of each run. It is not necessarily damage, but the rows of data keys are not protected: anybody who changes
    /// one can cause this.
    pub locked: u64,
    /// Runs that were purged, or that are being purged.
    pub purged: u64,
    /// Runs that are exactly where a proven anchor says: one of the copy, or one that leads to it. Without a copy, one
    /// of the store.
    pub proven: u64,
    /// Problems that were reported.
    pub problems: u64,
}

/// Checks all anchors and runs, and reports every problem. Each run is checked as of one moment, and not all runs as of
/// the same one. A run that is created meanwhile may be left out. Holds one page of each kind of row, and of one run what
/// anchors name, the undone boundaries and the calls. `copy`: anchors stored outside of the database; empty if there
/// is no copy.
pub async fn check_store(
    reading: &mut dyn ReadTransaction,
    copy: Anchors,
    report: &mut (dyn FnMut(Problem) + Send),
) -> Result<Summary> {
    check_store_and_anchors(reading, &copy, report).await.map(|(summary, _)| summary)
}

/// As [`check_store`]. Also returns which anchors of the store are proven.
pub async fn check_store_and_anchors(
    reading: &mut dyn ReadTransaction,
    copy: &Anchors,
    report: &mut (dyn FnMut(Problem) + Send),
) -> Result<(Summary, ProvenAnchors)> {
    let (anchors, problems) = check_anchors(reading, copy).await?;
    let mut summary =
        Summary { anchors: anchors.count() as u64, problems: problems.len() as u64, ..Summary::default() };
    problems.into_iter().for_each(&mut *report);
    let mut checker = RunChecker { rows: SortedRows::all(reading), anchors: &anchors };
    let (mut after, mut moment) = (None, Instant::now());
    'moments: loop {
        let page = checker.rows.reading.runs(after).await?;
        if page.is_empty() {
            break;
        }
        for run in &page {
            checker.orphaned_rows(run.id, &mut summary, report).await?;
            checker.run(run, &mut summary, report).await?;
            after = Some(run.id);
            if moment.elapsed() > MOMENT {
                checker.rows.renew_after(run.id).await?;
                moment = Instant::now();
                continue 'moments;
            }
        }
    }
    checker.orphaned_rows(EVERY_RUN, &mut summary, report).await?;
    Ok((summary, anchors))
}

/// Checks one run after the other.
struct RunChecker<'r> {
    rows: SortedRows<'r>,
    anchors: &'r ProvenAnchors,
}

type ReportFn<'t> = &'t mut (dyn FnMut(Problem) + Send);

impl RunChecker<'_> {
    async fn run(&mut self, run: &RunHead, summary: &mut Summary, report: ReportFn<'_>) -> Result<()> {
        let mut problems = Vec::new();
        let mut anchored_run = AnchoredRun::default();
        while let Some((anchor, leaf)) = self.rows.next_leaf(|of| of == run.id).await? {
            anchored_run.add(&leaf, self.anchors.is_proven(anchor));
        }
        summary.proven += u64::from(anchored_run.proves(run));
        let mut chain = AuditChain::new(run.id);
        let mut reconciler = AuditReconciler::default();
        let mut is_being_purged = false;
        while let Some((_, row)) = self.rows.next_audit(|of| of == run.id).await? {
            is_being_purged |= row.kind == kind::PURGED && anchored_run.is_proven(&row);
            reconciler.add_audit_row(&row);
            problems.extend(chain.push(&row));
            anchored_run.found_audit_row(&row);
            summary.audit += 1;
        }
        if let Some((_, record)) = self.rows.next_purge(|of| of == run.id).await? {
            problems.push(Problem::of(run.id, purge_record(&record), "the run that was purged exists"));
        }
        problems.extend(chain.end(run.audit_seq, &run.audit_hash));
        summary.runs += 1;
        // Its rows are being deleted, those of the audit from the first on: the rest proves nothing.
        if is_being_purged {
            while self.rows.next_boundary(|of| of == run.id).await?.is_some() {}
            summary.purged += 1;
            summary.problems += problems.len() as u64;
            problems.into_iter().for_each(report);
            return Ok(());
        }
        match chain.pruned() {
            Ok(Some(last)) => {
                let are_anchors_pruned = self.anchors.are_pruned();
                let prune = RecordedPrune { last, row: chain.pruned_by(), are_anchors_pruned };
                problems.extend(anchored_run.check_pruned(run.id, prune));
            }
            Ok(None) => {}
            Err(problem) => problems.push(problem),
        }
        let unwrapped = self.rows.reading.unwrap_data_key(run.id).await;
        summary.locked += u64::from(matches!(unwrapped, Err(Error::Unusable(_))));
        let key_fault = keys::unwrap_failure(unwrapped)?;
        let mut chain = BoundaryChain::new(run.id, run.head);
        while let Some(boundary) = self.rows.next_boundary(|of| of == run.id).await? {
            let problem = chain.push(&boundary);
            problems.extend(problem.filter(|it| key_fault.as_ref() != Some(&it.what)));
            reconciler.add_boundary(&boundary);
            anchored_run.found_boundary(&boundary);
            summary.boundaries += 1;
        }
        problems.extend(chain.end());
        problems.extend(anchored_run.missing(run.id));
        summary.shredded += u64::from(reconciler.is_shredded());
        let stored_run = StoredRun { id: run.id, head: Some(run), key_fault };
        let stored = reconciler.check_stored_rows(self.rows.reading, stored_run).await?;
        summary.calls += stored.calls;
        summary.snapshots += stored.snapshots;
        problems.extend(stored.problems);
        summary.problems += problems.len() as u64;
        problems.into_iter().for_each(report);
        Ok(())
    }

    /// Reports rows of runs before `next`: their own rows are missing.
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
                report(Problem::of(run, "runs", "the run's own row is missing, and other rows of it exist"));
            }
        };
        while let Some((run, _)) = self.rows.next_audit(|of| of < next).await? {
            report_orphan(run);
        }
        while let Some(boundary) = self.rows.next_boundary(|of| of < next).await? {
            report_orphan(boundary.run);
        }
        self.purged_runs(next, summary, report).await
    }

    /// Checks the purge records of runs before `next`, and reports runs that anchors name and that are missing without
    /// one.
    async fn purged_runs(&mut self, next: RunId, summary: &mut Summary, report: ReportFn<'_>) -> Result<()> {
        loop {
            let leaf = self.rows.next_leaf(|of| of < next).await?;
            let up_to = leaf.as_ref().map(|(_, leaf)| leaf.run);
            let is_due = |of: RunId| of < next && up_to.is_none_or(|up_to| of <= up_to);
            let mut record = None;
            while let Some((run, row)) = self.rows.next_purge(is_due).await? {
                summary.purged += 1;
                if up_to == Some(run) {
                    record = Some(row);
                    break;
                }
                let problem = self.check_purge(run, &row, &AnchoredRun::default());
                summary.problems += u64::from(problem.is_some());
                problem.into_iter().for_each(&mut *report);
            }
            let Some((anchor, leaf)) = leaf else { return Ok(()) };
            let run = leaf.run;
            let mut anchored_run = AnchoredRun::default();
            anchored_run.add(&leaf, self.anchors.is_proven(anchor));
            while let Some((anchor, leaf)) = self.rows.next_leaf(|of| of == run).await? {
                anchored_run.add(&leaf, self.anchors.is_proven(anchor));
            }
            let problem = match record {
                Some(row) => self.check_purge(run, &row, &anchored_run),
                None => Some(Problem::of(run, "runs", "anchors name the run, and it is missing")),
            };
            summary.problems += u64::from(problem.is_some());
            problem.into_iter().for_each(&mut *report);
        }
    }

    fn check_purge(&self, run: RunId, record: &AuditRow, anchored_run: &AnchoredRun) -> Option<Problem> {
        if record.kind != kind::PURGED || !is_hash_of(run, record) {
            let what = "it was edited: it does not have the hash it must have";
            return Some(Problem::of(run, purge_record(record), what));
        }
        anchored_run.check_purge(run, record, self.anchors.are_pruned())
    }
}
