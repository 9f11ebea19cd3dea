//! Who calls: a pod or a person, by a token.

use std::error::Error;

use async_trait::async_trait;

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
