//! What a call comes to, from the run's row alone: pure, total, the same as the PostgreSQL face says in SQL.

use dalsegno_protocol::{Boundary, CallState, Policy};
use uuid::Uuid;

use super::columns::Hash;
use super::row::RunRow;
use crate::reads::CallRow;
use crate::seal::BodyDigest;
use crate::transitions::has_unsettled;
pub(super) use crate::transitions::{has_capability, is_unsettled};
use crate::{Digest, Lifecycle};

/// What identifies a boundary that a worker wants to commit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Proposal {
    pub turn: i32,
    pub boundary: Boundary,
    pub commit_id: Uuid,
    pub digest: BodyDigest,
}

/// What becomes of a commit or a batch of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ruling {
    Accept,
    Duplicate,
    Fenced,
    Finished,
    UnsettledCalls,
    Conflict,
}

/// A commit, in the order of judgement.
pub(super) fn commit(row: &RunRow, capability: &Digest, proposal: &Proposal) -> Ruling {
    if !has_capability(row, capability) {
        Ruling::Fenced
    } else if is_head(row, proposal) {
        Ruling::Duplicate
    } else if row.lifecycle.0 != Lifecycle::Live {
        Ruling::Finished
    } else if has_unsettled(row) {
        Ruling::UnsettledCalls
    } else if !is_next(row, proposal) {
        Ruling::Conflict
    } else {
        Ruling::Accept
    }
}

/// A batch of records, in the order of judgement. `before`: digest of the batch that was written under this id.
pub(super) fn records(
    row: &RunRow,
    capability: &Digest,
    before: Option<Hash>,
    digest: &BodyDigest,
) -> Ruling {
    if !has_capability(row, capability) {
        Ruling::Fenced
    } else if before.is_some_and(|before| digest.matches(&before.0)) {
        Ruling::Duplicate
    } else if row.lifecycle.0 != Lifecycle::Live {
        Ruling::Finished
    } else if has_unsettled(row) {
        Ruling::UnsettledCalls
    } else if before.is_some() {
        Ruling::Conflict
    } else {
        Ruling::Accept
    }
}

fn is_head(row: &RunRow, proposal: &Proposal) -> bool {
    row.head().is_some_and(|head| {
        (head.turn, head.boundary, head.commit_id) == (proposal.turn, proposal.boundary, proposal.commit_id)
            && proposal.digest.matches(&head.digest)
    })
}

/// After a plan comes its result; after a result, or at the start, either boundary of the next turn.
fn is_next(row: &RunRow, proposal: &Proposal) -> bool {
    let (turn, plan_is_there) = match row.head() {
        None => (1, false),
        Some(head) if head.boundary == Boundary::Plan => (head.turn, true),
        Some(head) => (head.turn + 1, false),
    };
    proposal.turn == turn && !(plan_is_there && proposal.boundary == Boundary::Plan)
}

/// What becomes of a claim of a call that is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Claiming {
    /// It becomes, or stays, started under this claim.
    Go,
    Done,
    Uncertain,
}

/// A claim, by the table of [`crate::Claimed`].
pub(super) fn claim(row: &RunRow, call: &CallRow, claim_id: Uuid) -> Claiming {
    match call.public_state() {
        CallState::Completed | CallState::Failed => Claiming::Done,
        CallState::Planned => Claiming::Go,
        CallState::KeyRefused => Claiming::Uncertain,
        CallState::Started if call.attempt == Some(row.attempt) => {
            if call.claim_id == Some(claim_id) {
                Claiming::Go
            } else {
                Claiming::Uncertain
            }
        }
        CallState::Started => match call.policy.0 {
            Policy::RetrySameKey | Policy::ReadOnly => Claiming::Go,
            Policy::Probe | Policy::Ask => Claiming::Uncertain,
        },
    }
}
