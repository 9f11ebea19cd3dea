//! Tool calls: claimed, completed, settled.

use dalsegno_protocol::{CallOutcome, CompleteOutcome, Policy, RawValue, Usage};
use uuid::Uuid;

use crate::{Digest, RunId};

/// A request to claim a call.
#[derive(Debug)]
pub struct Claim {
    /// Of which run.
    pub run: RunId,
    /// SHA-256 of the worker's instance.
    pub capability: Digest,
    /// The call's id.
    pub id: String,
    /// The worker's id of this claim.
    pub claim_id: Uuid,
    /// What to do if the outcome is unknown after a crash.
    pub policy: Policy,
    /// The idempotency key; required unless the call was planned.
    pub key: Option<String>,
    /// The arguments of the tool.
    pub arguments: Option<Box<RawValue>>,
    /// Id of the approval that allows the call. It allows no other call.
    pub approval: Option<String>,
    /// Name of the tool. The name that was stored first stays.
    pub tool: Option<String>,
}

/// The answer to a claim.
///
/// | the call is | verdict |
/// |---|---|
/// | new, or planned | `Go` (becomes started under this claim) |
/// | started, same claim | `Go` |
/// | started by this attempt, another claim | `Uncertain` |
/// | started, and its key refused | `Uncertain` |
/// | started by an earlier attempt, `retrySameKey` or `readOnly` | `Go` with the stored key, now of this attempt |
/// | started by an earlier attempt, `probe` or `ask` | `Uncertain` |
/// | completed or failed | `Done` |
///
/// If `Go` would make the open calls too large, the verdict is `TooLarge`. If the claim names an approval that is not
/// granted, or that another call has used, that is the verdict, whatever the call is.
#[derive(Clone, Debug)]
pub enum Claimed {
    /// Call the tool, with the key in the call.
    Go(Box<dalsegno_protocol::Call>),
    /// The call has ended; its outcome is known.
    Done(Box<dalsegno_protocol::Call>),
    /// The outcome of the call is unknown.
    Uncertain(Box<dalsegno_protocol::Call>),
    /// The call is new and has no key, or its key, policy or arguments differ from those that it was planned or claimed
    /// with.
    Invalid(String),
    /// The open calls would exceed [`dalsegno_protocol::Limits::OPEN_CALLS_BYTES`].
    TooLarge,
    /// The approval that the claim names is not approved; the text says what it is.
    ApprovalNotGranted(String),
    /// Another call has used the approval that the claim names.
    ApprovalSpent,
    /// The capability is not the current epoch's.
    Fenced,
    /// The run is over.
    Finished,
    /// There is no run with this id.
    NotFound,
}

/// A request to store the result of a call.
#[derive(Debug)]
pub struct Complete {
    /// Of which run.
    pub run: RunId,
    /// SHA-256 of the worker's instance.
    pub capability: Digest,
    /// The call's id.
    pub id: String,
    /// The claim under which the tool was called.
    pub claim_id: Uuid,
    /// How it ended.
    pub outcome: CompleteOutcome,
    /// The tool's result.
    pub result: Option<Box<RawValue>>,
    /// What the call used. It is added to the run's usage once, with the call's end.
    pub usage: Usage,
}

/// A request to settle a call whose outcome is unknown.
#[derive(Debug)]
pub struct Settle {
    /// Of which run.
    pub run: RunId,
    /// Who settles it.
    pub by: SettledBy,
    /// The call's id.
    pub id: String,
    /// How it ended.
    pub outcome: CallOutcome,
    /// The tool's result, if known.
    pub result: Option<Box<RawValue>>,
    /// How the outcome was found out.
    pub reason: String,
    /// The id of the request in the API server's audit log, if a person sent it through the API server.
    pub audit_id: Option<String>,
}

/// Who settles a call.
#[derive(Clone, Debug)]
pub enum SettledBy {
    /// The current worker, by its capability. Allowed if the policy is `probe`, `retrySameKey` or `readOnly`, and the
    /// key was not refused.
    Worker(Digest),
    /// A person, by name, for the audit. Allowed with any policy.
    Person(String),
}

/// The answer to `complete` and `settle`.
#[derive(Clone, Debug)]
pub enum Completed {
    /// It was stored now.
    Ok,
    /// It was stored before, with the same outcome and result.
    Duplicate,
    /// The call has another outcome or another claim, or this party may not settle it; the text says which.
    Conflict(String),
    /// With this result the open calls would exceed [`dalsegno_protocol::Limits::OPEN_CALLS_BYTES`]. A small result
    /// always fits.
    TooLarge,
    /// The run has no such call.
    NoSuchCall,
    /// The capability is not the current epoch's.
    Fenced,
    /// The run is over.
    Finished,
    /// There is no run with this id.
    NotFound,
}

/// A filter for the calls of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallFilter {
    /// All calls.
    All,
    /// Planned, claimed or ended in this turn or a later one.
    TouchedSince(i32),
    /// Not ended: planned for the open turn, or started in any turn, or with a refused key.
    Pending,
    /// Started in an earlier attempt than the current one, and not settled.
    Unsettled,
    /// Completed or failed in the open turn (the turn after the last `result` boundary). Not those that a rewind has undone.
    OpenTurn,
}
