//! What a run's audit gives account of: its own row, boundaries that a rewind undid, its calls, payloads that are gone.

use std::collections::BTreeSet;

use dalsegno_model::audit::kind;
use dalsegno_model::reading::{RecordKey, RunHead, StoredBoundary, StoredCall, StoredSnapshot};
use dalsegno_model::{AuditRow, Gone, Place, Reading, Result, RunId};

use super::calls::Calls;
use super::problem::Problem;
use super::records::Records;
use super::retention::Retention;
use super::said::{Point, Said};

/// What is seen of a run, whichever rows come first.
#[derive(Clone, Debug, Default)]
pub(super) struct Account {
    said: Said,
    undone: BTreeSet<Point>,
    calls: Calls,
    retention: Retention,
    records: Records,
    is_shredding_told: bool,
    first_shredded: Option<Place>,
}

impl Account {
    /// A row of the run's audit is there.
    pub fn see_audit(&mut self, row: &AuditRow) {
        self.said.see(row);
        self.calls.see_audit(row);
        self.retention.see_audit(row);
        self.is_shredding_told |= row.kind == kind::SHREDDED;
    }

    /// A boundary of the run is there.
    pub fn see_boundary(&mut self, boundary: &StoredBoundary) {
        if boundary.undone {
            self.undone.insert(Point::of(boundary));
        }
        self.retention.see_boundary(boundary);
        self.records.see_boundary(boundary);
        if boundary.gone == Some(Gone::Shredded) {
            self.first_shredded.get_or_insert(boundary.kept.place());
        }
    }

    /// A call of the run is there.
    pub fn see_call(&mut self, call: &StoredCall) {
        self.calls.see(call);
    }

    /// Whether payloads were shredded.
    pub fn is_shredded(&self) -> bool {
        self.first_shredded.is_some()
    }

    /// After the last boundary and row.
    pub fn end(&self, run: RunId) -> impl Iterator<Item = Problem> {
        let what = "nobody can read its payloads, and the audit does not say that they were shredded";
        let untold = self.first_shredded.filter(|_| !self.is_shredding_told);
        let untold = untold.map(|place| Problem::of(run, place.to_string(), what));
        self.said.undone(run, &self.undone).chain(self.retention.end(run)).chain(untold)
    }

    /// After the last call and row.
    pub fn end_calls(&self, run: RunId) -> impl Iterator<Item = Problem> {
        // Of boundaries that nobody can read it is told already.
        let lost = self.calls.lost(run).filter(|_| !self.is_shredded());
        lost.into_iter().chain(self.calls.end(run))
    }

    /// After the last row: the run's own row, but for its outcome, which a bundle has not.
    pub fn end_run(&self, head: &RunHead) -> impl Iterator<Item = Problem> {
        self.said.differs(head)
    }

    /// After the last row and boundary of a run that a store keeps: sees its calls and snapshots, and tells all. Each snapshot
    /// is rebuilt from the boundaries; where these were dropped, it is held to what the audit says. `head`: the run's own row,
    /// unless that is gone. `key_fault`: why its data key cannot be unwrapped; then calls and snapshots are not looked at.
    pub async fn close(
        mut self,
        reading: &mut dyn Reading,
        run: RunId,
        head: Option<&RunHead>,
        key_fault: Option<String>,
    ) -> Result<Closed> {
        let mut closed = Closed { calls: 0, snapshots: 0, problems: Vec::new() };
        closed.problems.extend(self.end(run));
        if let Some(head) = head {
            closed.problems.extend(self.end_run(head).chain(self.said.outcome_differs(head)));
        }
        if let Some(why) = key_fault {
            closed.problems.push(Problem::of(run, "data key", why));
            return Ok(closed);
        }
        let mut after = None;
        loop {
            let page = reading.calls(run, after).await?;
            let Some(last) = page.last() else { break };
            after = Some(last.key());
            closed.calls += page.len() as u64;
            page.iter().for_each(|call| self.see_call(call));
        }
        closed.problems.extend(self.end_calls(run));
        for snapshot in reading.snapshots(run).await? {
            closed.snapshots += 1;
            self.retention.see_snapshot(&snapshot);
            let StoredSnapshot { place, digest: _, fault } = snapshot;
            closed
                .problems
                .extend(fault.map(|fault| Problem::of(run, format!("snapshot after {place}"), fault)));
        }
        closed.problems.extend(self.retention.end_snapshots(run));
        // Those of a run that is past its retention go in any order.
        if !self.retention.is_over() {
            closed.problems.extend(self.close_records(reading, run, head).await?);
        }
        Ok(closed)
    }

    async fn close_records(
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
            page.into_iter().for_each(|batch| records.see_batch(batch));
        }
        records.end_batches(head);
        let mut after = RecordKey::default();
        loop {
            let page = reading.records(run, &after).await?;
            let Some(last) = page.last() else { break };
            after = last.at.clone();
            page.into_iter().for_each(|record| records.see_record(record));
        }
        Ok(records.end(run))
    }
}

/// What was seen last.
pub(super) struct Closed {
    /// Calls.
    pub calls: u64,
    /// Snapshots.
    pub snapshots: u64,
    /// All that is wrong but for the chains.
    pub problems: Vec<Problem>,
}
