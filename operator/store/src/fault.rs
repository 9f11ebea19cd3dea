//! Why work on a database failed, before it is known what the caller was doing.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;
use sqlx::error::{BoxDynError, DatabaseError};

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

    /// The database's own code, where it has answered with an error.
    pub fn code(&self) -> Option<Cow<'_, str>> {
        let Self::Database(why) = self else { return None };
        why.downcast_ref::<Said>()?.0.as_database_error()?.code()
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

impl From<sqlx::Error> for Fault {
    fn from(error: sqlx::Error) -> Self {
        match error {
            sqlx::Error::ColumnDecode { index, source } => {
                Self::Corrupt(format!("column {index}: {}", undecoded(&source)))
            }
            sqlx::Error::Decode(source) => Self::Corrupt(undecoded(&source)),
            sqlx::Error::ColumnNotFound(_) => Self::Corrupt(error.to_string()),
            other => Self::Database(Arc::new(Said(other))),
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

/// What a database said. It ends in logs, and of a row that is refused some databases tell the values: then only which rule
/// refused it is said.
struct Said(sqlx::Error);

impl Said {
    /// What was said, where it is of a row.
    fn of_a_row(&self) -> Option<&dyn DatabaseError> {
        let error = self.0.as_database_error()?;
        let code = error.code()?;
        let of_a_row = match code.len() {
            // PostgreSQL's: of a value, of a constraint, of a view's check, of a trigger.
            5 => ["22", "23", "44", "P0"].iter().any(|class| code.starts_with(class)),
            // SQLite's: a constraint or a trigger, and a value of another type.
            _ => code.parse().is_ok_and(|code: u32| matches!(code & 0xff, 19 | 20)),
        };
        of_a_row.then_some(error)
    }
}

impl fmt::Display for Said {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(error) = self.of_a_row() else { return self.0.fmt(f) };
        write!(f, "the database refused a row (code {}", error.code().unwrap_or_default())?;
        let names = [("table", error.table()), ("constraint", error.constraint())];
        for (what, name) in names.into_iter().filter_map(|(what, name)| Some((what, name?))) {
            write!(f, ", {what} {name}")?;
        }
        f.write_str(")")
    }
}

impl fmt::Debug for Said {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Said {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        // A database's own error is all in the text.
        if self.0.as_database_error().is_some() { None } else { self.0.source() }
    }
}

/// Why a column makes no sense, without what stands in it.
fn undecoded(source: &BoxDynError) -> String {
    source.downcast_ref().map_or_else(|| source.to_string(), misread)
}

/// Why a text is not what it must be, without a word of it: this ends in logs, and what a worker has sent does not.
pub(crate) fn misread(error: &serde_json::Error) -> String {
    match (error.is_data(), error.line()) {
        (false, _) => error.to_string(),
        (true, 0) => "it is none of the words that may stand there".into(),
        (true, line) => format!("what stands at line {line} column {} does not belong there", error.column()),
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
