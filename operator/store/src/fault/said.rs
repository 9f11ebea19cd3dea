//! What a database says when it fails.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use sqlx::error::{BoxDynError, DatabaseError};

use super::{Fault, redacted_json_error};
use crate::keys::{PLAIN_REFUSED, no_keys};

impl Fault {
    /// The database's own code, where it has answered with an error.
    pub fn code(&self) -> Option<Cow<'_, str>> {
        let Self::Database(why) = self else { return None };
        why.downcast_ref::<Said>()?.0.as_database_error()?.code()
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
            sqlx::Error::Database(said) if said.message() == PLAIN_REFUSED => no_keys().into(),
            other => Self::Database(Arc::new(Said(other))),
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
    source.downcast_ref().map_or_else(|| source.to_string(), redacted_json_error)
}
