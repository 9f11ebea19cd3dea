//! Tool calls: claimed, completed, settled.

use dalsegno_protocol::{CallOutcome, CompleteOutcome, Policy, RawValue};
use uuid::Uuid;

use crate::{Digest, RunId};

/// A call to claim.
#[derive(Debug)]
pub struct Claim {
    /// Of which run.
    pub run: RunId,
    /// SHA-256 of the worker's instance.
    pub capability: Digest,
    /// The call's name.
    pub id: String,
    /// The worker's id of the claim.
    pub claim_id: Uuid,
    /// What to do about an unknown outcome.
    pub policy: Policy,
    /// The idempotency key; needed unless the call was planned.
    pub key: Option<String>,
    /// What the tool is called with.
    pub arguments: Option<Box<RawValue>>,
}

/// The answer to a claim.
///
/// | the call is | verdict |
/// |---|---|
/// | new, or planned | `Go` (becomes started under this claim) |
/// | started, same claim | `Go` |
/// | started by this attempt, another claim | `Uncertain` |
/// | started, and its key refused | `Uncertain` |
/// | started by an earlier attempt, `retrySameKey` or `readOnly` | `Go` with the stored key (this attempt's from now on) |
/// | started by an earlier attempt, `probe` or `ask` | `Uncertain` |
/// | completed or failed | `Done` |
///
/// What would go, and makes the open calls too large, is `TooLarge`.
#[derive(Clone, Debug)]
pub enum Claimed {
    /// Call the tool, with the key in the call.
    Go(Box<dalsegno_protocol::Call>),
    /// It was done.
    Done(Box<dalsegno_protocol::Call>),
    /// Nobody knows.
    Uncertain(Box<dalsegno_protocol::Call>),
    /// The call is new and has no key, or another key or policy than it was planned or claimed with.
    Invalid(String),
    /// The open calls would count more than they may ([`dalsegno_protocol::Limits::OPEN_CALLS_BYTES`]).
    TooLarge,
    /// The capability is not the current epoch's.
    Fenced,
    /// The run is over.
    Finished,
    /// No run of this id.
    NotFound,
}

/// The result of a call.
#[derive(Debug)]
pub struct Complete {
    /// Of which run.
    pub run: RunId,
    /// SHA-256 of the worker's instance.
    pub capability: Digest,
    /// The call's name.
    pub id: String,
    /// The claim under which the tool was called.
    pub claim_id: Uuid,
    /// How it ended.
    pub outcome: CompleteOutcome,
    /// What the tool answered.
    pub result: Option<Box<RawValue>>,
}

/// Somebody's word on how a call ended.
#[derive(Debug)]
pub struct Settle {
    /// Of which run.
    pub run: RunId,
    /// Who says so.
    pub by: SettledBy,
    /// The call's name.
    pub id: String,
    /// How it ended.
    pub outcome: CallOutcome,
    /// What the tool had answered, if known.
    pub result: Option<Box<RawValue>>,
    /// How it was found out.
    pub reason: String,
}

/// Who settles a call.
#[derive(Clone, Debug)]
pub enum SettledBy {
    /// The current worker, by its capability; only where the policy is `probe`, `retrySameKey` or `readOnly`, and the key
    /// was not refused.
    Worker(Digest),
    /// A person, by name, for the audit; any policy.
    Person(String),
}

/// The answer to `complete` and `settle`.
#[derive(Clone, Debug)]
pub enum Completed {
    /// Stored now.
    Ok,
    /// Stored before, with the same outcome and result.
    Duplicate,
    /// It ended otherwise, was not claimed so, or is not this party's to settle; why.
    Conflict(String),
    /// With this result the open calls would count more than they may ([`dalsegno_protocol::Limits::OPEN_CALLS_BYTES`]); with
    /// a small one they do not.
    TooLarge,
    /// The run has no such call.
    NoSuchCall,
    /// The capability is not the current epoch's.
    Fenced,
    /// The run is over.
    Finished,
    /// No run of this id.
    NotFound,
}

/// Which calls of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallFilter {
    /// All.
    All,
    /// Planned, claimed or ended in this turn, or in one after it.
    TouchedSince(i32),
    /// Not ended: planned for the turn that is open, started in any, or its key refused.
    Pending,
    /// Started under an earlier attempt than the current one and not settled.
    Unsettled,
    /// Completed or failed in the turn that is open (the one after the last `result` boundary).
    OpenTurn,
}
