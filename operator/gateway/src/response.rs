//! API problems, and the answers that several calls share.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use dalsegno_model::{CommitReceipt, Committed, WorkerSignals};
use dalsegno_protocol::{Boundary, Code, CommitResponse, CommitResult, Flags, Limits, Problem};
use serde::Serialize;

/// Media type of a problem document.
const PROBLEM: HeaderValue = HeaderValue::from_static("application/problem+json");
pub(crate) const JSON: HeaderValue = HeaderValue::from_static("application/json");
/// Seconds after which the client may retry.
const RETRY_AFTER: HeaderValue = HeaderValue::from_static("1");
/// The same, for a full volume or a full inbox: space does not appear within a second.
const RETRY_AFTER_FULL: HeaderValue = HeaderValue::from_static("5");

/// An error answer: a problem document with its status and, if a retry can help, `Retry-After`.
#[derive(Debug)]
pub(crate) struct ApiProblem(pub(crate) Problem);

impl ApiProblem {
    pub(crate) fn new(code: Code, detail: impl Into<String>) -> Self {
        Self(Problem::new(code, detail))
    }

    pub(crate) fn invalid(detail: impl Into<String>) -> Self {
        Self::new(Code::Invalid, detail)
    }

    pub(crate) fn no_such_run() -> Self {
        Self::new(Code::NotFound, "there is no run of this id; use the URL in DALSEGNO_URL unchanged")
    }

    /// The agent's own engine keeps the checkpoints.
    pub(crate) fn external() -> Self {
        Self::new(
            Code::Invalid,
            "the run's agent has checkpointing: External: its own engine keeps its state, so no worker attaches, and the run \
             has no turns, calls, waits, records or messages here; see docs/guides/external.md",
        )
    }

    /// This turn is not committed. `None`: no turn is committed at all.
    pub(crate) fn no_such_turn(turn: Option<i32>) -> Self {
        Self::new(
            Code::NotFound,
            match turn {
                None => "nothing is committed yet: the run begins at turn 1 without a state".to_owned(),
                Some(turn) => format!("turn {turn} is not committed"),
            },
        )
    }

    pub(crate) fn fenced() -> Self {
        Self::new(
            Code::Fenced,
            "this attempt may not write any more: another attempt has taken over, or the run was cancelled or deleted; \
             stop all work and exit",
        )
    }

    /// `committed`: whether the boundary of this fenced commit was stored before and is on the live branch.
    pub(crate) fn fenced_commit(committed: bool) -> Self {
        let mut problem = Self::fenced();
        problem.0.committed = Some(committed);
        problem
    }

    pub(crate) fn finished() -> Self {
        Self::new(Code::Finished, "the run is finished and accepts no further calls; exit")
    }

    pub(crate) fn attempt_spent() -> Self {
        Self::new(
            Code::AttemptSpent,
            "another process of this attempt attached before, and what it did is not known here; exit, and the next \
             attempt resumes from the head",
        )
    }

    pub(crate) fn conflict(turn: i32, head: Option<(i32, Boundary)>) -> Self {
        let expected = match head {
            None => "nothing is committed yet, so the next turn is 1".to_owned(),
            Some((at, Boundary::Plan)) => {
                format!("the head is the plan of turn {at}, so the next boundary is the result of turn {at}")
            }
            Some((at, Boundary::Result)) => {
                format!("the head is the result of turn {at}, so the next turn is {}", at + 1)
            }
        };
        Self::new(
            Code::Conflict,
            format!(
                "this boundary of turn {turn} is not the next one, or it was committed with other bytes or another \
                 commitId; {expected}. A retry must send exactly the bytes of the first try"
            ),
        )
    }

    pub(crate) fn unsettled_calls() -> Self {
        Self::new(
            Code::UnsettledCalls,
            "a call of an earlier attempt has no known outcome; claim it again, or probe and settle it (attach lists \
             these calls as unsettledCalls), then send the same bytes again; if a tool refused the key of a call: exit, \
             only a person may settle that call",
        )
    }

