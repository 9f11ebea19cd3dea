//! What a run's audit gives reconciler of: its own row, boundaries that a rewind undid, its calls, payloads that are gone.

use std::collections::BTreeSet;

use dalsegno_model::audit::kind;
use dalsegno_model::read_transaction::{RecordKey, RunHead, StoredBoundary, StoredCall, StoredSnapshot};
use dalsegno_model::{AuditRow, Gone, Place, Reading, Result, RunId};

use super::audit_claims::{AuditClaims, UndoneBoundary};
use super::calls::Calls;
use super::problem::Problem;
use super::records::Records;
use super::retention::Retention;

/// What is seen of a run, whichever rows come first.
#[derive(Clone, Debug, Default)]
pub(super) struct AuditReconciler {
    claims: AuditClaims,
    undone: BTreeSet<UndoneBoundary>,
    calls: Calls,
    retention: Retention,
    records: Records,
    is_shredding_audited: bool,
    first_shredded: Option<Place>,
}

impl AuditReconciler {
    /// A row of the run's audit is there.
    pub fn add_audit_row(&mut self, row: &AuditRow) {
        self.claims.add_row(row);
        self.calls.add_audit_row(row);
        self.retention.add_audit_row(row);
        self.is_shredding_audited |= row.kind == kind::SHREDDED;
    }

    /// A boundary of the run is there.
    pub fn add_boundary(&mut self, boundary: &StoredBoundary) {
        if boundary.undone {
            self.undone.insert(UndoneBoundary::of(boundary));
        }
        self.retention.add_boundary(boundary);
        self.records.add_boundary(boundary);
        if boundary.gone == Some(Gone::Shredded) {
            self.first_shredded.get_or_insert(boundary.kept.place());
        }
    }

    /// A call of the run is there.
    pub fn add_call(&mut self, call: &StoredCall) {
        self.calls.add_call(call);
    }

    /// Whether payloads were shredded.
    pub fn is_shredded(&self) -> bool {
        self.first_shredded.is_some()
    }

    /// After the last boundary and row.
    pub fn end(&self, run: RunId) -> impl Iterator<Item = Problem> {
        let what = "nobody can read its payloads, and the audit does not say that they were shredded";
        let unaudited = self.first_shredded.filter(|_| !self.is_shredding_audited);
        let unaudited = unaudited.map(|place| Problem::of(run, place.to_string(), what));
        self.claims.undone(run, &self.undone).chain(self.retention.end(run)).chain(unaudited)
    }

    /// After the last call and row.
    pub fn end_calls(&self, run: RunId) -> impl Iterator<Item = Problem> {
        // Of boundaries that nobody can read it is reported already.
        let lost = self.calls.lost(run).filter(|_| !self.is_shredded());
        lost.into_iter().chain(self.calls.end(run))
    }

    /// After the last row: the run's own row, but for its outcome, which a bundle has not.
    pub fn end_run(&self, head: &RunHead) -> impl Iterator<Item = Problem> {
        self.claims.differs(head)
    }

    /// After the last row and boundary of a run that a store keeps: sees its calls and snapshots, and tells all. Each snapshot
    /// is rebuilt from the boundaries; where these were dropped, it is held to what the audit says. `head`: the run's own row,
    /// unless that is gone. `key_fault`: why its data key cannot be unwrapped; then calls and snapshots are not looked at.
    pub async fn check_stored_rows(
        mut self,
        reading: &mut dyn Reading,
        stored: StoredRun<'_>,
    ) -> Result<StoredRowsCheck> {
        let StoredRun { id: run, head, key_fault } = stored;
        let mut check = StoredRowsCheck { calls: 0, snapshots: 0, problems: Vec::new() };
        check.problems.extend(self.end(run));
        if let Some(head) = head {
            check.problems.extend(self.end_run(head).chain(self.claims.outcome_differs(head)));
        }
        if let Some(why) = key_fault {
            check.problems.push(Problem::of(run, "data key", why));
            return Ok(check);
        }
        let mut after = None;
        loop {
            let page = reading.calls(run, after).await?;
            let Some(last) = page.last() else { break };
            after = Some(last.key());
            check.calls += page.len() as u64;
            page.iter().for_each(|call| self.add_call(call));
        }
        check.problems.extend(self.end_calls(run));
        for snapshot in reading.snapshots(run).await? {
            check.snapshots += 1;
            self.retention.add_snapshot(&snapshot);
            let StoredSnapshot { place, digest: _, fault } = snapshot;
            check
                .problems
                .extend(fault.map(|fault| Problem::of(run, format!("snapshot after {place}"), fault)));
        }
        check.problems.extend(self.retention.end_snapshots(run));
        // Those of a run that is past its retention go in any order.
        if !self.retention.is_over() {
            check.problems.extend(self.check_records(reading, run, head).await?);
        }
        Ok(check)
    }

    async fn check_records(
        self,
        reading: &mut dyn Reading,
        run: RunId,
        head: Option<&RunHead>,
    ) -> Result<impl Iterator<Item = Problem>> {
        let mut records = self.records;
        let mut after = 0;
        loop {
            let page = reading.record_changes(run, after).await?;
            let Some(last) = page.last() else { break };
            after = last.seq;
            page.into_iter().for_each(|batch| records.add_batch(batch));
        }
        records.end_batches(head);
        let mut after = RecordKey::default();
        loop {
            let page = reading.records(run, &after).await?;
            let Some(last) = page.last() else { break };
            after = last.at.clone();
            page.into_iter().for_each(|record| records.add_record(record));
        }
        Ok(records.end(run))
    }
}

/// A run as the store has it.
pub(super) struct StoredRun<'r> {
    /// The run.
    pub id: RunId,
    /// The run's own row; `None` if that row is missing.
    pub head: Option<&'r RunHead>,
    /// Why the run's data key cannot be unwrapped, if so. Then calls, snapshots and records are not checked.
    pub key_fault: Option<String>,
}

/// What [`AuditReconciler::check_stored_rows`] found.
pub(super) struct StoredRowsCheck {
    /// Calls.
    pub calls: u64,
    /// Snapshots.
    pub snapshots: u64,
    /// All that is wrong but for the chains.
    pub problems: Vec<Problem>,
}
