//! The rules of a run, each written once: what a transition checks, what it changes, and what it returns.
//!
//! A rule is a pure function. Its input is the rows of one run, read under the run's lock, the facts from its caller
//! and the store's clock. Its output is a [`WriteSet`] that names every column to set, and an answer. The engines
//! hold the lock, read the rows and write the set; they contain no rule.
//!
//! # Guarantees
//!
//! - A rule that changes nothing returns an empty set, and nothing is written.
//! - Every change of the run's row, its attempts or its calls is appended to the audit, except for the changes that
//!   [`dalsegno_model::audit`] lists as left out.
//!
//! # Assumptions
//!
//! - Every write to a run holds the lock of its row: no row of the run changes while a rule decides.

mod acknowledge_cancel;
mod announce;
mod answer_wait;
mod attach;
mod change;
mod copied;
mod create;
mod end;
mod end_attempt;
mod finish;
mod forgive_end;
mod fork;
mod mark_deleted;
mod open_wait;
mod outbox;
mod park;
mod put_revision;
mod record_identity;
mod record_pod;
mod record_purge;
mod record_scheduled;
mod record_started;
mod refuse_decision;
mod refuse_use;
mod request_cancel;
mod request_rewind;
mod reset_budget;
mod rewind;
mod send_message;
mod settings;
mod settle;
mod settle_time;
mod suspend;
#[cfg(test)]
mod tests;
mod waits;
mod worker;

use std::collections::BTreeMap;

use dalsegno_protocol::{Boundary, Policy};
use serde_json::Value;

pub(crate) use acknowledge_cancel::AcknowledgeCancel;
pub(crate) use announce::Announce;
pub(crate) use answer_wait::AnswerWait;
pub(crate) use attach::Attach;
pub(crate) use change::{AuditEntry, AuditEvent, Change, Decision, MovedRateLimit, WriteSet};
pub(crate) use copied::{CopiedRecords, NewBase};
pub(crate) use create::{Abandon, Adopt, CreateStep, OWN_OR_PRIOR_RUN, create, next_create_step};
pub(crate) use end::{finish_detail, set_finished};
pub(crate) use end_attempt::EndAttempt;
pub(crate) use finish::Finish;
pub(crate) use forgive_end::ForgiveEnd;
pub(crate) use fork::{AcceptFork, CopyRecords, EncodedBase, EndFork, ForkPoint, copied_to};
pub(crate) use mark_deleted::MarkDeleted;
pub(crate) use open_wait::OpenWait;
pub(crate) use outbox::{OutboxEntry, announce_object_sql, held_object};
pub(crate) use park::{ParkUnattended, ParkWithBoundary, parked};
pub(crate) use put_revision::PutRevision;
pub(crate) use record_identity::RecordIdentity;
pub(crate) use record_pod::RecordPod;
pub(crate) use record_purge::{PurgeRecord, RecordPurge};
pub(crate) use record_scheduled::RecordScheduled;
pub(crate) use record_started::RecordStarted;
pub(crate) use refuse_decision::RefuseDecision;
pub(crate) use refuse_use::RefuseUse;
pub(crate) use request_cancel::RequestCancel;
pub(crate) use request_rewind::{RequestRewind, UndoQuery};
pub(crate) use reset_budget::ResetBudget;
pub(crate) use send_message::SendMessage;
pub(crate) use settings::{SetDeadlines, SetLimits, SetRetention};
pub(crate) use settle::{SettleCall, is_unsettled};
pub(crate) use settle_time::{SettleTime, TimeOutWait};
pub(crate) use suspend::{Resume, Suspend};
pub(crate) use waits::withdrawn_detail;
pub(crate) use worker::{
    add_usage, commit_receipt, has_capability, has_unsettled, needs_outcome, renew_lease, report_signals,
};

use crate::db_error::{DbError, DbResult};
use crate::reads::{CallRow, LiveBoundary, MessageRef, RunRows, StoredWait, TakenSince};
use crate::texts::HoldsRecord;
use dalsegno_model::{BoundaryId, RequestedBy, RunId};

/// One rule, with the facts from its caller.
pub(crate) trait Transition: Send + Sync + 'static {
    /// What the caller gets.
    type Answer: HoldsRecord + Send + 'static;

    /// The operation, for the text of an error.
    const OPERATION: &'static str;

    /// What the rule reads besides the run, its attempts and its started calls.
    fn needs(&self) -> Needs<'_> {
        Needs::Nothing
    }

    /// Returns what to write, and the answer.
    fn decide(&self, rows: Rows) -> DbResult<Decision<Self::Answer>>;

    /// The answer if the run does not exist. An error, except for calls of workers, which may name any run.
    fn without_run(&self, run: RunId) -> DbResult<Self::Answer> {
        Err(DbError::Corrupt(format!("there is no run {run}")))
    }
}

/// What a rule reads besides the run, its attempts and its started calls.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Needs<'a> {
    Nothing,
    /// The boundaries of the live branch, beginning at this one, and the messages that later ones have taken.
    BoundariesFrom(BoundaryId),
    /// What a rewind by turns needs.
    Undo(UndoQuery),
    /// A call, and the bytes of all open calls.
    Call(&'a str),
    /// The message with this id.
    Message(&'a str),
    /// Nothing more. But no template may be dropped while the rule decides and writes.
    Templates,
    /// The last row of the run's audit.
    LastAudit,
    /// Waits of the live branch.
    Waits(WaitsQuery<'a>),
}

/// Which waits of the live branch a rule reads besides the open ones.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WaitsQuery<'a> {
    /// Their ids.
    pub ids: &'a [String],
    /// The rate limit whose other waits the rule must know of.
    pub rate_limit: Option<RateLimitQuery<'a>>,
    /// The unread message that a new wait is for.
    pub unread: Option<UnreadQuery<'a>>,
}

/// The waits for the rate limit of a provider.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RateLimitQuery<'a> {
    /// The provider.
    pub provider: &'a str,
    /// For so long after its own wait the run is a probe, in milliseconds.
    pub probe_ms: i64,
    /// For so long after the end of the rate limit only the first runs try, in milliseconds.
    pub first_ms: i64,
}

