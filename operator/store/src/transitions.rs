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

mod change;
mod end;
mod end_attempt;
mod record_identity;
mod record_scheduled;

use std::collections::BTreeMap;

use dalsegno_protocol::Policy;

pub(crate) use change::{AuditEntry, Change, Decision, WriteSet};
pub(crate) use end_attempt::EndAttempt;
pub(crate) use record_identity::RecordIdentity;
pub(crate) use record_scheduled::RecordScheduled;

use crate::RunId;
use crate::fault::{Fault, Work};
use crate::reads::RunRows;

/// One rule, with the facts that its caller brings.
pub(crate) trait Transition: Send + Sync + 'static {
    /// What the caller is told.
    type Answer: Send + 'static;

    /// What is done, as an error says it.
    const OPERATION: &'static str;

    /// What is written, and the answer.
    fn decide(&self, rows: Rows) -> Work<Decision<Self::Answer>>;

    /// The answer where there is no such run. An error, unless a worker may ask for any run.
    fn without_run(&self, run: RunId) -> Work<Self::Answer> {
        Err(Fault::Corrupt(format!("there is no run {run}")))
    }
}

/// The rows of one run as they stand under its lock.
#[derive(Clone, Debug)]
pub(crate) struct Rows {
    /// The run and its attempts. The store's clock was read once the lock was held.
    pub of_run: RunRows,
    /// Calls that are started, by their policy.
    pub started: BTreeMap<Policy, i64>,
}

/// A text as both databases keep it: PostgreSQL's have no NUL, which a log's last lines may well have.
fn text(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}
