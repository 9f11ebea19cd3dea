//! Errors of a reconcile. The next reconcile starts from the facts, so nothing has to be undone.

use std::time::Duration;

/// Why a reconcile failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A request to the API server failed.
    #[error("the API server failed while {operation}")]
    Api {
        /// What was being done.
        operation: &'static str,
        /// The cause.
        #[source]
        source: Box<kube::Error>,
    },
    /// A call of the store failed.
    #[error("the store failed while {operation}")]
    Store {
        /// What was being done.
        operation: &'static str,
        /// The cause.
        #[source]
        source: dalsegno_model::Error,
    },
    /// A system call failed on this machine.
    #[error("this machine failed while {operation}")]
    Io {
        /// What was being done.
        operation: &'static str,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// The object or the row changed after it was read. Retried after a short pause.
    #[error("the AgentRun has changed since it was read")]
    Conflict,
    /// A worker could not verify the gateway. Retried after a short pause.
    #[error("no worker can be started: the CA of the gateway's certificate is not known yet")]
    NoCa,
    /// The object has no namespace, name or UID.
    #[error("the AgentRun has no {0}")]
    MissingMetadata(&'static str),
    /// Each decision led to another one.
    #[error("the decision still changed something after {0} rounds in one reconcile")]
    DidNotConverge(usize),
    /// Everything else is done, and the status is written.
    #[error("a pod that must not exist could not be deleted")]
    PodCleanup {
        /// When the decision wants the next reconcile.
        requeue: Option<Duration>,
        /// The cause.
        #[source]
        source: Box<Error>,
    },
    /// The reconcile was cut off. What it did until then stays.
    #[error("the reconcile did not end within {0:?}")]
    TimedOut(Duration),
    /// The finalizer could not be added or removed.
    #[error("the finalizer failed: {0}")]
    Finalizer(String),
}

/// Result of a reconcile, or of a part of it.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Wraps an error of the API server.
    pub fn api(operation: &'static str) -> impl FnOnce(kube::Error) -> Self {
        move |source| Self::Api { operation, source: Box::new(source) }
    }

    /// Wraps an error of this machine.
    pub fn io(operation: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        move |source| Self::Io { operation, source }
    }

    /// Wraps an error of the store.
    pub fn store(operation: &'static str) -> impl FnOnce(dalsegno_model::Error) -> Self {
        move |source| Self::Store { operation, source }
    }

    /// Whether the store did not answer, or could not write, as on a full disk.
    pub fn is_store_unavailable(&self) -> bool {
        use dalsegno_model::Error::{StorageFull, Unavailable};
        matches!(self, Self::Store { source: Unavailable { .. } | StorageFull { .. }, .. })
    }
}
