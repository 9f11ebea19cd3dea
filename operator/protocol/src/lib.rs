//! The worker's contract: the types that an agent's worker and the gateway exchange.
//!
//! A worker knows four things of Dal Segno: its own base URL, a token, its input and these types.
//! `docs/reference/contract.md` describes the contract, with examples for curl. A change of a type here is a change of
//! that contract.
//!
//! Payloads (state, events, records, arguments, results) are [`RawValue`]s: they are stored as the text that was sent.

mod audit;
mod boundary;
pub mod bounded;
mod calls;
mod checkpoint;
mod events;
mod limits;
mod messages;
pub mod nesting;
mod park;
mod problem;
mod records;
mod text;
mod trigger;
mod turns;
mod waits;

pub use audit::*;
pub use boundary::*;
pub use calls::*;
pub use checkpoint::*;
pub use events::*;
pub use limits::Limits;
pub use messages::*;
pub use park::*;
pub use problem::{Code, Problem};
pub use records::*;
pub use serde_json::value::RawValue;
pub use text::printable;
pub use trigger::*;
pub use turns::*;
pub use waits::*;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Environment variables of a worker. The operator sets them, unless the variable says otherwise.
pub mod env {
    /// This run's own base URL. Append `/` and a path of the contract.
    pub const URL: &str = "DALSEGNO_URL";
    /// File with the pod's projected ServiceAccount token (audience [`super::AUDIENCE`]). Read it again for each
    /// attach, because it is rotated.
    pub const TOKEN_FILE: &str = "DALSEGNO_TOKEN_FILE";
    /// File with the run's input; `null` if the run has none. The API server keeps the values of an inline input, not
    /// its formatting.
    pub const INPUT_FILE: &str = "DALSEGNO_INPUT_FILE";
    /// File with the CAs, in PEM, that verify the gateway's certificate. They are the only ones to trust. Read it for each new
    /// connection, because it is replaced. Absent if the gateway has no TLS.
    pub const CA_FILE: &str = "DALSEGNO_CA_FILE";
    /// `namespace/name` of the run, for the worker's own logs.
    pub const RUN: &str = "DALSEGNO_RUN";
    /// Number of this attempt, from 1.
    pub const ATTEMPT: &str = "DALSEGNO_ATTEMPT";
    /// File for the termination message if it is not `/dev/termination-log`. Set only outside of a pod, by `dalsegno
    /// dev`.
    pub const TERMINATION_LOG: &str = "DALSEGNO_TERMINATION_LOG";
    /// After how many seconds without an answer a worker gives up. The author of a pod template sets it; the SDKs read
    /// it.
    pub const STORE_TIMEOUT_SECONDS: &str = "DALSEGNO_STORE_TIMEOUT_SECONDS";
}

/// Audience of the token with which a worker attaches.
pub const AUDIENCE: &str = "dalsegno";

/// The version of this contract.
///
/// | version | adds |
/// |---|---|
/// | 1 | everything but the following |
/// | 2 | `POST waits/{id}`, `GET waits/{id}`, `POST park`, `GET inbox`, and the fields that name waits and messages |
/// | 3 | `POST records/read`; `order` and `keysOnly` of `GET records`; the operation `deletePrefix`; `tool` of a claim; `usage` of `complete` |
pub const CONTRACT: i32 = 3;

/// The version of a gateway that does not say its version.
pub const FIRST_CONTRACT: i32 = 1;

/// The version that has the call with this path, relative to the run, and with the parameters in it. A body may need a
/// later one ([`RecordOp::contract`], [`ClaimRequest::contract`], [`CompleteRequest::contract`]).
pub fn contract_of(path: &str) -> i32 {
    let (call, query) = path.split_once('?').unwrap_or((path, ""));
    let mut names = query.split('&').filter_map(|pair| pair.split('=').next());
    match call.split('/').next() {
        Some("waits" | "park" | "inbox") => 2,
        Some("records") if call != "records" || names.any(|it| matches!(it, "order" | "keysOnly")) => 3,
        _ => FIRST_CONTRACT,
    }
}

/// `POST attach`, authenticated by the pod's token.
///
/// Idempotent for one instance. Another instance of the same attempt is refused with [`Code::AttemptSpent`]: a
/// restarted process has lost its memory and must not continue under the attempt of the process before it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AttachRequest {
    /// 256 random bits made by this process, base64url without padding (43 characters). Keep it secret: it is the
    /// bearer of every further call of the attempt.
    pub instance: String,
}

