//! Why work on a database failed, before the name of the operation is added.

mod sqlx_error;

use std::sync::Arc;

use jiff::Timestamp;

pub(crate) use dalsegno_model::redacted_json_error;

use dalsegno_model::Error;

/// The outcome of work on a database.
pub(crate) type DbResult<T> = Result<T, DbError>;

/// Why work on a database failed. It can be cloned: if a batch fails as a whole, each of its callers gets the error.
#[derive(Clone, Debug)]
pub(crate) enum DbError {
    /// The database refused the work, or did not respond in time. The outcome is unknown.
    Database(Arc<dyn std::error::Error + Send + Sync>),
    /// The volume is full, or almost full. Nothing was written.
    Full(Arc<dyn std::error::Error + Send + Sync>),
    /// The stored data is damaged, or this code cannot interpret it.
    Corrupt(String),
    /// The data existed and was dropped or shredded.
    Gone(String),
    /// The database or its configuration is not as required.
    Unusable(String),
    /// The run's stored data key is another one than this process has cached. Nothing was written.
    #[cfg(feature = "postgres")]
    OtherDataKey,
}

/// Why a statement wrote nothing.
#[cfg(feature = "postgres")]
const OTHER_DATA_KEY: &str = "the data key of the run was replaced";

impl DbError {
    pub fn unavailable(why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Database(Arc::from(why.into()))
    }

    /// The database returned a text that is no variant of `what`.
    pub fn unknown_value(what: &str, text: &str) -> Self {
        Self::Corrupt(format!("unknown {what}: {text:?}"))
    }

    /// The same error; if data is damaged, with the name of the damaged object.
    pub fn of(self, object: impl std::fmt::Display) -> Self {
        match self {
            Self::Corrupt(detail) => Self::Corrupt(format!("{object}: {detail}")),
            other => other,
        }
    }

    /// The error for the caller of the store. `operation` completes the sentence "the store failed while …".
    pub fn with_context(self, operation: &'static str) -> Error {
        match self {
            Self::Database(source) => Error::Unavailable { operation, source: Box::new(SharedCause(source)) },
            Self::Full(source) => Error::StorageFull { operation, source: Box::new(SharedCause(source)) },
            Self::Corrupt(detail) => Error::Corrupt { operation, detail },
            Self::Gone(detail) => Error::Gone { operation, detail },
            Self::Unusable(why) => Error::Unusable(why),
            #[cfg(feature = "postgres")]
            Self::OtherDataKey => Error::Unavailable { operation, source: OTHER_DATA_KEY.into() },
        }
    }
}

impl From<Error> for DbError {
    fn from(error: Error) -> Self {
        match error {
            Error::Unavailable { source, .. } => Self::Database(Arc::from(source)),
            Error::StorageFull { source, .. } => Self::Full(Arc::from(source)),
            Error::Corrupt { operation, detail } => Self::Corrupt(format!("{operation}: {detail}")),
            Error::Gone { operation, detail } => Self::Gone(format!("{operation}: {detail}")),
            Error::Unusable(why) => Self::Unusable(why),
        }
    }
}

/// A time from a column, in milliseconds since the Unix epoch.
pub(crate) fn timestamp(ms: i64) -> DbResult<Timestamp> {
    Timestamp::from_millisecond(ms).map_err(|error| DbError::Corrupt(error.to_string()))
}

/// A cause that several callers share.
#[derive(Debug)]
struct SharedCause(Arc<dyn std::error::Error + Send + Sync>);

impl std::fmt::Display for SharedCause {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for SharedCause {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source()
    }
}
