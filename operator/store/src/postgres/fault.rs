//! Why a call failed, before it is known what the caller was doing.

use jiff::Timestamp;

use crate::Error;

/// The outcome of a call.
pub(super) type Work<T> = Result<T, Fault>;

/// Why it failed.
#[derive(Debug)]
pub(super) enum Fault {
    /// The database did not do it, or did not say so in time.
    Database(Box<dyn std::error::Error + Send + Sync>),
    /// What stands there makes no sense.
    Corrupt(String),
    /// It was there, and is no more.
    Gone(String),
    /// The database is not as it must be.
    Unfit(String),
}

impl Fault {
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
            Self::Database(source) => Error::Unavailable { doing, source },
            Self::Corrupt(detail) => Error::Corrupt { doing, detail },
            Self::Gone(detail) => Error::Gone { doing, detail },
            Self::Unfit(why) => Error::Unfit(why),
        }
    }

    /// An answer that no version of this code gives.
    pub fn unknown(what: &str, word: &str) -> Self {
        Self::Corrupt(format!("there is no {what} {word:?}"))
    }
}

impl From<sqlx::Error> for Fault {
    fn from(error: sqlx::Error) -> Self {
        match error {
            sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_) | sqlx::Error::ColumnNotFound(_) => {
                Self::Corrupt(error.to_string())
            }
            other => Self::Database(Box::new(other)),
        }
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        match error {
            Error::Unavailable { source, .. } => Self::Database(source),
            Error::Corrupt { doing, detail } => Self::Corrupt(format!("{doing}: {detail}")),
            Error::Gone { doing, detail } => Self::Gone(format!("{doing}: {detail}")),
            Error::Unfit(why) => Self::Unfit(why),
        }
    }
}

/// A time as it stands in a column.
pub(super) fn timestamp(ms: i64) -> Work<Timestamp> {
    Timestamp::from_millisecond(ms).map_err(|error| Fault::Corrupt(error.to_string()))
}
