//! Going back to an earlier boundary.

use crate::{Place, RunRecord};

/// A request to rewind a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rewind {
    /// The epoch in which the rewind was decided. If the run has another epoch, nothing is undone.
    pub epoch: i64,
    /// The boundary that becomes the head.
    pub to: Place,
    /// Why the later boundaries are undone; stored in the audit.
    pub reason: String,
    /// Who requested it: [`crate::audit::actor::OPERATOR`], or a person's name.
    pub actor: String,
}

/// The answer to [`crate::Operator::rewind`].
#[derive(Clone, Debug)]
pub enum Rewound {
    /// The requested boundary is the head, now or from an earlier call.
    Done(Box<RunRecord>),
    /// Nothing was changed: the run is over or has another epoch, or its live branch does not have this boundary, or
    /// has only the boundary's header ([`RunRecord::dropped_to`]).
    Refused(Box<RunRecord>),
}