    pub(crate) fn open_calls() -> Self {
        Self::new(
            Code::UnsettledCalls,
            "a call that this attempt has started, with the policy probe or ask, has no outcome; complete it, or name it \
             in openCalls of the boundary; a finish needs the outcome of every such call",
        )
    }

    pub(crate) fn no_such_wait(id: &str) -> Self {
        Self::new(
            Code::NoSuchWait,
            format!("the run has no wait {id:?}, or a rewind has undone it; open it with POST waits/{id}"),
        )
    }

    pub(crate) fn state_too_large() -> Self {
        Self::new(
            Code::TooLarge,
            format!(
                "with this boundary the state would count more than {} bytes, so nothing was committed: remove or \
                 truncate channels in the same boundary, or send a smaller full state, and store large data elsewhere",
                Limits::STATE_BYTES
            ),
        )
    }

    pub(crate) fn calls_too_large() -> Self {
        Self::new(
            Code::TooLarge,
            format!(
                "with this the run's open calls would count more than {} bytes, so nothing was stored: commit the turn, \
                 after which calls that have ended no longer count, or store large data elsewhere and send a reference \
                 to it; a result of up to {} bytes is always accepted",
                Limits::OPEN_CALLS_BYTES,
                Limits::SMALL_RESULT_BYTES
            ),
        )
    }

    pub(crate) fn too_many_keys() -> Self {
        Self::new(
            Code::TooLarge,
            format!(
                "the operations deletePrefix would empty more than {} keys, so nothing was written: delete the keys \
                 before, in batches of their own, each with a longer prefix or with an operation delete for each key",
                Limits::PREFIX_KEYS
            ),
        )
    }

    /// A boundary takes a message that it cannot take.
    pub(crate) fn no_such_message(position: i64) -> Self {
        Self::invalid(format!(
            "`inbox` names {position}, which is no unread message of this run: it does not exist, or a boundary has taken \
             it; nothing was committed. GET inbox returns the unread messages"
        ))
    }

    pub(crate) fn too_many_messages() -> Self {
        Self::new(
            Code::TooManyMessages,
            format!(
                "{} messages, or {} bytes of them, wait for the run's worker already, so nothing was stored; send the \
                 same bytes again once the worker has taken some",
                Limits::MESSAGES,
                Limits::INBOX_BYTES
            ),
        )
    }

    pub(crate) fn response_too_large(limit: usize) -> Self {
        Self::new(
            Code::TooLarge,
            format!(
                "the answer is larger than the {limit} bytes that this gateway may hold at once; a retry does not help"
            ),
        )
    }

    pub(crate) fn store_unavailable() -> Self {
        Self::new(
            Code::Unavailable,
            "the store did not answer, so the outcome of this call is unknown; send the same bytes again until an \
             answer comes",
        )
    }

    pub(crate) fn storage_full() -> Self {
        Self::new(
            Code::StorageFull,
            "the store's volume is almost full, so nothing was stored; send the same bytes again until an answer comes. \
             Calls and the end of the run are still accepted. An administrator must add space to the volume",
        )
    }

    pub(crate) fn signing_key_unusable() -> Self {
        Self::new(
            Code::Unavailable,
            "this gateway cannot use its signing key (DALSEGNO_SIGNING_KEY); its log says why. The run itself is not \
             affected: have the key corrected, then call again",
        )
    }

    pub(crate) fn corrupt() -> Self {
        Self::new(
            Code::CheckpointCorrupt,
            "data that this call needs is damaged in the store, and a retry does not help; exit: if the next attempt \
             needs the data too, the operator holds the run or goes back to what can be rebuilt",
        )
    }

    pub(crate) fn gone() -> Self {
        Self::new(
            Code::NotFound,
            "the data existed and was deleted: by the run's retention (spec.retention), or because it was shredded",
        )
    }

    pub(crate) fn at_capacity() -> Self {
        Self::new(
            Code::Unavailable,
            "this gateway has as many calls under way, or holds as many bytes of them, as it may; send the same bytes again",
        )
    }

