//! A transition on its way: the rows as they stood, the rows as they shall be, and the difference as a [`WriteSet`].

use std::collections::BTreeMap;

use dalsegno_protocol::Policy;
use serde_json::Value as Json;

use super::Rows;
use crate::audit::Link;
use crate::fault::{Fault, Work};
use crate::reads::{Assignment, AttemptRow, Column as _, Hash, RunRow, RunRows};
use crate::{Digest, Lifecycle, Recorded, RunId, RunRecord};

/// All that a transition writes. What it does not name stays as it is.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct WriteSet {
    pub run: RunId,
    /// The run's row, where it was not there.
    pub created: Option<Box<RunRow>>,
    /// Columns of the run's row.
    pub run_columns: Vec<Assignment>,
    /// Whether the operator must see the run at once: the database sets `changed_at` by its clock as it writes.
    pub is_change: bool,
    /// Columns of attempts, by their number.
    pub attempt_columns: Vec<(i32, Vec<Assignment>)>,
    /// Attempts that were not there.
    pub reserved: Vec<AttemptRow>,
    /// Rows of the audit, in order.
    pub audit: Vec<AuditEntry>,
}

impl WriteSet {
    /// Whether nothing is written.
    pub fn is_empty(&self) -> bool {
        *self == Self { run: self.run, ..Self::default() }
    }
}

/// A row of the audit, linked to the one before.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct AuditEntry {
    pub seq: i64,
    pub at: i64,
    pub kind: &'static str,
    pub actor: String,
    pub detail: String,
    pub parent_hash: Digest,
    pub hash: Digest,
}

impl AuditEntry {
    pub const TABLE: &'static str = "audit";

    /// All columns of the row.
    pub fn assignments(self, run: RunId) -> Vec<Assignment> {
        let Self { seq, at, kind, actor, detail, parent_hash, hash } = self;
        vec![
            ("run", run.value()),
            ("seq", seq.value()),
            ("at", at.value()),
            ("kind", kind.to_owned().value()),
            ("actor", actor.value()),
            ("detail", detail.value()),
            ("parent_hash", Hash(parent_hash).value()),
            ("hash", Hash(hash).value()),
        ]
    }
}

/// What a rule has decided.
#[derive(Debug)]
pub(crate) struct Decision<A> {
    pub write: WriteSet,
    pub answer: A,
}

/// Rows that a rule changes. It is made of the rows as they stand, and knows them to its end.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    /// `None`: the run was not there.
    before: Option<RunRows>,
    rows: RunRows,
    started: BTreeMap<Policy, i64>,
    is_change: bool,
    audit: Vec<AuditEntry>,
}

impl Change {
    pub fn of(rows: Rows) -> Self {
        let Rows { of_run, started } = rows;
        Self { before: Some(of_run.clone()), rows: of_run, started, is_change: false, audit: Vec::new() }
    }

    /// Of a run that is not there yet.
    pub fn of_new(rows: RunRows) -> Self {
        Self { before: None, rows, started: BTreeMap::new(), is_change: false, audit: Vec::new() }
    }

    /// The store's clock.
    pub fn now(&self) -> i64 {
        self.rows.now
    }

    /// The run's row.
    pub fn run(&mut self) -> &mut RunRow {
        &mut self.rows.run
    }

    /// The run's row as it is by now.
    pub fn row(&self) -> &RunRow {
        &self.rows.run
    }

    /// Whether the operator may change the run.
    pub fn is_live(&self) -> bool {
        self.rows.run.lifecycle.0 == Lifecycle::Live
    }

    /// Started calls of this policy.
    pub fn started(&self, policy: Policy) -> i64 {
        self.started.get(&policy).copied().unwrap_or_default()
    }

    /// The row of the current attempt.
    pub fn attempt(&mut self) -> Work<&mut AttemptRow> {
        let RunRow { id, attempt: number, .. } = self.rows.run;
        let mut attempts = self.rows.attempts.iter_mut();
        let current = attempts.find(|attempt| attempt.number == number);
        current.ok_or_else(|| Fault::Corrupt(format!("run {id} has no attempt {number}")))
    }

    /// An attempt that was not there: it is the latest.
    pub fn reserve(&mut self, attempt: AttemptRow) {
        self.rows.attempts.insert(0, attempt);
    }

    /// The operator must see this at once.
    pub fn notify(&mut self) {
        self.is_change = true;
    }

    /// Appends to the run's audit.
    pub fn audit(&mut self, kind: &'static str, actor: &str, detail: Json) {
        let RunRow { id, audit_seq, audit_hash: Hash(parent_hash), .. } = self.rows.run;
        let (seq, at, actor, detail) = (audit_seq + 1, self.rows.now, super::text(actor), detail.to_string());
        let link = Link { parent_hash: &parent_hash, run: id, seq, at, kind, actor: &actor, detail: &detail };
        let hash = link.hash();
        self.rows.run.audit_seq = seq;
        self.rows.run.audit_hash = Hash(hash);
        self.audit.push(AuditEntry { seq, at, kind, actor, detail, parent_hash, hash });
    }

    /// The run's record, as it is by now.
    pub fn record(&self) -> Work<Box<RunRecord>> {
        self.rows.record().map(Box::new)
    }

    /// What was changed, with the record as it is after.
    pub fn with_record(self) -> Work<Decision<RunRecord>> {
        let record = self.rows.record()?;
        Ok(self.decide(record))
    }

    /// The fact stands in the rows, now or before.
    pub fn recorded(self) -> Work<Decision<Recorded>> {
        let answer = Recorded::Done(self.record()?);
        Ok(self.decide(answer))
    }

    /// The fact is none of the run's; nothing may have changed.
    pub fn refused(self) -> Work<Decision<Recorded>> {
        let answer = Recorded::Refused(self.record()?);
        Ok(self.decide(answer))
    }

    /// What was changed, with the answer.
    pub fn decide<A>(self, answer: A) -> Decision<A> {
        let Self { before, rows, started: _, is_change, audit } = self;
        let mut write = WriteSet { run: rows.run.id, is_change, audit, ..WriteSet::default() };
        let Some(before) = before else {
            (write.created, write.reserved) = (Some(Box::new(rows.run)), rows.attempts);
            return Decision { write, answer };
        };
        write.run_columns = rows.run.changes(&before.run);
        for attempt in rows.attempts {
            let Some(stood) = before.attempt(attempt.number) else {
                write.reserved.push(attempt);
                continue;
            };
            let columns = attempt.changes(stood);
            if !columns.is_empty() {
                write.attempt_columns.push((attempt.number, columns));
            }
        }
        Decision { write, answer }
    }
}
