//! Reconciles a run with its audit: its own row, its undone boundaries, its calls, its messages, and its missing
//! payloads.

use std::collections::BTreeSet;

use dalsegno_model::audit::kind;
use dalsegno_model::read_transaction::{
    RecordKey, RunHead, StoredBoundary, StoredCall, StoredMessage, StoredSnapshot, StoredWait,
};
use dalsegno_model::{AuditRow, BoundaryId, PayloadLoss, ReadTransaction, Result, RunId};

use super::audit_claims::{AuditClaims, UndoneBoundary};
use super::calls::Calls;
use super::fork::ForkOrigin;
use super::messages::Messages;
use super::problem::Problem;
use super::records::Records;
use super::retention::Retention;
use super::waits::Waits;

/// Everything that is known about a run, added in any order.
#[derive(Clone, Debug, Default)]
pub(super) struct AuditReconciler {
    claims: AuditClaims,
    undone: BTreeSet<UndoneBoundary>,
    calls: Calls,
    waits: Waits,
    messages: Messages,
    retention: Retention,
    records: Records,
    origin: ForkOrigin,
    is_shredding_audited: bool,
    first_shredded: Option<BoundaryId>,
}

impl AuditReconciler {
    /// Adds a row of the run's audit.
    pub fn add_audit_row(&mut self, row: &AuditRow) {
        self.claims.add_row(row);
        self.calls.add_audit_row(row);
        self.waits.add_audit_row(row);
        self.messages.add_audit_row(row);
        self.retention.add_audit_row(row);
        self.origin.add_audit_row(row);
        self.is_shredding_audited |= row.kind == kind::SHREDDED;
    }

    /// Adds a boundary of the run.
    pub fn add_boundary(&mut self, boundary: &StoredBoundary) {
        if boundary.undone {
            self.undone.insert(UndoneBoundary::of(boundary));
        }
        self.retention.add_boundary(boundary);
        self.records.add_boundary(boundary);
        self.origin.add_boundary(boundary);
        if boundary.payload_loss == Some(PayloadLoss::Shredded) {
            self.first_shredded.get_or_insert(boundary.decoded.id());
        }
    }

    /// Adds a call of the run.
    pub fn add_call(&mut self, call: &StoredCall) {
        self.calls.add_call(call);
    }

    /// Adds a wait of the run.
    pub fn add_wait(&mut self, wait: &StoredWait) {
        self.waits.add_wait(wait);
    }

    /// Adds a message to the run.
    pub fn add_message(&mut self, message: StoredMessage) {
        self.messages.add_message(message);
    }

    /// To be called after the last message and audit row.
    pub fn end_messages(&self, run: RunId) -> impl Iterator<Item = Problem> {
        self.messages.end(run)
    }

    /// Whether the run is past its retention, so that its records may be missing.
    pub fn is_over(&self) -> bool {
        self.retention.is_over()
    }

    /// Whether payloads were shredded.
    pub fn is_shredded(&self) -> bool {
        self.first_shredded.is_some()
    }

    /// To be called after the last boundary and audit row.
    pub fn end(&self, run: RunId) -> impl Iterator<Item = Problem> {
        let what = "nobody can read its payloads, and the audit does not say that they were shredded";
        let unaudited = self.first_shredded.filter(|_| !self.is_shredding_audited);
        let unaudited = unaudited.map(|boundary_id| Problem::of(run, boundary_id.to_string(), what));
        let origin = self.origin.end(run);
        self.claims.undone(run, &self.undone).chain(self.retention.end(run)).chain(unaudited).chain(origin)
    }

    /// To be called after the last call and audit row.
    pub fn end_calls(&self, run: RunId) -> impl Iterator<Item = Problem> {
        // For a shredded run this is already reported for its boundaries.
        let lost = self.calls.lost_digests(run).filter(|_| !self.is_shredded());
        lost.into_iter().chain(self.calls.end(run))
    }

    /// To be called after the last wait and audit row.
    pub fn end_waits(&self, run: RunId) -> impl Iterator<Item = Problem> {
        self.waits.end(run)
    }

    /// To be called after the last audit row: checks the run's own row except for its outcome, which a bundle does
    /// not contain.
    pub fn end_run(&self, head: &RunHead) -> impl Iterator<Item = Problem> {
        self.claims.mismatches(head)
    }

    /// To be called after the last boundary and audit row of a run in a store. Reads the run's calls, messages, snapshots
    /// and records, and returns all problems. Each snapshot is compared with the state that the boundaries produce, or,
    /// if these were dropped, with the audit.
    pub async fn check_stored_rows(
        mut self,
        reading: &mut dyn ReadTransaction,
        stored: StoredRun<'_>,
    ) -> Result<StoredRowsCheck> {
        let StoredRun { id: run, head, key_fault } = stored;
        let mut check = StoredRowsCheck { calls: 0, snapshots: 0, problems: Vec::new() };
        check.problems.extend(self.end(run));
        if let Some(head) = head {
            check.problems.extend(self.end_run(head).chain(self.claims.outcome_mismatch(head)));
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
        let mut after = None;
        loop {
            let page = reading.waits(run, after).await?;
            let Some(last) = page.last() else { break };
            after = Some(last.key());
            page.iter().for_each(|wait| self.add_wait(wait));
        }
        check.problems.extend(self.end_waits(run));
        let mut after = 0;
        loop {
            let page = reading.messages(run, after).await?;
            let Some(last) = page.last() else { break };
            after = last.message.position;
            page.into_iter().for_each(|message| self.add_message(message));
        }
        check.problems.extend(self.end_messages(run));
        for snapshot in reading.snapshots(run).await? {
            check.snapshots += 1;
            self.retention.add_snapshot(&snapshot);
            let StoredSnapshot { boundary: boundary_id, digest: _, fault } = snapshot;
            check
                .problems
                .extend(fault.map(|fault| Problem::of(run, format!("snapshot after {boundary_id}"), fault)));
        }
        check.problems.extend(self.retention.end_snapshots(run));
        // Records of a run that is past its retention are deleted in any order.
        if !self.retention.is_over() {
            check.problems.extend(self.check_records(reading, run, head).await?);
        }
        Ok(check)
    }

    async fn check_records(
        self,
        reading: &mut dyn ReadTransaction,
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
    /// Why the run's data key cannot be unwrapped, if so. Then calls, messages, snapshots and records are not
    /// checked.
    pub key_fault: Option<String>,
}

/// What [`AuditReconciler::check_stored_rows`] found.
pub(super) struct StoredRowsCheck {
    /// Number of calls.
    pub calls: u64,
    /// Number of snapshots.
    pub snapshots: u64,
    /// All problems, except those of the chains.
    pub problems: Vec<Problem>,
}
