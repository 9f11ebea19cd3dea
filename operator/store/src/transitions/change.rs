//! A transition on its way: the rows as they stood, the rows as they shall be, and the difference as a [`WriteSet`].

use std::collections::BTreeMap;

use dalsegno_protocol::Policy;
use serde_json::Value as Json;

use super::Rows;
use crate::audit::AuditHeader;
use crate::fault::{Fault, Work};
use crate::reads::{Assignment, AttemptRow, CallRow, Column as _, Hash, RunRow, RunRows};
use crate::{Digest, Lifecycle, Place, Recorded, RunId, RunRecord};

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
    /// Columns of a call, by its id.
    pub call_columns: Option<(String, Vec<Assignment>)>,
    /// Boundaries of the live branch after this one are undone, and so are those in its place under another epoch. The
    /// records and batches of records that came after it are hidden.
    pub undo_after: Option<Place>,
    /// A template, unless it is there.
    pub template: Option<Template>,
    /// Rows of the audit, in order.
    pub audit: Vec<AuditEntry>,
}

/// A template that makes pods, by the hash of its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Template {
    pub hash: String,
    pub document: String,
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

    /// The next row of the run's chain, whose end the run's row names.
    pub fn append(run: &mut RunRow, at: i64, kind: &'static str, actor: &str, detail: &Json) -> Self {
        let RunRow { id, audit_seq, audit_hash: Hash(parent_hash), .. } = *run;
        let (seq, actor, detail) = (audit_seq + 1, super::text(actor), detail.to_string());
        let link =
            AuditHeader { parent_hash: &parent_hash, run: id, seq, at, kind, actor: &actor, detail: &detail };
        let hash = link.hash();
        (run.audit_seq, run.audit_hash) = (seq, Hash(hash));
        Self { seq, at, kind, actor, detail, parent_hash, hash }
    }

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
    /// What is written besides the differences of the rows.
    write: WriteSet,
}

impl Change {
    pub fn of(rows: Rows) -> Self {
        let Rows { of_run, started, .. } = rows;
        let write = WriteSet { run: of_run.run.id, ..WriteSet::default() };
        Self { before: Some(of_run.clone()), rows: of_run, started, write }
    }

    /// Of a run that is not there yet.
    pub fn of_new(rows: RunRows) -> Self {
        let write = WriteSet { run: rows.run.id, ..WriteSet::default() };
        Self { before: None, rows, started: BTreeMap::new(), write }
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
        self.write.is_change = true;
    }

    /// What came after this boundary is undone.
    pub fn undo_after(&mut self, place: Place) {
        self.write.undo_after = Some(place);
    }

    /// A call changes.
    pub fn set_call(&mut self, before: &CallRow, after: &CallRow) {
        self.write.call_columns = Some((after.id.clone(), after.changes(before)));
    }

    /// A template is kept.
    pub fn keep(&mut self, template: Template) {
        self.write.template = Some(template);
    }

    /// Appends to the run's audit.
    pub fn audit(&mut self, kind: &'static str, actor: &str, detail: Json) {
        let RunRow { id, audit_seq, audit_hash: Hash(parent_hash), .. } = self.rows.run;
        let (seq, at, actor, detail) = (audit_seq + 1, self.rows.now, super::text(actor), detail.to_string());
        let link =
            AuditHeader { parent_hash: &parent_hash, run: id, seq, at, kind, actor: &actor, detail: &detail };
        let hash = link.hash();
        self.rows.run.audit_seq = seq;
        self.rows.run.audit_hash = Hash(hash);
        self.write.audit.push(AuditEntry { seq, at, kind, actor, detail, parent_hash, hash });
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
        let Self { before, rows, started: _, mut write } = self;
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
