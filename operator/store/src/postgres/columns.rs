//! PostgreSQL's rows and statements by the shared types of columns.

use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::Query;
use sqlx::{Postgres, Row as _};
use uuid::Uuid;

use super::row::text;
use crate::db_error::DbResult;
use crate::reads::{Columns, Value};

/// Also of what the simple protocol answers, whose values are texts.
impl Columns for PgRow {
    /// Unchecked: an integer of any width is read as the widest.
    fn integer(&self, column: &str) -> DbResult<Option<i64>> {
        Ok(self.try_get_unchecked(column)?)
    }

    fn boolean(&self, column: &str) -> DbResult<Option<bool>> {
        Ok(self.try_get(column)?)
    }

    fn text(&self, column: &str) -> DbResult<Option<String>> {
        Ok(self.try_get(column)?)
    }

    fn bytes(&self, column: &str) -> DbResult<Option<Vec<u8>>> {
        Ok(self.try_get(column)?)
    }

    fn uuid(&self, column: &str) -> DbResult<Option<Uuid>> {
        Ok(self.try_get(column)?)
    }

    fn texts(&self, column: &str) -> DbResult<Option<Vec<String>>> {
        Ok(self.try_get(column)?)
    }
}

/// A statement with this value as its next parameter.
pub(super) fn bind(
    query: Query<'_, Postgres, PgArguments>,
    value: Value,
) -> Query<'_, Postgres, PgArguments> {
    match value {
        Value::Integer(value) => query.bind(value),
        Value::Boolean(value) => query.bind(value),
        Value::Text(value) => query.bind(value.as_deref().map(text)),
        Value::Bytes(value) => query.bind(value),
        Value::Uuid(value) => query.bind(value),
        Value::Texts(value) => query.bind(value),
    }
}
