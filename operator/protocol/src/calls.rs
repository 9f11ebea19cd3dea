//! Tool calls with idempotency keys: `POST calls/{id}/claim`, `complete`, `settle`.

use std::fmt;

use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;
use uuid::Uuid;

use crate::{FIRST_CONTRACT, Usage};

/// What to do about a call whose outcome is unknown. There is no default: only the author of the tool can decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Policy {
    /// The tool honours the key: run it again with the same key.
    RetrySameKey,
    /// The worker can find out the outcome: it probes, then settles the call.
    Probe,
    /// Only a person can find out the outcome: the run is held until a person settles the call.
    Ask,
    /// The tool changes nothing: run it again.
    ReadOnly,
}

/// A call that a plan boundary makes durable before any tool runs.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PlannedCall {
    /// Id of the call, unique in the whole run: 1 to 128 characters of `A-Z a-z 0-9 . _ : -`.
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
    /// Made once per claim; a retry sends the same one.
    pub claim_id: Uuid,
    /// What to do about an unknown outcome.
    pub policy: Policy,
    /// The idempotency key. Required unless the call was planned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// What the tool is called with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arguments: Option<Box<RawValue>>,
    /// Id of the wait whose approval allows this call. It must be answered with `approved` or `changed`, and allows one
    /// call only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval: Option<String>,
    /// Name of the tool, for the process that finds the call unsettled, and for people. The name that was stored first
    /// stays.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
}

impl ClaimRequest {
    /// The version of the contract that has its `tool`.
    pub const TOOL_CONTRACT: i32 = 3;

    /// The version of the contract that has all of its fields.
    pub fn contract(&self) -> i32 {
        if self.tool.is_some() { Self::TOOL_CONTRACT } else { FIRST_CONTRACT }
    }
}

/// The answer to a claim: what the worker does next.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClaimResponse {
    /// The verdict.
    pub verdict: ClaimVerdict,
    /// The call as stored, with the key to use and, if it is completed, its result.
    pub call: Call,
}

/// What the worker does about a claimed call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ClaimVerdict {
    /// Run the tool with the key in the answer.
    Go,
    /// The call has ended: use the stored result, or, if it failed, try again as a new call.
    Done,
    /// The tool may have run: probe and settle, or wait for a person.
    Uncertain,
}

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CallOutcome {
    /// The tool did its work.
    Completed,
    /// The tool refused, and nothing took effect.
    Failed,
}

/// How a tool answered the process that ran it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum CompleteOutcome {
    /// The tool did its work.
    Completed,
    /// The tool refused, and nothing took effect.
    Failed,
    /// The tool refused the key, as HTTP APIs do with 422: it knows the key from a different call, so it is unknown
    /// what took effect. No boundary is accepted until a person settles the call.
    KeyRefused,
}

/// `POST calls/{id}/complete`: send it as soon as the result is known. The same outcome and result again are a
/// duplicate.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CompleteRequest {
    /// The claim under which the tool ran.
    pub claim_id: Uuid,
    /// How it ended.
    pub outcome: CompleteOutcome,
    /// What the tool answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Box<RawValue>>,
    /// What the call used, such as a call of a model. It is added to the run's usage at once, and belongs to no boundary's
    /// usage. A duplicate adds nothing.
    #[serde(default, skip_serializing_if = "Usage::is_zero")]
    pub usage: Usage,
}

impl CompleteRequest {
    /// The version of the contract that has its `usage`.
    pub const METERED_CONTRACT: i32 = 3;

    /// The version of the contract that has all of its fields.
    pub fn contract(&self) -> i32 {
        if self.usage.is_zero() { FIRST_CONTRACT } else { Self::METERED_CONTRACT }
    }
}

/// `POST calls/{id}/settle`: the outcome that a probe found of a claimed call of any attempt. The same outcome and
/// result again are a duplicate.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SettleRequest {
    /// How it ended.
    pub outcome: CallOutcome,
    /// What the tool had answered, if the probe found it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Box<RawValue>>,
    /// How the outcome was found.
    pub reason: String,
}

/// `POST settle`: a person settles a call whose outcome is unknown. The same outcome and result again are a duplicate.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SettleByUserRequest {
    /// The id of the call.
    pub call: String,
    /// How it ended.
    pub outcome: CallOutcome,
    /// What the tool had answered, if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Box<RawValue>>,
    /// How the outcome was found.
    pub reason: String,
}

/// The state of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum CallState {
    /// Its key is durable; its tool has not run.
    Planned,
    /// Claimed; its outcome is unknown.
    Started,
    /// Claimed, and the tool refused its key: a person must settle it.
    KeyRefused,
    /// The tool did its work.
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

/// A call as stored.
#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Call {
    /// Its id within the run.
    pub id: String,
    /// The turn in which it was planned or first claimed.
    pub turn: i32,
    /// What to do about an unknown outcome.
    pub policy: Policy,
    /// The idempotency key, for ever.
    pub key: String,
    /// Its state.
    pub state: CallState,
    /// Name of the tool, if a claim has named it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    /// What the tool is called with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arguments: Option<Box<RawValue>>,
    /// What the tool answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Box<RawValue>>,
}

/// Leaves out key, arguments and result: they are secret, and an error that holds a call may be logged.
impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { id, turn, policy, key: _, state, tool, arguments: _, result: _ } = self;
        let mut call = f.debug_struct("Call");
        call.field("id", id).field("turn", turn).field("policy", policy).field("state", state);
        call.field("tool", tool);
        call.finish_non_exhaustive()
    }
}

/// The answer to `GET calls`.
#[derive(Debug, Serialize, Deserialize)]
pub struct CallsResponse {
    /// A page of calls, in the order of turns and within a turn in the order in which they were first seen.
    pub calls: Vec<CallEntry>,
    /// `after` for the next page; absent if the page is empty, which is the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// A call, as a person reads it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CallEntry {
    /// The call.
    #[serde(flatten)]
    pub call: Call,
    /// The attempt that claimed it last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<i32>,
    /// What it has used, as its `complete` said.
    #[serde(skip_serializing_if = "Usage::is_zero")]
    pub usage: Usage,
    /// Whether its arguments or its result cannot be read.
    pub damaged: bool,
}

impl<'de> Deserialize<'de> for CallEntry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Rest {
            attempt: Option<i32>,
            #[serde(default)]
            usage: Usage,
            #[serde(default)]
            damaged: bool,
        }
        let (call, Rest { attempt, usage, damaged }) = call_and_rest(deserializer)?;
        Ok(Self { call, attempt, usage, damaged })
    }
}

/// Reads a call and the fields beside it. serde reads no [`RawValue`] in a flattened struct, so the text is read once for
/// each part.
pub(crate) fn call_and_rest<'de, D, R>(deserializer: D) -> Result<(Call, R), D::Error>
where
    D: Deserializer<'de>,
    R: DeserializeOwned,
{
    let text = Box::<RawValue>::deserialize(deserializer)?;
    let call = serde_json::from_str(text.get()).map_err(D::Error::custom)?;
    Ok((call, serde_json::from_str(text.get()).map_err(D::Error::custom)?))
}