/// The answer to an attach: where the worker continues.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AttachResponse {
    /// `namespace/name` of the run.
    pub run: String,
    /// Number of the attempt.
    pub attempt: i32,
    /// Whether the run has a committed boundary.
    pub decision: Decision,
    /// How often the run was rewound. Turns of the same number on two branches are different turns.
    pub branch: i32,
    /// The head; absent for a fresh run. The next turn is `head.turn` if the head's boundary is `plan`, else `head.turn
    /// + 1`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub head: Option<Head>,
    /// The state after the head; absent for a fresh run, and if it is larger than [`Limits::INLINE_STATE_BYTES`]: then
    /// fetch it with `GET state`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<State>,
    /// Calls that an earlier attempt claimed and whose outcome is unknown.
    pub unsettled_calls: Vec<Call>,
    /// Calls of the open turn that are completed or failed, with their results. Do not run them again.
    pub completed_calls: Vec<Call>,
    /// The open waits, and those answered since the head. A gateway of an earlier version does not send them.
    #[serde(default)]
    pub waits: Vec<Wait>,
    /// Warnings that the worker should log.
    pub warnings: Vec<Warning>,
    /// Interval of heartbeats. Send them from a thread that a model call cannot block.
    pub heartbeat_seconds: u32,
    /// After the first heartbeat: an attempt that sends none for this long is replaced.
    pub lease_seconds: u32,
    /// A person suspended the run: commit or drop the open step, `POST park` and exit.
    pub suspend: bool,
    /// A person cancelled the run: acknowledge with `POST cancelled` and exit.
    pub cancel: bool,
    /// A limit of the run is reached: exit with 0. The operator stops a worker that goes on.
    #[serde(default)]
    pub limit: bool,
    /// Position of the latest message to the run; 0 if there was none. `GET inbox` returns those that no boundary has
    /// taken.
    #[serde(default)]
    pub inbox: i64,
    /// The lowest version of this contract among the gateways that serve. Send nothing newer: the next request may reach any
    /// of them. During a roll-out, attach again with the same instance until it is high enough. A gateway of version 1 does
    /// not send it.
    #[serde(default = "first_contract")]
    pub contract: i32,
}

fn first_contract() -> i32 {
    FIRST_CONTRACT
}

/// Whether an attempt starts a run or resumes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Decision {
    /// The run has no committed boundary: begin at turn 1.
    Fresh,
    /// Continue after the head.
    Resume,
}

/// The latest boundary.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Head {
    /// Number of the turn, from 1.
    pub turn: i32,
    /// Which boundary of the turn.
    pub boundary: Boundary,
    /// Number of events committed so far. The next event has the position `position + 1`.
    pub position: i64,
    /// `sha256:…` over the parent's hash and this boundary's header.
    pub content_hash: String,
}

/// The answer to `GET state`.
#[derive(Debug, Serialize, Deserialize)]
pub struct StateResponse {
    /// The channels after the latest boundary of the requested turn; without a turn, after the head.
    pub state: State,
}

/// A run's state: its channels by name. The channel [`PLAIN`] holds the state of a plain client, which sends one JSON
/// value.
pub type State = BTreeMap<String, Channel>;

/// Name of the channel that holds a plain client's full state.
pub const PLAIN: &str = "state";

/// One channel of a run's state.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Channel {
    /// A value, which is replaced as a whole.
    Value(Payload),
    /// A list, which only grows at its end, or is cut there by `truncate`.
    List(Vec<Payload>),
}

/// Bytes with a media type. JSON is sent as JSON and returned byte for byte.
///
/// Unknown fields are refused in answers too, because an answer holds what a worker has sent.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum Payload {
    /// Any JSON value; `application/json`.
    Json(Box<RawValue>),
    /// Bytes of any other media type.
    #[serde(rename_all = "camelCase")]
    Bytes {
        /// The media type, such as `application/octet-stream`.
        media_type: String,
        /// Standard base64 with padding.
        base64: String,
    },
}

/// A warning. It does not change what the worker may do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Warning {
    /// Stable code, such as `VERSION_ALLOWED`.
    pub code: String,
    /// One sentence for a person.
    pub message: String,
}

/// The answer to `POST heartbeat`, which takes no body; also a part of the answer to every commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Flags {
    /// A person suspended the run: commit or drop the open step, `POST park` and exit.
    pub suspend: bool,
    /// A person cancelled the run: acknowledge with `POST cancelled` and exit.
    pub cancel: bool,
    /// A limit of the run is reached: exit with 0. The operator stops a worker that goes on.
    #[serde(default)]
    pub limit: bool,
    /// Position of the latest message to the run; 0 if there was none. If it is higher than the last one that you have
    /// read, there are new messages: `GET inbox`.
    #[serde(default)]
    pub inbox: i64,
    /// Length of the lease that this call has renewed, in seconds. A lease applies only after the first heartbeat.
    pub lease_seconds: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_needs_the_version_that_has_it() {
        for (path, version) in [
            ("turns/1", 1),
            ("calls/pay/claim", 1),
            ("records", 1),
            ("records?space=s&prefix=order", 1),
            ("records?space=s&order=desc", 3),
            ("records?space=s&keysOnly=true", 3),
            ("records/read", 3),
            ("waits/records", 2),
            ("inbox?after=3", 2),
            ("park", 2),
        ] {
            assert_eq!(contract_of(path), version, "{path}");
        }
        assert!(contract_of("records/read") <= CONTRACT);
    }
}
