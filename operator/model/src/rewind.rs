//! A rewind that a person requests, and one that the operator makes before the last try at a checkpoint.

use serde::{Deserialize, Serialize};

use crate::{BoundaryId, RequestedBy};

/// Calls that a refusal names. The others are counted.
pub const LISTED_EFFECTS: usize = 100;

/// A person's request to go back to the end of an earlier turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RewindRequest {
    /// The number of the request. A number that is not above [`crate::RunRecord::observed_rewind_generation`] does
    /// nothing.
    pub generation: i64,
    /// The turn whose result becomes the head.
    pub to_turn: i32,
    /// Content hash of a boundary, `sha256:…`. It must still be on the live branch.
    pub if_head: Option<String>,
    /// Ids of calls with effects in the turns that are undone.
    pub accept_effects: Vec<String>,
    /// Who requested it, for the audit.
    pub requested_by: RequestedBy,
}

/// What became of the last request to rewind a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RewindResult {
    /// The number of the request.
    pub generation: i64,
    /// The turn that was requested.
    pub to_turn: i32,
    /// Why nothing was undone. `None`: the rewind was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<RewindRefusal>,
}

/// Why a requested rewind was not made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "why", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum RewindRefusal {
    /// The live branch does not have the result of this turn, or retention has dropped its state.
    TurnNotAvailable(AvailableTurns),
    /// The boundary of [`RewindRequest::if_head`] is not on the live branch.
    HeadChanged {
        /// Content hash of the head; `None` if nothing is committed.
        head: Option<String>,
    },
    /// Calls of the turns that would be undone may have changed something, and the request does not name them.
    Effects(Effects),
}

/// The turns that a run can go back to, or be forked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AvailableTurns {
    /// The first turn whose state retention has kept.
    pub first: i32,
    /// The last turn with a result. Below `first`: there is none.
    pub last: i32,
}

/// Calls that may have changed something: not `readOnly`, and completed or of unknown outcome.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Effects {
    /// Their ids, in the order in which the calls were first seen, at most [`LISTED_EFFECTS`].
    pub calls: Vec<String>,
    /// How many there are besides these.
    pub further: usize,
}

impl Effects {
    /// Those of these calls that a request does not name. `None`: it names all of them.
    pub fn missing(calls: &[String], accepted: &[String]) -> Option<Self> {
        let accepted: std::collections::BTreeSet<_> = accepted.iter().collect();
        let missing: Vec<_> = calls.iter().filter(|id| !accepted.contains(id)).collect();
        (!missing.is_empty()).then(|| Self {
            calls: missing.iter().take(LISTED_EFFECTS).copied().cloned().collect(),
            further: missing.len().saturating_sub(LISTED_EFFECTS),
        })
    }
}

/// One turn back, before the last try of a run that keeps dying at one checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepBack {
    /// The epoch in which it was decided.
    pub epoch: i64,
    /// The head that attempts keep dying at.
    pub from: BoundaryId,
}
