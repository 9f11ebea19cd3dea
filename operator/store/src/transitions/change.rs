//! A transition in progress: the rows before it, the rows after it, and the difference as a [`WriteSet`].

use std::collections::BTreeMap;

use dalsegno_protocol::Policy;
use serde_json::Value as Json;

use super::Rows;
use super::copied::{CopiedRecords, NewBase};
use super::outbox::OutboxEntry;
use crate::db_error::{DbError, DbResult};
use crate::reads::{
    Assignment, AttemptRow, CallRow, Column as _, Hash, MessageRow, RunRow, RunRows, WaitRow,
};
use dalsegno_format::audit::AuditHeader;
use dalsegno_model::{BoundaryId, Digest, Lifecycle, Recorded, RunId, RunRecord, Template};

/// Everything that a transition writes. Columns that it does not name are unchanged.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct WriteSet {
    pub run: RunId,
    /// The run's row, if it is new.
    pub created: Option<Box<RunRow>>,
    /// Columns of the run's row.
    pub run_columns: Vec<Assignment>,
    /// Whether the operator must see the change at once. Then the database sets `changed_at`, by its own clock.
    pub is_change: bool,
    /// Columns of attempts, by the attempt's number.
    pub attempt_columns: Vec<(i32, Vec<Assignment>)>,
    /// New attempts.
    pub reserved: Vec<AttemptRow>,
    /// The id of a call, and its columns.
    pub call_columns: Option<(String, Vec<Assignment>)>,
    /// Id and opening epoch of waits, and their columns.
    pub wait_columns: Vec<(WaitKey, Vec<Assignment>)>,
    /// A new wait.
    pub opened_wait: Option<Vec<Assignment>>,
    /// Moves the waits of other runs for a rate limit that ends later than they know.
    pub moved_rate_limit: Option<MovedRateLimit>,
    /// Undoes the boundaries of the live branch after this one, and those with its turn and boundary under another
    /// epoch. Hides the records, batches of records and waits that came after it, and gives back the messages that these
    /// boundaries have taken.
    pub undo_after: Option<BoundaryId>,
    /// Records that a fork copies from its parent.
    pub copied_records: Option<CopiedRecords>,
    /// The first boundary of a fork.
    pub base: Option<NewBase>,
    /// A new message.
    pub message: Option<Box<MessageRow>>,
    /// A template to insert, unless it exists.
    pub template: Option<Template>,
    /// New rows of the outbox.
    pub outbox: Vec<OutboxEntry>,
    /// New rows of the audit, in order.
    pub audit: Vec<AuditEntry>,
}

impl WriteSet {
    /// Whether nothing is written.
    pub fn is_empty(&self) -> bool {
        *self == Self { run: self.run, ..Self::default() }
    }
}

/// Id and opening epoch of a wait.
pub(crate) type WaitKey = (String, i64);

/// A rate limit whose end a run has learned anew.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MovedRateLimit {
    pub tenant: String,
    pub provider: String,
    /// The new end. Waits that were computed from an earlier one are moved by the difference, at most by [`Self::MOST_MS`].
    pub reset_at: i64,
}

impl MovedRateLimit {
    /// The most by which one probe moves the waits of other runs, in milliseconds. A run that errs delays no other for
    /// long; if the limit does last longer, the next probe moves them again.
    pub const MOST_MS: i64 = 600_000;
}

/// A row of the audit, linked to the row before it.
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

/// What an audit entry says.
pub(crate) struct AuditEvent<'a> {
    pub kind: &'static str,
    pub actor: &'a str,
    pub detail: Json,
}

impl AuditEntry {
    pub const TABLE: &'static str = "audit";

    /// The next row of the run's chain. Updates the end of the chain in the run's row.
    pub fn append(run: &mut RunRow, at: i64, event: AuditEvent<'_>) -> Self {
        let AuditEvent { kind, actor, detail } = event;
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

/// The result of a rule.
#[derive(Debug)]
pub(crate) struct Decision<A> {
    pub write: WriteSet,
    pub answer: A,
}

/// The rows that a rule changes, and a copy of them from before.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    /// `None`: the run is new.
    before: Option<RunRows>,
    rows: RunRows,
    started: BTreeMap<Policy, i64>,
    /// The encoded request of a new wait.
    request: Option<Vec<u8>>,
    /// The encoded answer of a wait.
    wait_answer: Option<(WaitKey, Vec<u8>)>,
    /// What is written besides the differences between the rows.
    write: WriteSet,
}

impl Change {
    pub fn of(rows: Rows) -> Self {
        let Rows { of_run, started, .. } = rows;
        let write = WriteSet { run: of_run.run.id, ..WriteSet::default() };
        Self { before: Some(of_run.clone()), rows: of_run, started, request: None, wait_answer: None, write }
    }

    /// For a new run.
    pub fn of_new(rows: RunRows) -> Self {
        let write = WriteSet { run: rows.run.id, ..WriteSet::default() };
        Self { before: None, rows, started: BTreeMap::new(), request: None, wait_answer: None, write }
    }

    /// The store's clock.
    pub fn now(&self) -> i64 {
        self.rows.now
    }

    /// The run's row.
    pub fn run(&mut self) -> &mut RunRow {
        &mut self.rows.run
    }

    /// The run's row with the changes so far.
    pub fn row(&self) -> &RunRow {
        &self.rows.run
    }

    /// Whether the run is live. The operator changes no other run.
    pub fn is_live(&self) -> bool {
        self.rows.run.lifecycle.0 == Lifecycle::Live
    }

    /// The number of started calls with this policy.
    pub fn started(&self, policy: Policy) -> i64 {
        self.started.get(&policy).copied().unwrap_or_default()
    }