    pub(crate) fn too_many_store_calls() -> Self {
        Self::new(
            Code::Unavailable,
            "too many calls wait for the store; this call had no effect, send the same bytes again",
        )
    }

    pub(crate) fn stopping() -> Self {
        Self::new(
            Code::Unavailable,
            "this gateway is stopping; send the same bytes again and another gateway answers",
        )
    }
}

impl IntoResponse for ApiProblem {
    /// The response carries the code as an extension, for metrics and logs, and the problem, for the aggregated API.
    fn into_response(self) -> Response {
        let Self(problem) = self;
        let status = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let body = serde_json::to_vec(&problem).unwrap_or_default();
        let mut response = (status, [(header::CONTENT_TYPE, PROBLEM)], body).into_response();
        if matches!(status.as_u16(), 429 | 503) {
            let seconds = if matches!(problem.code, Code::StorageFull | Code::TooManyMessages) {
                RETRY_AFTER_FULL
            } else {
                RETRY_AFTER
            };
            response.headers_mut().insert(header::RETRY_AFTER, seconds);
        }
        response.extensions_mut().insert(problem.code);
        response.extensions_mut().insert(problem);
        response
    }
}

/// A `200` with this document, which is small.
pub(crate) fn ok(document: &impl Serialize) -> Result<Response, ApiProblem> {
    Ok(([(header::CONTENT_TYPE, JSON)], to_json(document)?).into_response())
}

/// The document as JSON text.
pub(crate) fn to_json(document: &impl Serialize) -> Result<Vec<u8>, ApiProblem> {
    serde_json::to_vec(document).map_err(|error| {
        tracing::error!(%error, "an answer could not be serialized");
        ApiProblem::new(
            Code::Internal,
            "the answer could not be serialized, which is a defect of the gateway; send the same bytes again",
        )
    })
}

/// The answer to a commit or a finish. `conflict` makes the problem from the head's turn and boundary.
pub(crate) fn commit_response(
    committed: Committed,
    conflict: impl FnOnce(Option<(i32, Boundary)>) -> ApiProblem,
) -> Result<Response, ApiProblem> {
    let (result, CommitReceipt { head, signals, .. }) = match committed {
        Committed::Ok(receipt) => (CommitResult::Ok, receipt),
        Committed::Parked(receipt) => (CommitResult::Parked, receipt),
        Committed::Duplicate(receipt) => (CommitResult::Duplicate, receipt),
        Committed::Conflict { head } => return Err(conflict(head)),
        Committed::Fenced { committed } => return Err(ApiProblem::fenced_commit(committed)),
        Committed::Finished => return Err(ApiProblem::finished()),
        Committed::UnsettledCalls => return Err(ApiProblem::unsettled_calls()),
        Committed::OpenCalls => return Err(ApiProblem::open_calls()),
        Committed::NoSuchWait(id) => return Err(ApiProblem::no_such_wait(&id)),
        Committed::TooLarge => return Err(ApiProblem::state_too_large()),
        Committed::CallsTooLarge => return Err(ApiProblem::calls_too_large()),
        Committed::TooManyKeys => return Err(ApiProblem::too_many_keys()),
        Committed::NoSuchMessage { position } => return Err(ApiProblem::no_such_message(position)),
        Committed::NotFound => return Err(ApiProblem::no_such_run()),
    };
    ok(&CommitResponse { result, head, flags: flags(signals) })
}

/// What a person requests of the run, as the worker sees it.
pub(crate) fn flags(signals: WorkerSignals) -> Flags {
    let WorkerSignals { suspend, cancel, limit, inbox, lease_ms } = signals;
    Flags { suspend, cancel, limit, inbox, lease_seconds: whole_seconds(lease_ms) }
}

/// Whole seconds, at least one.
pub(crate) fn whole_seconds(milliseconds: i64) -> u32 {
    u32::try_from(milliseconds / 1_000).unwrap_or_default().max(1)
}
