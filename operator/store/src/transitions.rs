//! The rules of a run, each written once: what a transition checks, what it changes, what it answers.
//!
//! A rule is pure. It is given the rows of one run as they stand under the run's lock, the facts that its caller brings
//! and the store's clock, and it returns a [`WriteSet`] that names every column it sets. Each database holds the lock,
//! reads the rows and writes the set; it knows no rule.
//!
//! # Guarantees
//!
//! - A rule that changes nothing returns an empty set, and nothing is written.
//! - Whatever a rule changes in the run's row, its attempts or its calls it appends to the audit, but for what the list
//!   in [`crate::audit`] leaves out.
//!
//! # Assumptions
//!
//! - Whoever writes to a run holds the lock of its row: while a rule decides, no row of the run changes.

mod acknowledge_cancel;
mod attach;
mod change;
mod create;
mod end;
mod end_attempt;
mod finish;
mod mark_deleted;
mod put_revision;
mod record_identity;
mod record_pod;
mod record_scheduled;
mod request_cancel;
mod reset_budget;
mod rewind;
mod settings;
mod settle;
#[cfg(test)]
mod tests;
mod worker;

use std::collections::BTreeMap;

use dalsegno_protocol::Policy;

pub(crate) use acknowledge_cancel::AcknowledgeCancel;
pub(crate) use attach::Attach;
pub(crate) use change::{AuditEntry, Change, Decision, Template, WriteSet};
pub(crate) use create::{Abandon, Adopt, LOOK, NextStep, create, next_step};
pub(crate) use end::{close, finish_detail};
pub(crate) use end_attempt::EndAttempt;
pub(crate) use finish::Finish;
pub(crate) use mark_deleted::MarkDeleted;
pub(crate) use put_revision::PutRevision;
pub(crate) use record_identity::RecordIdentity;
pub(crate) use record_pod::RecordPod;
pub(crate) use record_scheduled::RecordScheduled;
pub(crate) use request_cancel::RequestCancel;
pub(crate) use reset_budget::ResetBudget;
pub(crate) use settings::{SetDeadlines, SetRetention};
pub(crate) use settle::{SettleCall, is_unsettled};
pub(crate) use worker::{has_unsettled, holds, renew_lease, standing, tell_cancel};

use crate::fault::{Fault, Work};
use crate::reads::{CallRow, LiveBoundary, RunRows};
use crate::{AskedBy, Place, RunId};

/// One rule, with the facts that its caller brings.
pub(crate) trait Transition: Send + Sync + 'static {
    /// What the caller is told.
    type Answer: Send + 'static;

    /// What is done, as an error says it.
    const OPERATION: &'static str;

    /// What is read besides the run and its attempts.
    fn needs(&self) -> Needs<'_> {
        Needs::Nothing
    }

    /// What is written, and the answer.
    fn decide(&self, rows: Rows) -> Work<Decision<Self::Answer>>;

    /// The answer where there is no such run. An error, unless a worker may ask for any run.
    fn without_run(&self, run: RunId) -> Work<Self::Answer> {
        Err(Fault::Corrupt(format!("there is no run {run}")))
    }
}

/// What a rule reads besides the run, its attempts and its started calls.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Needs<'a> {
    Nothing,
    /// Boundaries of the live branch from this one on.
    BoundariesFrom(Place),
    /// A call, and how much the open calls are.
    Call(&'a str),
    /// Nothing; but while the rule decides and writes, nobody drops templates.
    Templates,
}

/// The rows of one run as they stand under its lock.
#[derive(Clone, Debug)]
pub(crate) struct Rows {
    /// The run and its attempts. The store's clock was read once the lock was held.
    pub of_run: RunRows,
    /// Calls that are started, by their policy.
    pub started: BTreeMap<Policy, i64>,
    /// For [`Needs::BoundariesFrom`]; and the attempts of the run include the one that committed the first.
    pub boundaries: Vec<LiveBoundary>,
    /// For [`Needs::Call`].
    pub call: Option<CallRow>,
    /// Bytes that the open calls count, for [`Needs::Call`].
    pub open_calls: i64,
}

impl Rows {
    /// The rows of a rule that needs no more.
    pub fn new(of_run: RunRows, started: BTreeMap<Policy, i64>) -> Self {
        Self { of_run, started, boundaries: Vec::new(), call: None, open_calls: 0 }
    }

    /// The attempt that committed the boundary at this place, where it is not among those that were read.
    pub fn missing_attempt(&self, place: Place) -> Option<i32> {
        let boundary = self.boundaries.iter().find(|boundary| boundary.place == place)?;
        Some(boundary.attempt).filter(|number| self.of_run.attempt(*number).is_none())
    }
}

/// A text as both databases keep it: PostgreSQL's have no NUL, which a log's last lines may well have.
fn text(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}

/// The detail of a row of the audit, with what is known of who asked for it and why.
fn asked(by: &AskedBy, mut detail: serde_json::Value) -> serde_json::Value {
    let AskedBy { manager, reason } = by;
    for (name, known) in [("manager", manager), ("reason", reason)] {
        if let Some(known) = known {
            detail[name] = text(known).into();
        }
    }
    detail
}
