//! What can be proved of what is kept: chains, anchors, bundles. Pure but for [`check_store`] and [`check_run`],
//! which read.
//!
//! Every check goes on after a problem, from the row at which it stands, so that one edited row is one problem and
//! not a thousand.

mod account;
mod anchor;
mod anchors;
mod audit_chain;
mod boundary_chain;
pub mod bundle;
mod calls;
mod check;
mod marks;
mod records;
mod retention;
mod rows;
mod run;
mod said;
mod signing;
mod texts;

use std::fmt;

pub use anchor::{Anchor, RUNS as RUNS_PER_ANCHOR, Standing, Unanchored};
pub use anchors::Anchors;
pub use audit_chain::AuditChain;
pub use boundary_chain::BoundaryChain;
pub use check::{Summary, check_store};
pub use run::{Checked, check_run};
pub use signing::{PublicKey, Signer, is_signed};

use crate::RunId;

/// Something that is not as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The run; `None`: of no run.
    pub run: Option<RunId>,
    /// Where, such as `audit row 7`.
    pub place: String,
    /// What is wrong there.
    pub what: String,
}

impl Problem {
    /// A problem of a run.
    pub fn of(run: RunId, place: impl Into<String>, what: impl Into<String>) -> Self {
        Self { run: Some(run), place: place.into(), what: what.into() }
    }

    /// A problem of no run.
    pub fn at(place: impl Into<String>, what: impl Into<String>) -> Self {
        Self { run: None, place: place.into(), what: what.into() }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { run, place, what } = self;
        match run {
            Some(run) => write!(f, "run {run}, {place}: {what}"),
            None => write!(f, "{place}: {what}"),
        }
    }
}