    /// The row of the current attempt.
    pub fn attempt(&mut self) -> DbResult<&mut AttemptRow> {
        let RunRow { id, attempt: number, .. } = self.rows.run;
        let mut attempts = self.rows.attempts.iter_mut();
        let current = attempts.find(|attempt| attempt.number == number);
        current.ok_or_else(|| DbError::Corrupt(format!("run {id} has no attempt {number}")))
    }

    /// The rows of the attempts, the latest first.
    pub fn attempts(&mut self) -> &mut [AttemptRow] {
        &mut self.rows.attempts
    }

    /// Adds a new attempt. It is the latest.
    pub fn reserve(&mut self, attempt: AttemptRow) {
        self.rows.attempts.insert(0, attempt);
    }

    /// Adds a row for an attempt before the first.
    pub fn add_past_attempt(&mut self, attempt: AttemptRow) {
        self.rows.attempts.push(attempt);
    }

    /// Stores records that a fork copies.
    pub fn copy_records(&mut self, records: CopiedRecords) {
        self.write.copied_records = Some(records);
    }

    /// Inserts the first boundary of a fork.
    pub fn insert_base(&mut self, base: NewBase) {
        self.write.base = Some(base);
    }

    /// The open waits of the run's live branch, and those that this change has answered.
    pub fn waits(&self) -> &[WaitRow] {
        &self.rows.waits
    }

    /// The same, to change them.
    pub fn waits_mut(&mut self) -> &mut Vec<WaitRow> {
        &mut self.rows.waits
    }

    /// Adds a new wait, with its encoded request.
    pub fn open_wait(&mut self, wait: WaitRow, request: Vec<u8>) {
        self.rows.waits.push(wait);
        self.request = Some(request);
    }

    /// Sets the encoded answer of a wait that this change answers.
    pub fn set_wait_answer(&mut self, key: WaitKey, answer: Vec<u8>) {
        self.wait_answer = Some((key, answer));
    }

    /// Moves the waits of other runs for this rate limit.
    pub fn move_rate_limit(&mut self, moved: MovedRateLimit) {
        self.write.moved_rate_limit = Some(moved);
    }

    /// Marks the change as one that the operator must see at once.
    pub fn notify(&mut self) {
        self.write.is_change = true;
    }

    /// Undoes what came after this boundary.
    pub fn undo_after(&mut self, boundary_id: BoundaryId) {
        self.write.undo_after = Some(boundary_id);
    }

    /// Changes a call.
    pub fn set_call(&mut self, before: &CallRow, after: &CallRow) {
        self.write.call_columns = Some((after.id.clone(), after.changes(before)));
    }

    /// Inserts a message.
    pub fn insert_message(&mut self, message: MessageRow) {
        self.write.message = Some(Box::new(message));
    }

    /// Inserts a template, unless it exists.
    pub fn insert_template(&mut self, template: Template) {
        self.write.template = Some(template);
    }

    /// Stores a notification of people.
    pub fn notify_people(&mut self, entry: OutboxEntry) {
        self.write.outbox.push(entry);
    }

    /// Appends to the run's audit.
    pub fn audit(&mut self, kind: &'static str, actor: &str, detail: Json) {
        let now = self.rows.now;
        self.write.audit.push(AuditEntry::append(
            &mut self.rows.run,
            now,
            AuditEvent { kind, actor, detail },
        ));
    }

    /// The run's record with the changes so far.
    pub fn record(&self) -> DbResult<Box<RunRecord>> {
        self.rows.record().map(Box::new)
    }

    /// The changes, with the changed record as the answer.
    pub fn with_record(self) -> DbResult<Decision<RunRecord>> {
        let record = self.rows.record()?;
        Ok(self.decide(record))
    }

    /// The answer that the fact is recorded, by this call or by an earlier one.
    pub fn recorded(self) -> DbResult<Decision<Recorded>> {
        let answer = Recorded::Done(self.record()?);
        Ok(self.decide(answer))
    }

    /// The answer that the fact is not about the run's current attempt. Nothing may have changed.
    pub fn refused(self) -> DbResult<Decision<Recorded>> {
        let answer = Recorded::Refused(self.record()?);
        Ok(self.decide(answer))
    }

    /// The changes, with the answer.
    pub fn decide<A>(self, answer: A) -> Decision<A> {
        let Self { before, rows, started: _, request, wait_answer, mut write } = self;
        let Some(before) = before else {
            (write.created, write.reserved) = (Some(Box::new(rows.run)), rows.attempts);
            return Decision { write, answer };
        };
        write.run_columns = rows.run.changes(&before.run);
        for attempt in rows.attempts {
            let Some(old) = before.attempt(attempt.number) else {
                write.reserved.push(attempt);
                continue;
            };
            let columns = attempt.changes(old);
            if !columns.is_empty() {
                write.attempt_columns.push((attempt.number, columns));
            }
        }
        for wait in rows.waits {
            let is_same = |other: &&WaitRow| (&other.id, other.epoch) == (&wait.id, wait.epoch);
            let Some(old) = before.waits.iter().find(is_same) else {
                let request = [("request", request.clone().value())];
                write.opened_wait = Some(wait.assignments().into_iter().chain(request).collect());
                continue;
            };
            let (mut columns, key) = (wait.changes(old), (wait.id, wait.epoch));
            if let Some((_, answer)) = wait_answer.as_ref().filter(|(answered, _)| *answered == key) {
                columns.push(("answer", answer.clone().value()));
            }
            if !columns.is_empty() {
                write.wait_columns.push((key, columns));
            }
        }
        Decision { write, answer }
    }
}
