//! Errors of sqlx as [`DbError`], without any value of a row: errors are logged, and what a run stores must not be.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use sqlx::error::{BoxDynError, DatabaseError};

use super::{DbError, redacted_json_error};
use crate::keys::{PLAIN_REFUSED, no_keys};

impl DbError {
    /// The database's own error code, if the database responded with an error.
    pub fn code(&self) -> Option<Cow<'_, str>> {
        let (Self::Database(why) | Self::Full(why)) = self else { return None };
        why.downcast_ref::<RedactedError>()?.0.as_database_error()?.code()
    }
}

impl From<sqlx::Error> for DbError {
    fn from(error: sqlx::Error) -> Self {
        match error {
            sqlx::Error::ColumnDecode { index, source } => {
                Self::Corrupt(format!("column {index}: {}", redacted_decode_error(&source)))
            }
            sqlx::Error::Decode(source) => Self::Corrupt(redacted_decode_error(&source)),
            sqlx::Error::ColumnNotFound(_) => Self::Corrupt(error.to_string()),
            sqlx::Error::Database(refused) if refused.message() == PLAIN_REFUSED => no_keys().into(),
            other if is_full(&other) => Self::Full(Arc::new(RedactedError(other))),
            other => Self::Database(Arc::new(RedactedError(other))),
        }
    }
}

/// Whether SQLite found no space on the volume.
fn is_full(error: &sqlx::Error) -> bool {
    // SQLITE_FULL, and SQLITE_IOERR_SHMSIZE: the index of the write-ahead log could not grow.
    error
        .as_database_error()
        .and_then(|error| error.code())
        .is_some_and(|code| code == "13" || code == "4874")
}

/// A database's error. Some databases put the values of a refused row into the message: then only the error code, the
/// table and the constraint are shown.
struct RedactedError(sqlx::Error);

impl RedactedError {
    /// The database's error, if a row was refused.
    fn refused_row(&self) -> Option<&dyn DatabaseError> {
        let error = self.0.as_database_error()?;
        let code = error.code()?;
        let is_of_a_row = match code.len() {
            // PostgreSQL's classes: data exception, integrity constraint, check option of a view, error of PL/pgSQL.
            5 => ["22", "23", "44", "P0"].iter().any(|class| code.starts_with(class)),
            // SQLite's: SQLITE_CONSTRAINT (also by a trigger), and SQLITE_MISMATCH.
            _ => code.parse().is_ok_and(|code: u32| matches!(code & 0xff, 19 | 20)),
        };
        is_of_a_row.then_some(error)
    }
}

impl fmt::Display for RedactedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(error) = self.refused_row() else { return self.0.fmt(f) };
        write!(f, "the database refused a row (code {}", error.code().unwrap_or_default())?;
        let names = [("table", error.table()), ("constraint", error.constraint())];
        for (what, name) in names.into_iter().filter_map(|(what, name)| Some((what, name?))) {
            write!(f, ", {what} {name}")?;
        }
        f.write_str(")")
    }
}

impl fmt::Debug for RedactedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for RedactedError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        // The text of a database's own error is complete, and its source may hold values of a row.
        if self.0.as_database_error().is_some() { None } else { self.0.source() }
    }
}

/// Why a column could not be decoded, without its value.
fn redacted_decode_error(source: &BoxDynError) -> String {
    source.downcast_ref().map_or_else(|| source.to_string(), redacted_json_error)
}
