//! Whether a worker's write is admitted: pure functions of the run's row. The PostgreSQL engine has the same rules in
//! SQL.

use dalsegno_protocol::{Boundary, CallState, Policy};
use uuid::Uuid;

use super::row::RunRow;
use super::sqlx_types::Hash;
use crate::reads::CallRow;
use crate::transitions::{has_capability, has_unsettled};
use dalsegno_format::seal::BodyDigest;
use dalsegno_model::{Digest, Lifecycle};

/// The identity of a boundary that a worker wants to commit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Proposal {
    pub turn: i32,
    pub boundary: Boundary,
    pub commit_id: Uuid,
    pub digest: BodyDigest,
}

/// Whether a boundary may leave the current attempt's own calls without an outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OpenCalls {
    /// There are none, or the boundary names them all and is no finish.
    Allowed,
    Refused,
}

/// The decision on a commit or a batch of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admission {
    Accept,
    Duplicate,
    Fenced,
    Finished,
    UnsettledCalls,
    OpenCalls,
    Conflict,
}

/// Decides on a commit. The first condition that holds decides.
pub(super) fn admit_commit(
    row: &RunRow,
    capability: &Digest,
    proposal: &Proposal,
    open_calls: OpenCalls,
) -> Admission {
    if !has_capability(row, capability) {
        Admission::Fenced
    } else if is_head(row, proposal) {
        Admission::Duplicate
    } else if row.lifecycle.0 != Lifecycle::Live {
        Admission::Finished
    } else if has_unsettled(row) {
        Admission::UnsettledCalls
    } else if open_calls == OpenCalls::Refused {
        Admission::OpenCalls
    } else if !is_next(row, proposal) {
        Admission::Conflict
    } else {
        Admission::Accept
    }
}

/// Decides on a batch of records. The first condition that holds decides. `stored`: digest of the batch with the same
/// id.
pub(super) fn admit_records(
    row: &RunRow,
    capability: &Digest,
    stored: Option<Hash>,
    digest: &BodyDigest,
) -> Admission {
    if !has_capability(row, capability) {
        Admission::Fenced
    } else if stored.is_some_and(|stored| digest.matches(&stored.0)) {
        Admission::Duplicate
    } else if row.lifecycle.0 != Lifecycle::Live {
        Admission::Finished
    } else if has_unsettled(row) {
        Admission::UnsettledCalls
    } else if stored.is_some() {
        Admission::Conflict
    } else {
        Admission::Accept
    }
}

fn is_head(row: &RunRow, proposal: &Proposal) -> bool {
    row.head().is_some_and(|head| {
        (head.turn, head.boundary, head.commit_id) == (proposal.turn, proposal.boundary, proposal.commit_id)
            && proposal.digest.matches(&head.digest)
    })
}

/// A `plan` is followed by the `result` of the same turn. A `result`, and the start, are followed by either boundary of
/// the next turn.
fn is_next(row: &RunRow, proposal: &Proposal) -> bool {
    let (turn, is_planned) = match row.head() {
        None => (1, false),
        Some(head) if head.boundary == Boundary::Plan => (head.turn, true),
        Some(head) => (head.turn + 1, false),
    };
    proposal.turn == turn && !(is_planned && proposal.boundary == Boundary::Plan)
}

/// The decision on a claim of a call that exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClaimDecision {
    /// The call is started with this claim.
    Go,
    /// The call has ended.
    Done,
    /// Nobody knows whether the call took effect.
    Uncertain,
}

/// Decides on a claim: see the table of [`dalsegno_model::Claimed`].
pub(super) fn decide_claim(row: &RunRow, call: &CallRow, claim_id: Uuid) -> ClaimDecision {
    match call.public_state() {
        CallState::Completed | CallState::Failed => ClaimDecision::Done,
        CallState::Planned => ClaimDecision::Go,
        CallState::KeyRefused => ClaimDecision::Uncertain,
        CallState::Started if call.attempt == Some(row.attempt) => {
            if call.claim_id == Some(claim_id) {
                ClaimDecision::Go
            } else {
                ClaimDecision::Uncertain
            }
        }
        CallState::Started => match call.policy.0 {
            Policy::RetrySameKey | Policy::ReadOnly => ClaimDecision::Go,
            Policy::Probe | Policy::Ask => ClaimDecision::Uncertain,
        },
    }
}
