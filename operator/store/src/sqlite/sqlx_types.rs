//! The shared column types as types of sqlx for SQLite.

use serde::{Serialize, de::DeserializeOwned};
use sqlx::encode::IsNull;
use sqlx::error::BoxDynError;
use sqlx::query::Query;
use sqlx::sqlite::{SqliteArguments, SqliteArgumentsBuffer, SqliteRow, SqliteTypeInfo, SqliteValueRef};
use sqlx::types::Json;
use sqlx::{AssertSqlSafe, Decode, Encode, Row as _, Sqlite, SqliteConnection, Type};
use uuid::Uuid;

use crate::db_error::DbResult;
use crate::reads::{Assignment, Columns, Value};
pub(super) use crate::reads::{BoundaryColumn, EnumText, Hash};
use dalsegno_format::header;

impl Columns for SqliteRow {
    fn integer(&self, column: &str) -> DbResult<Option<i64>> {
        Ok(self.try_get(column)?)
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
        Ok(self.try_get::<Option<Json<_>>, _>(column)?.map(|json| json.0))
    }
}

/// Binds the next parameter of a statement.
fn bind(query: Query<'_, Sqlite, SqliteArguments>, value: Value) -> Query<'_, Sqlite, SqliteArguments> {
    match value {
        Value::Integer(value) => query.bind(value),
        Value::Boolean(value) => query.bind(value),
        Value::Text(value) => query.bind(value),
        Value::Bytes(value) => query.bind(value),
        Value::Uuid(value) => query.bind(value),
        Value::Texts(value) => query.bind(value.map(Json)),
    }
}

/// Inserts a row.
pub(super) async fn insert(conn: &mut SqliteConnection, table: &str, row: Vec<Assignment>) -> DbResult<()> {
    let columns: Vec<_> = row.iter().map(|(column, _)| *column).collect();
    let placeholders = vec!["?"; row.len()].join(", ");
    let sql = format!("INSERT INTO {table} ({}) VALUES ({placeholders})", columns.join(", "));
    let query = row.into_iter().fold(sqlx::query(AssertSqlSafe(sql)), |query, (_, value)| bind(query, value));
    query.execute(conn).await?;
    Ok(())
}

/// Updates columns of the row with this key. Does nothing if there are no columns.
pub(super) async fn update(
    conn: &mut SqliteConnection,
    table: &str,
    changes: Vec<Assignment>,
    key: Vec<Assignment>,
) -> DbResult<()> {
    if changes.is_empty() {
        return Ok(());
    }
    let list = |all: &[Assignment], by| {
        all.iter().map(|(column, _)| format!("{column} = ?")).collect::<Vec<_>>().join(by)
    };
    let sql = format!("UPDATE {table} SET {} WHERE {}", list(&changes, ", "), list(&key, " AND "));
    let values = changes.into_iter().chain(key);
    let query = values.fold(sqlx::query(AssertSqlSafe(sql)), |query, (_, value)| bind(query, value));
    query.execute(conn).await?;
    Ok(())
}

impl Type<Sqlite> for Hash {
    fn type_info() -> SqliteTypeInfo {
        <[u8] as Type<Sqlite>>::type_info()
    }
}

impl Encode<'_, Sqlite> for Hash {
    fn encode_by_ref(&self, args: &mut SqliteArgumentsBuffer) -> Result<IsNull, BoxDynError> {
        Encode::<Sqlite>::encode(self.0.to_vec(), args)
    }
}

impl<'r> Decode<'r, Sqlite> for Hash {
    fn decode(value: SqliteValueRef<'r>) -> Result<Self, BoxDynError> {
        Ok(Self(<&[u8] as Decode<Sqlite>>::decode(value)?.try_into()?))
    }
}

impl<T> Type<Sqlite> for EnumText<T> {
    fn type_info() -> SqliteTypeInfo {
        <str as Type<Sqlite>>::type_info()
    }
}

impl<T: Serialize> Encode<'_, Sqlite> for EnumText<T> {
    fn encode_by_ref(&self, args: &mut SqliteArgumentsBuffer) -> Result<IsNull, BoxDynError> {
        match serde_json::to_value(&self.0)? {
            serde_json::Value::String(text) => Encode::<Sqlite>::encode(text, args),
            other => Err(format!("{other} is not a string").into()),
        }
    }
}

impl<'r, T: DeserializeOwned> Decode<'r, Sqlite> for EnumText<T> {
    fn decode(value: SqliteValueRef<'r>) -> Result<Self, BoxDynError> {
        let text = <String as Decode<Sqlite>>::decode(value)?;
        Ok(Self(serde_json::from_value(serde_json::Value::String(text))?))
    }
}

impl Type<Sqlite> for BoundaryColumn {
    fn type_info() -> SqliteTypeInfo {
        <i64 as Type<Sqlite>>::type_info()
    }
}

impl Encode<'_, Sqlite> for BoundaryColumn {
    fn encode_by_ref(&self, args: &mut SqliteArgumentsBuffer) -> Result<IsNull, BoxDynError> {
        Encode::<Sqlite>::encode(i64::from(header::boundary_number(self.0)), args)
    }
}

impl<'r> Decode<'r, Sqlite> for BoundaryColumn {
    fn decode(value: SqliteValueRef<'r>) -> Result<Self, BoxDynError> {
        let number = <i64 as Decode<Sqlite>>::decode(value)?;
        Ok(Self(header::boundary_of(number).ok_or_else(|| format!("no boundary has the number {number}"))?))
    }
}
