//! A fork: a new run that begins with the state and the records of another run, as they were after one of its turns.

use serde::{Deserialize, Serialize};

use crate::{AvailableTurns, Effects, RequestedBy, RunId, RunRecord};

/// What a fork is made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForkRequest {
    /// The parent, of the same namespace.
    pub parent: ParentRun,
    /// The turn after which the fork begins; `None`: the last one with a result.
    pub turn: Option<i32>,
    /// Ids of calls with effects in later turns of the parent.
    pub accept_effects: Vec<String>,
    /// Who requested it, for the audit.
    pub requested_by: RequestedBy,
}

/// Which run is forked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ParentRun {
    /// The run that has this name now.
    Name(String),
    /// The run of the AgentRun with this UID, even if that was deleted.
    ObjectUid(String),
}

/// A fork as its own row shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ForkRow {
    /// How far it is.
    pub state: ForkState,
    /// The parent; `None` before the fork was accepted.
    pub parent: Option<RunId>,
    /// The turn; `None` before the fork was accepted.
    pub turn: Option<i32>,
    /// Content hash of the turn's result, `sha256:…`; `None` before the fork was accepted.
    pub content_hash: Option<String>,
}

/// How far a fork is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ForkState {
    /// Nothing is copied: its parent was not looked at, or the fork is refused.
    Pending,
    /// It was accepted, and its records are being copied. The state is copied last.
    Copying,
    /// Everything is copied. The run can start.
    Done,
}

/// The answer to [`crate::Operator::fork`].
#[derive(Clone, Debug)]
pub enum Forked {
    /// The fork is one step further, or is done.
    Step(Box<RunRecord>),
    /// The fork cannot go on. It may be tried again.
    Refused(ForkRefusal),
}

/// Why a fork cannot go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ForkRefusal {
    /// The namespace has no such run in this store.
    NoSuchRun,
    /// The parent has no result of this turn, or its state or records were dropped or undone.
    TurnNotAvailable(AvailableTurns),
    /// Calls of later turns of the parent may have changed something, and the request does not name them.
    Effects(Effects),
    /// The parent's state or records cannot be read: they are damaged, were dropped or shredded. Holds why.
    Unreadable(String),
}
