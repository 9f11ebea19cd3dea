//! The interface for reviewing bearer tokens. In a cluster the API server reviews them.

use std::error::Error;

use async_trait::async_trait;

/// Reviews bearer tokens.
#[async_trait]
pub trait Authenticator: Send + Sync + 'static {
    /// Returns the pod to which this token is bound.
    ///
    /// # Errors
    ///
    /// - [`AuthError::Refused`]: the token is not genuine, has expired, has another audience than
    ///   [`AUDIENCE`](dalsegno_protocol::AUDIENCE), or is not bound to a pod.
    /// - [`AuthError::Unavailable`]: the token could not be reviewed.
    async fn review(&self, token: &str) -> Result<PodIdentity, AuthError>;

    /// Returns the user whose token this is, if the user has this access to the run. Whether such a run exists makes no
    /// difference.
    ///
    /// The default knows no users and refuses every token.
    ///
    /// # Errors
    ///
    /// - [`AuthError::Refused`] and [`AuthError::Unavailable`] as for [`Self::review`], except that the token need not
    ///   be bound to a pod.
    /// - [`AuthError::Denied`]: the user does not have this access.
    async fn authorize(&self, token: &str, run: &RunName, access: Access) -> Result<User, AuthError> {
        let _ = (token, run, access);
        Err(AuthError::Refused("this gateway knows no users".to_owned()))
    }

    /// Returns the UID of the namespace of this name as it exists now; `None`: there is none.
    ///
    /// The default knows no namespaces.
    ///
    /// # Errors
    ///
    /// [`AuthError::Unavailable`]: the namespace could not be read.
    async fn namespace_uid(&self, namespace: &str) -> Result<Option<String>, AuthError> {
        let _ = namespace;
        Err(AuthError::Refused("this gateway knows no namespaces".to_owned()))
    }
}

/// The pod to which a token is bound.
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

/// The run that a user names, as `kubectl` names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunName {
    /// Namespace of the AgentRun.
    pub namespace: String,
    /// Name of the AgentRun.
    pub name: String,
}

/// What a user wants to do with a document of a run: the subresource of `agentruns` that RBAC names, and the verb.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// The document, such as `state`.
    pub document: &'static str,
    /// The verb.
    pub verb: Verb,
}

/// A verb of RBAC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Reads a document.
    Get,
    /// Writes to one.
    Create,
}

impl Verb {
    /// Its name in RBAC.
    pub fn name(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::Create => "create",
        }
    }
}

/// A user with access to the runs of a namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// The user name.
    pub name: String,
    /// UID of the pod that the token is bound to, if it is bound to one.
    pub pod_uid: Option<String>,
    /// UID of the namespace as it exists now; `None`: the namespace does not exist. Runs of an earlier namespace of the
    /// same name have another UID, and the user may not read them.
    pub tenant: Option<String>,
}

/// Why a token gives no access.
#[derive(Debug, thiserror::Error)]
pub enum AuthError {
    /// The token is not valid, and a retry does not help. The text is for the author of the client.
    #[error("the token is refused: {0}")]
    Refused(String),
    /// The token is valid, and its holder lacks the right. The text is for the administrator.
    #[error("{0}")]
    Denied(String),
    /// The token could not be reviewed.
    #[error("tokens cannot be reviewed at the moment")]
    Unavailable(#[source] Box<dyn Error + Send + Sync>),
}
