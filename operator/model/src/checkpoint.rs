//! Whether a run can continue from its head, and if not, from which boundary it could. `dalsegno_proof::verify`
//! computes it.

use crate::{BoundaryId, RunRecord};

/// Whether a run can continue from its head. If the store does not respond, the result is an [`crate::Error`]
/// instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Checkpoint {
    /// The state at the head can be rebuilt, and every boundary behind it matches its hash; or nothing was ever
    /// committed. The calls that the next attempt may receive can be read.
    Valid,
    /// The run cannot continue from its head.
    Corrupt(CheckpointCorruption),
}

/// Why a run cannot continue from its head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointCorruption {
    /// What is wrong, and where.
    pub detail: String,
    /// The last boundary from which the run could continue. `None` if there is none, or if a rewind would not help.
    pub last_good: Option<LastGood>,
}

/// A boundary from which a run could continue, and what would then be repeated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastGood {
    /// The boundary.
    pub boundary: BoundaryId,
    /// Calls of later turns that may have changed something: started, and not `readOnly`.
    pub effects: Vec<String>,
}

/// A request to rewind a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rewind {
    /// The epoch in which the rewind was decided. If the run has another epoch, nothing is undone.
    pub epoch: i64,
    /// The boundary that becomes the head.
    pub to: BoundaryId,
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
