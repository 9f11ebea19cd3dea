//! The shared column types, read from PostgreSQL rows and bound to PostgreSQL statements.

use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::Query;
use sqlx::{Postgres, Row as _};
use uuid::Uuid;

use super::row::without_nul;
use crate::db_error::DbResult;
use crate::reads::{Columns, Value};

/// Also reads rows of the simple query protocol, whose values are texts.
impl Columns for PgRow {
    /// Unchecked, so that an integer column of any width is read as `i64`.
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

/// Binds a value as the next parameter of a statement.
pub(super) fn bind(
    query: Query<'_, Postgres, PgArguments>,
    value: Value,
) -> Query<'_, Postgres, PgArguments> {
    match value {
        Value::Integer(value) => query.bind(value),
        Value::Boolean(value) => query.bind(value),
        Value::Text(value) => query.bind(value.as_deref().map(without_nul)),
        Value::Bytes(value) => query.bind(value),
        Value::Uuid(value) => query.bind(value),
        Value::Texts(value) => query.bind(value),
    }
}
