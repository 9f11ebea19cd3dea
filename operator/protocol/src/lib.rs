//! The worker's contract: what travels between an agent's worker and the gateway, and nothing else.
//!
//! A worker knows four things of Dal Segno: its own base URL, a token, its input and these types. The contract in
//! words, with a walk-through by curl, is `docs/reference/contract.md`; changing a type here changes that contract.
//!
//! Payloads (state, events, records, arguments, results) are [`RawValue`]s: the text that came is the text that is kept.

mod boundary;
pub mod bounded;
mod calls;
mod checkpoint;
mod events;
mod limits;
pub mod nesting;
mod problem;
mod records;
mod text;

pub use boundary::*;
pub use calls::*;
pub use checkpoint::*;
pub use events::*;
pub use limits::Limits;
pub use problem::{Code, Problem};
pub use records::*;
pub use serde_json::value::RawValue;
pub use text::printable;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Environment variables that the operator sets on a worker.
pub mod env {
    /// This run's own base URL; every path of the contract stands behind it and a `/`.
    pub const URL: &str = "DALSEGNO_URL";
    /// File with the pod's projected ServiceAccount token (audience [`super::AUDIENCE`]); read it anew at each attach.
    pub const TOKEN_FILE: &str = "DALSEGNO_TOKEN_FILE";
    /// File with the run's input, `null` where it has none. Of an inline one the API server keeps the values, not their
    /// spelling.
    pub const INPUT_FILE: &str = "DALSEGNO_INPUT_FILE";
    /// `namespace/name` of the run, for the worker's own logs.
    pub const RUN: &str = "DALSEGNO_RUN";
    /// Number of this attempt, from 1.
    pub const ATTEMPT: &str = "DALSEGNO_ATTEMPT";
    /// File for the termination message, where it is not `/dev/termination-log`: set only where there is no pod.
    pub const TERMINATION_LOG: &str = "DALSEGNO_TERMINATION_LOG";
}

/// Audience of the token that a worker attaches with.
pub const AUDIENCE: &str = "dalsegno";

/// `POST attach`, authenticated by the pod's token.
///
/// Idempotent for one instance. Another instance of the same attempt is refused with [`Code::AttemptSpent`]: a
/// process that lost its memory must not go on under the number of the one that had it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AttachRequest {
    /// 256 random bits made by this process, base64url without padding (43 characters). Kept secret: it is the bearer
    /// of every further call of the attempt.
    pub instance: String,
}

/// What a worker goes on from.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AttachResponse {
    /// `namespace/name` of the run.
    pub run: String,
    /// Number of the attempt.
    pub attempt: i32,
    /// Whether anything was committed before.
    pub decision: Decision,
    /// The head; absent on a fresh run. The next turn is `head.turn` while its boundary is `plan`, else one more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub head: Option<Head>,
    /// The state after the head; absent on a fresh run, and when it is larger than [`Limits::INLINE_STATE_BYTES`]:
    /// then fetch it with `GET state`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<State>,
    /// Calls that an earlier attempt claimed and whose outcome nobody knows.
    pub unsettled_calls: Vec<Call>,
    /// Calls of the open turn that are completed or failed, with their results: do not run them again.
    pub completed_calls: Vec<Call>,
    /// The decision of a person on a pending proposal; `null` where none is pending.
    pub approval: Option<Box<RawValue>>,
    /// What a careful worker logs.
    pub warnings: Vec<Warning>,
    /// Send a heartbeat this often, from a thread that a model call cannot block.
    pub heartbeat_seconds: u32,
    /// Once a heartbeat was sent: silence of this length has the attempt replaced.
    pub lease_seconds: u32,
    /// Reserved: always false.
    pub suspend: bool,
    /// A person cancelled the run: acknowledge with `POST cancelled` and exit.
    pub cancel: bool,
}

/// Whether an attempt starts a run or goes on with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Decision {
    /// Nothing was ever committed: begin at turn 1.
    Fresh,
    /// Go on after the head.
    Resume,
}

/// The latest boundary.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Head {
    /// Number of the turn, from 1.
    pub turn: i32,
    /// Which boundary of it.
    pub boundary: Boundary,
    /// Events committed so far; the next event gets this number plus one.
    pub position: i64,
    /// `sha256:…` over the parent's hash and this boundary's header.
    pub content_hash: String,
}

/// The answer to `GET state`.
#[derive(Debug, Serialize, Deserialize)]
pub struct StateResponse {
    /// The channels as they were after the latest boundary of the turn that was asked for, else after the head.
    pub state: State,
}

/// A run's state: its channels by name. The channel [`PLAIN`] is what a plain client sends as one JSON value.
pub type State = BTreeMap<String, Channel>;

/// Name of the channel that holds a plain client's whole state.
pub const PLAIN: &str = "state";

/// One channel of a run's state.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Channel {
    /// Replaced as a whole.
    Value(Payload),
    /// Only ever appended to (or cut at its end by a `truncate`).
    List(Vec<Payload>),
}

/// Bytes with a media type. JSON travels as it is and comes back byte for byte.
///
/// Strict also where it stands in an answer: it is what a worker has sent.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum Payload {
    /// Any JSON value; `application/json`.
    Json(Box<RawValue>),
    /// Anything else.
    #[serde(rename_all = "camelCase")]
    Bytes {
        /// Such as `application/octet-stream`.
        media_type: String,
        /// Standard base64 with padding.
        base64: String,
    },
}

/// A remark that changes nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Warning {
    /// Stable word, such as `VERSION_ALLOWED`.
    pub code: String,
    /// One sentence for a person.
    pub message: String,
}

/// `POST heartbeat` takes no body; this is its answer, and a part of every commit's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Flags {
    /// Reserved: always false.
    pub suspend: bool,
    /// A person cancelled the run: acknowledge with `POST cancelled` and exit.
    pub cancel: bool,
    /// Length of the lease that this call renewed, if a heartbeat has bound one.
    pub lease_seconds: u32,
}
