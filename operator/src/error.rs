//! What can go wrong in a reconcile. It says what we were doing; the next reconcile starts from what is there.

use std::time::Duration;

/// A reconcile that could not be completed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The API server did not do it.
    #[error("the API server failed while {doing}")]
    Api {
        /// What we were doing.
        doing: &'static str,
        /// Why.
        #[source]
        source: Box<kube::Error>,
    },
    /// The store did not do it.
    #[error("the store failed while {doing}")]
    Store {
        /// What we were doing.
        doing: &'static str,
        /// Why.
        #[source]
        source: dalsegno_store::Error,
    },
    /// This machine did not do it.
    #[error("this machine failed while {doing}")]
    Laptop {
        /// What we were doing.
        doing: &'static str,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The object changed under us; look again.
    #[error("the AgentRun has changed since it was read")]
    Stale,
    /// The object has no namespace, name or UID.
    #[error("the AgentRun has no {0}")]
    Nameless(&'static str),
    /// A decision that does not come to rest.
    #[error("the decision changed something {0} times in one reconcile and did not come to rest")]
    Restless(usize),
    /// All else is as it shall be, and the status says so.
    #[error("a pod that shall not be there could not be deleted")]
    Stray {
        /// When to look again for another reason.
        again: Option<Duration>,
        /// Why.
        #[source]
        source: Box<Error>,
    },
    /// The finalizer could not be set or removed.
    #[error("the finalizer failed: {0}")]
    Finalizer(String),
}

/// What a reconcile came to.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// An API error, with what we were doing.
    pub fn api(doing: &'static str) -> impl FnOnce(kube::Error) -> Self {
        move |source| Self::Api { doing, source: Box::new(source) }
    }

    /// An error of this machine, with what we were doing.
    pub fn laptop(doing: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        move |source| Self::Laptop { doing, source }
    }

    /// A store error, with what we were doing.
    pub fn store(doing: &'static str) -> impl FnOnce(dalsegno_store::Error) -> Self {
        move |source| Self::Store { doing, source }
    }

    /// Whether the store did not answer, or did not take what was to be written.
    pub fn is_store_away(&self) -> bool {
        matches!(self, Self::Store { source: dalsegno_store::Error::Unavailable { .. }, .. })
    }
}
