//! Who calls: a pod, by its token, at attach; its process, by the instance that it made, ever after; a person, by a
//! token, who reads.

use std::error::Error;

use async_trait::async_trait;
use axum::http::{HeaderMap, header};
use dalsegno_protocol::{AUDIENCE, Code};
use dalsegno_store::Digest;
use sha2::{Digest as _, Sha256};

use crate::gateway::{Gateway, chain};
use crate::refusal::Refusal;

/// Says whose a token is.
#[async_trait]
pub trait Authenticator: Send + Sync + 'static {
    /// The pod to which this token is bound.
    ///
    /// # Errors
    ///
    /// [`AuthError::Refused`] for a token that is not genuine, has expired, is for another audience than
    /// [`AUDIENCE`], or is not bound to a pod; [`AuthError::Unavailable`] if nobody could be asked.
    async fn review(&self, token: &str) -> Result<PodIdentity, AuthError>;

    /// The person whose token this is, if that person may read what the run of this name has committed; whether there
    /// is such a run plays no part.
    ///
    /// # Errors
    ///
    /// As of [`Self::review`], but that the token need not be bound to a pod; [`AuthError::Denied`] for somebody who may
    /// not. Where no people are known, everybody is refused.
    async fn may_read(&self, token: &str, namespace: &str, name: &str) -> Result<Person, AuthError> {
        let _ = (token, namespace, name);
        Err(AuthError::Refused("no people are known here".to_owned()))
    }
}

/// The pod that a token is bound to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodIdentity {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub pod_name: String,
    /// Its UID.
    pub pod_uid: String,
    /// Name of its ServiceAccount.
    pub service_account: String,
}

/// Somebody who may read runs of a namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Person {
    /// Who it is.
    pub name: String,
    /// UID of the namespace as it is today: of an earlier one of its name nobody reads anything. `None`: it is gone.
    pub tenant: Option<String>,
}

/// Why a token is good for nothing here.
#[derive(Debug, thiserror::Error)]
pub enum AuthError {
    /// The token is no good, and will not become better. For the worker's author.
    #[error("the token is refused: {0}")]
    Refused(String),
    /// The token is genuine, and its holder may not do this. For whoever grants rights.
    #[error("{0}")]
    Denied(String),
    /// Nobody could be asked.
    #[error("tokens cannot be reviewed just now")]
    Unavailable(#[source] Box<dyn Error + Send + Sync>),
}

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
