//! Who sends a call: a pod with its token (attach), a worker with its capability (all further calls), or a user with a
//! token.

use axum::http::{HeaderMap, header};
use dalsegno_model::Digest;
use dalsegno_protocol::{AUDIENCE, Code};
use sha2::{Digest as _, Sha256};

use crate::authenticator::{Access, PodIdentity, RunName, User};
use crate::error_chain::error_chain;
use crate::gateway::Gateway;
use crate::limits::connections::PeerAddress;
use crate::response::ApiProblem;
use crate::token_reviews::ReviewError;

/// Characters of an instance: 256 bits in base64url without padding.
const INSTANCE_CHARS: usize = 43;

/// Whether the text has the form of an instance.
pub(crate) fn is_instance(text: &str) -> bool {
    text.len() == INSTANCE_CHARS && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
}

/// The hash that the store keeps of an instance.
pub(crate) fn capability(instance: &str) -> Digest {
    Sha256::digest(instance.as_bytes()).into()
}

/// The capability of a worker's call after attach. The store decides whether it is the current one.
pub(crate) fn bearer_capability(headers: &HeaderMap) -> Result<Digest, ApiProblem> {
    let bearer = bearer(headers)?;
    if is_instance(bearer) {
        return Ok(capability(bearer));
    }
    Err(unauthenticated(
        "the bearer of this call must be the instance that was sent with attach (43 characters of base64url), not the \
         pod's token",
    ))
}

/// Returns the pod that calls attach from this address.
pub(crate) async fn authenticate_pod(
    gateway: &Gateway,
    headers: &HeaderMap,
    peer: Option<PeerAddress>,
) -> Result<PodIdentity, ApiProblem> {
    let reviewed = gateway.token_reviews.pod(peer, bearer(headers)?).await;
    reviewed.map_err(|error| problem(error, "the content of the file in DALSEGNO_TOKEN_FILE"))
}

/// Returns the user who calls from this address, if the user has this access to the run.
pub(crate) async fn authenticate_user(
    gateway: &Gateway,
    headers: &HeaderMap,
    peer: Option<PeerAddress>,
    access: (&RunName, Access),
) -> Result<User, ApiProblem> {
    let reviewed = gateway.token_reviews.user(peer, bearer(headers)?, access).await;
    reviewed.map_err(|error| problem(error, "your own token"))
}

/// Returns the UID of the namespace for a user whom the API server has authorized; `None`: there is no such namespace.
pub(crate) async fn namespace_uid(gateway: &Gateway, namespace: &str) -> Result<Option<String>, ApiProblem> {
    let read = gateway.token_reviews.namespace_uid(namespace).await;
    read.map_err(|error| {
        tracing::warn!(?error, "the UID of a namespace could not be read");
        ApiProblem::new(Code::Unavailable, "the namespace cannot be read at the moment; try again")
    })
}

/// Logs a failed review and returns the problem for the client. `expected` names the token to send if this one is refused.
fn problem(error: ReviewError, expected: &str) -> ApiProblem {
    match error {
        ReviewError::Refused(why) => unauthenticated(format!(
            "the token is refused: {why}. Send {expected} (audience {AUDIENCE:?}), read anew"
        )),
        ReviewError::Denied(why) => ApiProblem::new(Code::Forbidden, why),
        // Without a log line: anybody can cause it.
        ReviewError::TooManyReviews => ApiProblem::new(
            Code::Unavailable,
            "too many tokens wait for their review, in all or from this address; send the same bytes again",
        ),
        ReviewError::TimedOut => {
            tracing::warn!("token review timed out");
            review_unavailable()
        }
        ReviewError::Unavailable(error) => {
            tracing::warn!(error = error_chain(&error), "token review failed");
            review_unavailable()
        }
    }
}

fn bearer(headers: &HeaderMap) -> Result<&str, ApiProblem> {
    headers
        .get(header::AUTHORIZATION)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.split_once(' '))
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
        .map(|(_, token)| token.trim())
        .filter(|token| !token.is_empty())
        .ok_or_else(|| unauthenticated("the call needs a header `Authorization: Bearer …`"))
}

fn unauthenticated(detail: impl Into<String>) -> ApiProblem {
    ApiProblem::new(Code::Unauthenticated, detail)
}

fn review_unavailable() -> ApiProblem {
    ApiProblem::new(
        Code::Unavailable,
        "the token cannot be reviewed at the moment; send the same bytes again",
    )
}