/// The first unread message that has answered no wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UnreadQuery<'a> {
    /// Its topic; `None`: of any.
    pub topic: Option<&'a str>,
}

/// The open waits of other runs of a namespace for the rate limit of one provider.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RateLimitQueue {
    /// How many there are.
    pub others: i64,
    /// How many of them try first.
    pub first: i64,
    /// Whether this run has just waited for the rate limit, and has tried again.
    pub is_probe: bool,
}

/// The rows of one run, read under its lock.
#[derive(Clone, Debug)]
pub(crate) struct Rows {
    /// The run and its attempts. The store's clock was read after the lock was taken.
    pub of_run: RunRows,
    /// The number of started calls, by policy.
    pub started: BTreeMap<Policy, i64>,
    /// For [`Needs::BoundariesFrom`] and [`Needs::Undo`]. Then the attempts include the one that committed the boundary
    /// that becomes the head.
    pub boundaries: Vec<LiveBoundary>,
    /// For [`Needs::Undo`]: ids of the calls of later turns that may have changed something.
    pub effects: Vec<String>,
    /// For [`Needs::Undo`]: whether the boundary that it names is on the live branch.
    pub has_if_head: bool,
    /// For [`Needs::Call`].
    pub call: Option<CallRow>,
    /// Bytes of all open calls, for [`Needs::Call`].
    pub open_calls: i64,
    /// For [`Needs::LastAudit`].
    pub last_audit: Option<LastAudit>,
    /// For [`Needs::Waits`]: those with these ids that exist, in any state.
    pub named_waits: Vec<StoredWait>,
    /// For [`Needs::Waits`] with a rate limit.
    pub rate_limit: RateLimitQueue,
    /// For [`Needs::Waits`] with an unread message: its position.
    pub unread_message: Option<i64>,
    /// For [`Needs::Message`].
    pub message: Option<MessageRef>,
    /// For [`Needs::BoundariesFrom`] and [`Needs::Undo`]: the messages that boundaries after it have taken.
    pub taken_since: TakenSince,
}

/// The last row of a run's audit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LastAudit {
    /// Its kind.
    pub kind: String,
    /// Its detail, as JSON.
    pub detail: String,
    /// Whether no anchor names it yet.
    pub has_moved: bool,
}

impl LastAudit {
    /// Selects the columns `kind`, `detail` and `has_moved`, in both databases. The parameter is the run.
    pub const SQL: &'static str = "SELECT audit.kind, audit.detail, runs.has_moved FROM runs \
         JOIN audit ON audit.run = runs.id AND audit.seq = runs.audit_seq WHERE runs.id = $1";

    /// Whether the row has this kind and this detail.
    pub fn is(&self, kind: &str, detail: &Value) -> bool {
        self.kind == kind && serde_json::from_str(&self.detail).is_ok_and(|stored: Value| stored == *detail)
    }
}

impl Rows {
    /// The rows for a rule that needs [`Needs::Nothing`].
    pub fn new(of_run: RunRows, started: BTreeMap<Policy, i64>) -> Self {
        Self {
            of_run,
            started,
            boundaries: Vec::new(),
            effects: Vec::new(),
            has_if_head: false,
            call: None,
            open_calls: 0,
            last_audit: None,
            named_waits: Vec::new(),
            rate_limit: RateLimitQueue::default(),
            unread_message: None,
            message: None,
            taken_since: TakenSince::default(),
        }
    }

    /// Whether boundaries have taken messages.
    pub fn has_taken_messages(&self) -> bool {
        self.of_run.run.inbox > self.of_run.run.unread
    }

    /// The result of this turn on the live branch.
    pub fn result_of_turn(&self, turn: i32) -> Option<BoundaryId> {
        let mut ids = self.boundaries.iter().map(|boundary| boundary.id);
        ids.find(|id| (id.turn, id.boundary) == (turn, Boundary::Result))
    }

    /// The attempt that committed this boundary, if it was not read yet.
    pub fn missing_attempt(&self, boundary_id: BoundaryId) -> Option<i32> {
        let boundary = self.boundaries.iter().find(|boundary| boundary.id == boundary_id)?;
        Some(boundary.attempt).filter(|number| self.of_run.attempt(*number).is_none())
    }
}

/// A text that both databases can store. PostgreSQL stores no NUL, and the last lines of a log may contain one.
fn text(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}

/// Adds to the detail of an audit row who requested the change, and why, as far as known.
fn with_attribution(requested_by: &RequestedBy, mut detail: serde_json::Value) -> serde_json::Value {
    let RequestedBy { manager, user, reason } = requested_by;
    if manager.is_some() && user.is_none() {
        detail["proven"] = false.into();
    }
    for (name, known) in [("manager", manager), ("user", user), ("reason", reason)] {
        if let Some(known) = known {
            detail[name] = text(known).into();
        }
    }
    detail
}
