//! Tool calls with idempotency keys: `POST calls/{id}/claim`, `complete`, `settle`.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use uuid::Uuid;

/// What to do about a call whose outcome is unknown. There is no default: only the author of the tool knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Policy {
    /// The tool honours the key: call it again with the same one.
    RetrySameKey,
    /// The worker can find out: it looks, then settles the call.
    Probe,
    /// Only a person can tell: the run is held until somebody settles the call.
    Ask,
    /// The call changes nothing: call it again.
    ReadOnly,
}

/// A call that a plan boundary makes durable before any tool runs.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PlannedCall {
    /// Names one call in the whole run: 1 to 128 characters of `A-Z a-z 0-9 . _ : -`.
    pub id: String,
    /// What to do about an unknown outcome.
    pub policy: Policy,
    /// The idempotency key, for ever.
    pub key: String,
    /// What the tool is called with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arguments: Option<Box<RawValue>>,
}

/// `POST calls/{id}/claim`: before a guarded effect.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ClaimRequest {
    /// Made once per claim; the retry carries the same one.
    pub claim_id: Uuid,
    /// What to do about an unknown outcome.
    pub policy: Policy,
    /// The idempotency key; needed unless the call was planned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// What the tool is called with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arguments: Option<Box<RawValue>>,
}

/// What a worker that claimed a call does next.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClaimResponse {
    /// The verdict.
    pub verdict: ClaimVerdict,
    /// The call as it stands, with the key to use and, when it is completed, its result.
    pub call: Call,
}

/// The answer to a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ClaimVerdict {
    /// Call the tool, with the key in the answer.
    Go,
    /// It is over: use the stored result, or, where it failed, try again as another call.
    Done,
    /// It may have been done: probe and settle, or wait for a person.
    Uncertain,
}

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CallOutcome {
    /// The tool did it.
    Completed,
    /// The tool refused, and nothing took effect.
    Failed,
}

/// What a tool answered to the process that called it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum CompleteOutcome {
    /// It did it.
    Completed,
    /// It refused, and nothing took effect.
    Failed,
    /// It refused the key, as HTTP APIs do with 422: it knows the key from a call that was another, so that nobody can
    /// tell what took effect. No boundary is accepted any more until a person settles the call.
    KeyRefused,
}

/// `POST calls/{id}/complete`: the moment the result is known. The same outcome and result again are a duplicate.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CompleteRequest {
    /// The claim under which the tool was called.
    pub claim_id: Uuid,
    /// How it ended.
    pub outcome: CompleteOutcome,
    /// What the tool answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Box<RawValue>>,
}

/// `POST calls/{id}/settle`: what a probe found out about a call that was begun, by whichever attempt. The same outcome and
/// result again are a duplicate.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SettleRequest {
    /// How it ended.
    pub outcome: CallOutcome,
    /// What the tool had answered, if the probe tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Box<RawValue>>,
    /// How it was found out.
    pub reason: String,
}

/// Where a call stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum CallState {
    /// Its key is durable; no tool ran.
    Planned,
    /// Claimed; its outcome is not known.
    Started,
    /// Claimed, and the tool refused its key: its outcome is a person's to tell.
    KeyRefused,
    /// The tool did it.
    Completed,
    /// The tool refused, and nothing took effect.
    Failed,
}

impl From<CallOutcome> for CallState {
    fn from(outcome: CallOutcome) -> Self {
        match outcome {
            CallOutcome::Completed => Self::Completed,
            CallOutcome::Failed => Self::Failed,
        }
    }
}

impl From<CompleteOutcome> for CallState {
    fn from(outcome: CompleteOutcome) -> Self {
        match outcome {
            CompleteOutcome::Completed => Self::Completed,
            CompleteOutcome::Failed => Self::Failed,
            CompleteOutcome::KeyRefused => Self::KeyRefused,
        }
    }
}

/// A call as the store knows it.
#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Call {
    /// Its name within the run.
    pub id: String,
    /// The turn in which it was planned or first claimed.
    pub turn: i32,
    /// What to do about an unknown outcome.
    pub policy: Policy,
    /// The idempotency key, for ever.
    pub key: String,
    /// Where it stands.
    pub state: CallState,
    /// What the tool is called with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arguments: Option<Box<RawValue>>,
    /// What the tool answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Box<RawValue>>,
}

/// Says which call, and where it stands: whoever has its key or its arguments could act under them, and an error that holds
/// a call ends in a log.
impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { id, turn, policy, key: _, state, arguments: _, result: _ } = self;
        let mut call = f.debug_struct("Call");
        call.field("id", id).field("turn", turn).field("policy", policy).field("state", state);
        call.finish_non_exhaustive()
    }
}
