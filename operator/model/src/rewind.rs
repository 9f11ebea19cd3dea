//! Going back to an earlier boundary.

use crate::{Place, RunRecord};

/// What to go back to, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rewind {
    /// The epoch under which this was decided: what has happened since is not undone.
    pub epoch: i64,
    /// The boundary that becomes the head.
    pub to: Place,
    /// Why the boundaries after it are given up; kept in the audit.
    pub reason: String,
    /// Who wants it: [`crate::audit::actor::OPERATOR`], or a person's name.
    pub actor: String,
}

/// The answer to [`crate::Operator::rewind`].
#[derive(Clone, Debug)]
pub enum Rewound {
    /// The head is the boundary that was asked for, now or already.
    Done(Box<RunRecord>),
    /// Nothing was changed: the run is over, has another epoch by now, or its live branch has no such boundary, or only the
    /// header of it ([`RunRecord::dropped_to`]).
    Refused(Box<RunRecord>),
}
