//! Who calls: a pod, by its token, at attach; its process, by the instance that it made, ever after; a person, by a
//! token, who reads.

use axum::http::{HeaderMap, header};
use dalsegno_protocol::{AUDIENCE, Code};
use dalsegno_store::Digest;
use sha2::{Digest as _, Sha256};

use crate::authenticator::{AuthError, Person, PodIdentity};
use crate::error_chain::chain;
use crate::gateway::Gateway;
use crate::response::Refusal;

/// Characters of an instance: 256 bits in base64url without padding.
const INSTANCE_CHARS: usize = 43;

/// Whether this has the shape of an instance.
pub(crate) fn is_instance(text: &str) -> bool {
    text.len() == INSTANCE_CHARS && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
}

/// What the store keeps of an instance.
pub(crate) fn capability(instance: &str) -> Digest {
    Sha256::digest(instance.as_bytes()).into()
}

/// The capability of a call after attach.
pub(crate) fn bearer_capability(headers: &HeaderMap) -> Result<Digest, Refusal> {
    let bearer = bearer(headers)?;
    if is_instance(bearer) {
        return Ok(capability(bearer));
    }
    Err(unauthenticated(
        "the bearer of this call is the instance that was sent with attach (43 characters of base64url), not the \
         pod's token",
    ))
}

/// The pod that calls attach.
pub(crate) async fn review(gateway: &Gateway, headers: &HeaderMap) -> Result<PodIdentity, Refusal> {
    let token = bearer(headers)?;
    reviewed(gateway, gateway.authenticator.review(token), "the content of the file in DALSEGNO_TOKEN_FILE")
        .await
}

/// The person that reads a run.
pub(crate) async fn person(
    gateway: &Gateway,
    headers: &HeaderMap,
    namespace: &str,
    name: &str,
) -> Result<Person, Refusal> {
    let token = bearer(headers)?;
    reviewed(gateway, gateway.authenticator.may_read(token, namespace, name), "a token of your own").await
}

/// What the authenticator says in time; `send`: what to send where the token is refused.
async fn reviewed<T>(
    gateway: &Gateway,
    review: impl Future<Output = Result<T, AuthError>>,
    send: &str,
) -> Result<T, Refusal> {
    match tokio::time::timeout(gateway.config.store_deadline, review).await {
        Ok(Ok(who)) => Ok(who),
        Ok(Err(AuthError::Refused(why))) => Err(unauthenticated(format!(
            "the token is refused: {why}. Send {send} (audience {AUDIENCE:?}), read anew"
        ))),
        Ok(Err(AuthError::Denied(why))) => Err(Refusal::new(Code::Forbidden, why)),
        Ok(Err(error @ AuthError::Unavailable(_))) => {
            tracing::warn!(error = chain(&error), "the token could not be reviewed");
            Err(no_review())
        }
        Err(_) => {
            tracing::warn!("the token was not reviewed in time");
            Err(no_review())
        }
    }
}

fn bearer(headers: &HeaderMap) -> Result<&str, Refusal> {
    headers
        .get(header::AUTHORIZATION)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.split_once(' '))
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
        .map(|(_, token)| token.trim())
        .filter(|token| !token.is_empty())
        .ok_or_else(|| unauthenticated("the call needs a header `Authorization: Bearer …`"))
}

fn unauthenticated(detail: impl Into<String>) -> Refusal {
    Refusal::new(Code::Unauthenticated, detail)
}

fn no_review() -> Refusal {
    Refusal::new(Code::Unavailable, "the token could not be reviewed just now; send the same bytes again")
}
