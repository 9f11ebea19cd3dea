//! Why work on a database failed, before it is known what the caller was doing.

mod said;

use std::sync::Arc;

use jiff::Timestamp;

pub(crate) use dalsegno_model::redacted_json_error;

use crate::Error;

/// The outcome of work on a database.
pub(crate) type Work<T> = Result<T, Fault>;

/// Why it failed. Cloned to everybody in a batch that failed as a whole.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    /// The database did not do it, or did not say so in time.
    Database(Arc<dyn std::error::Error + Send + Sync>),
    /// What stands there makes no sense.
    Corrupt(String),
    /// It was there, and is no more.
    Gone(String),
    /// The database is not as it must be.
    Unfit(String),
}

impl Fault {
    pub fn unavailable(why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Database(Arc::from(why.into()))
    }

    /// An answer that no version of this code gives.
    pub fn unknown(what: &str, word: &str) -> Self {
        Self::Corrupt(format!("there is no {what} {word:?}"))
    }

    /// The same, of this in particular.
    pub fn of(self, what: impl std::fmt::Display) -> Self {
        match self {
            Self::Corrupt(detail) => Self::Corrupt(format!("{what}: {detail}")),
            other => other,
        }
    }

    /// The error that the caller sees.
    pub fn while_(self, doing: &'static str) -> Error {
        match self {
            Self::Database(source) => Error::Unavailable { doing, source: Box::new(Shared(source)) },
            Self::Corrupt(detail) => Error::Corrupt { doing, detail },
            Self::Gone(detail) => Error::Gone { doing, detail },
            Self::Unfit(why) => Error::Unfit(why),
        }
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        match error {
            Error::Unavailable { source, .. } => Self::Database(Arc::from(source)),
            Error::Corrupt { doing, detail } => Self::Corrupt(format!("{doing}: {detail}")),
            Error::Gone { doing, detail } => Self::Gone(format!("{doing}: {detail}")),
            Error::Unfit(why) => Self::Unfit(why),
        }
    }
}

/// A time as it stands in a column.
pub(crate) fn timestamp(ms: i64) -> Work<Timestamp> {
    Timestamp::from_millisecond(ms).map_err(|error| Fault::Corrupt(error.to_string()))
}

/// A cause that several callers share.
#[derive(Debug)]
struct Shared(Arc<dyn std::error::Error + Send + Sync>);

impl std::fmt::Display for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for Shared {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source()
    }
}
