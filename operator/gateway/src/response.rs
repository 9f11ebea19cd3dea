//! A refusal: a problem document with its status and, where it helps, `Retry-After`.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use dalsegno_protocol::{Boundary, Code, Limits, Problem};
use serde::Serialize;

/// Media type of a problem document.
const PROBLEM: HeaderValue = HeaderValue::from_static("application/problem+json");
pub(crate) const JSON: HeaderValue = HeaderValue::from_static("application/json");
/// Seconds after which to try again.
const RETRY_AFTER: HeaderValue = HeaderValue::from_static("1");

/// Why a call is refused.
#[derive(Debug)]
pub(crate) struct Refusal(pub(crate) Problem);

impl Refusal {
    pub(crate) fn new(code: Code, detail: impl Into<String>) -> Self {
        Self(Problem::new(code, detail))
    }

    pub(crate) fn invalid(detail: impl Into<String>) -> Self {
        Self::new(Code::Invalid, detail)
    }

    pub(crate) fn no_such_run() -> Self {
        Self::new(Code::NotFound, "there is no run of this id; use the URL in DALSEGNO_URL as it is")
    }

    pub(crate) fn fenced() -> Self {
        Self::new(
            Code::Fenced,
            "this attempt may not write any more: another one has taken over, or the run was cancelled or deleted; \
             stop all work and exit",
        )
    }

    /// A fenced commit, which may stand all the same.
    pub(crate) fn fenced_commit(committed: bool) -> Self {
        let mut refusal = Self::fenced();
        refusal.0.committed = Some(committed);
        refusal
    }

    pub(crate) fn finished() -> Self {
        Self::new(Code::Finished, "the run is over and takes nothing more; exit")
    }

    pub(crate) fn spent() -> Self {
        Self::new(
            Code::AttemptSpent,
            "another process of this attempt attached before, and what it had done is not known here; exit, and the \
             next attempt resumes from the head",
        )
    }

    pub(crate) fn conflict(turn: i32, head: Option<(i32, Boundary)>) -> Self {
        let stands = match head {
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
                "this boundary of turn {turn} is not the next one, or is there with other bytes or another commitId; \
                 {stands}. A retry must send the very bytes of the first try"
            ),
        )
    }

    pub(crate) fn unsettled() -> Self {
        Self::new(
            Code::UnsettledCalls,
            "a call of an earlier attempt has no known outcome; claim it again, or probe and settle it (attach lists \
             them as unsettledCalls), then send the same bytes again; if a tool refused the key of a call: exit, only a \
             person may settle that one",
        )
    }

    pub(crate) fn state_too_large() -> Self {
        Self::new(
            Code::TooLarge,
            format!(
                "with this boundary the state would count more than {} bytes, and nothing of it was committed: remove or \
                 truncate channels in the same boundary, or send a smaller whole state, and keep large things elsewhere",
                Limits::STATE_BYTES
            ),
        )
    }

    pub(crate) fn calls_too_large() -> Self {
        Self::new(
            Code::TooLarge,
            format!(
                "with this the run's open calls would count more than {} bytes, and nothing of it was done: commit the turn, \
                 after which the calls that have ended count no more, or keep large things elsewhere and send where they \
                 are; a result of {} bytes is always taken",
                Limits::OPEN_CALLS_BYTES,
                Limits::SMALL_RESULT_BYTES
            ),
        )
    }

    pub(crate) fn answer_too_large(budget: usize) -> Self {
        Self::new(
            Code::TooLarge,
            format!(
                "the answer is larger than the {budget} bytes that this gateway may hold at once, and no retry helps"
            ),
        )
    }

    pub(crate) fn store_away() -> Self {
        Self::new(
            Code::Unavailable,
            "the store did not answer, so the outcome of this call is not known; send the same bytes again until an \
             answer comes",
        )
    }

    pub(crate) fn unsigned() -> Self {
        Self::new(
            Code::Unavailable,
            "this gateway cannot read the key that signs bundles (DALSEGNO_SIGNING_KEY), and its log says why; nothing is \
             wrong with the run: have the key mended, then ask again",
        )
    }

    pub(crate) fn corrupt() -> Self {
        Self::new(
            Code::CheckpointCorrupt,
            "what this call needs of the run was damaged in the store, and no retry mends it; exit: if the next attempt \
             needs it too, the operator holds the run or goes back to what can be rebuilt",
        )
    }

    pub(crate) fn gone() -> Self {
        Self::new(
            Code::NotFound,
            "it was there and is gone: dropped, as the run's retention says (spec.retention), or shredded",
        )
    }

    pub(crate) fn full() -> Self {
        Self::new(
            Code::Unavailable,
            "this gateway holds as many bytes of other calls as it may; send the same bytes again",
        )
    }

    pub(crate) fn crowded() -> Self {
        Self::new(
            Code::Unavailable,
            "as many calls wait for the store as may; this one has done nothing, send the same bytes again",
        )
    }

    pub(crate) fn closing() -> Self {
        Self::new(
            Code::Unavailable,
            "this gateway is stopping; send the same bytes again and another one answers",
        )
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let Self(problem) = self;
        let status = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let body = serde_json::to_vec(&problem).unwrap_or_default();
        let mut response = (status, [(header::CONTENT_TYPE, PROBLEM)], body).into_response();
        if matches!(status.as_u16(), 429 | 503) {
            response.headers_mut().insert(header::RETRY_AFTER, RETRY_AFTER);
        }
        response.extensions_mut().insert(problem.code);
        response
    }
}

/// A `200` with this document.
pub(crate) fn ok(answer: &impl Serialize) -> Result<Response, Refusal> {
    Ok(([(header::CONTENT_TYPE, JSON)], text(answer)?).into_response())
}

/// An answer as JSON text.
pub(crate) fn text(answer: &impl Serialize) -> Result<Vec<u8>, Refusal> {
    serde_json::to_vec(answer).map_err(|error| {
        tracing::error!(%error, "an answer could not be written as JSON");
        Refusal::new(
            Code::Internal,
            "the answer could not be written, which is a defect of the gateway; send the same bytes again",
        )
    })
}
