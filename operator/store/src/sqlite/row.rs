//! How the rows of runs, attempts and calls are loaded and saved.

use std::sync::LazyLock;

use sqlx::{AssertSqlSafe, SqliteConnection};

use super::batch_statements::{BatchStatements, batches};
use super::sqlx_types::{insert, update};
use crate::db_error::{DbError, DbResult};
use crate::reads::{Assignment, AttemptRow, CallRow, Column as _};
pub(super) use crate::reads::{HeadPoint, RunRow};
use dalsegno_model::RunId;

/// Columns that only a transition changes. They are indexed, and setting an indexed column to its own value costs as
/// much as a change.
const TRANSITION_COLUMNS: [&str; 11] = [
    "id",
    "tenant",
    "namespace",
    "name",
    "object_uid",
    "created_at",
    "run",
    "ordinal",
    "turn",
    "policy",
    "key",
];

/// Returns the columns that [`RunRow::save`] and [`CallRow::save`] write.
fn saved_columns(mut row: Vec<Assignment>) -> Vec<Assignment> {
    row.retain(|(column, _)| !TRANSITION_COLUMNS.contains(column));
    row
}

impl RunRow {
    pub(super) async fn load(conn: &mut SqliteConnection, run: RunId) -> DbResult<Option<Self>> {
        static SQL: LazyLock<String> =
            LazyLock::new(|| format!("SELECT {} FROM runs WHERE id = ?", RunRow::columns_of("runs")));
        let query = sqlx::query(AssertSqlSafe(SQL.as_str())).bind(run);
        let row = query.fetch_optional(conn).await?;
        row.as_ref().map(Self::read).transpose()
    }

    /// Loads those of these runs that exist, in any order.
    pub(super) async fn load_all(conn: &mut SqliteConnection, runs: &[RunId]) -> DbResult<Vec<Self>> {
        static LOAD_ALL: LazyLock<BatchStatements> = LazyLock::new(|| {
            BatchStatements::new(|runs| {
                let columns = RunRow::columns_of("runs");
                format!("SELECT {columns} FROM runs WHERE id IN ({})", vec!["?"; runs].join(", "))
            })
        });
        let mut rows = Vec::with_capacity(runs.len());
        for some in batches(runs) {
            let query = sqlx::query(LOAD_ALL.text(some.len()));
            let found = some.iter().fold(query, |query, run| query.bind(run)).fetch_all(&mut *conn).await?;
            rows.extend(found.iter().map(Self::read).collect::<DbResult<Vec<_>>>()?);
        }
        Ok(rows)
    }

    /// Loads a run that must exist, because the caller got its id from the store.
    pub(super) async fn expect(conn: &mut SqliteConnection, run: RunId) -> DbResult<Self> {
        Self::load(conn, run).await?.ok_or_else(|| DbError::Corrupt(format!("there is no run {run}")))
    }

    /// Updates the row.
    pub(super) async fn save(&self, conn: &mut SqliteConnection) -> DbResult<()> {
        update(conn, Self::TABLE, saved_columns(self.assignments()), vec![("id", self.id.value())]).await
    }

    /// Inserts the row.
    pub(super) async fn insert(&self, conn: &mut SqliteConnection) -> DbResult<()> {
        insert(conn, Self::TABLE, self.assignments()).await
    }
}

impl AttemptRow {
    pub(super) async fn load(conn: &mut SqliteConnection, run: RunId, number: i32) -> DbResult<Option<Self>> {
        static SQL: LazyLock<String> = LazyLock::new(|| {
            let columns = AttemptRow::columns_of("attempts");
            format!("SELECT {columns} FROM attempts WHERE run = ? AND number = ?")
        });
        let query = sqlx::query(AssertSqlSafe(SQL.as_str())).bind(run).bind(number);
        let row = query.fetch_optional(conn).await?;
        row.as_ref().map(Self::read).transpose()
    }

    /// Inserts the row.
    pub(super) async fn insert(&self, conn: &mut SqliteConnection) -> DbResult<()> {
        insert(conn, Self::TABLE, self.assignments()).await
    }
}

impl CallRow {
    pub(super) async fn load(conn: &mut SqliteConnection, run: RunId, id: &str) -> DbResult<Option<Self>> {
        static SQL: LazyLock<String> = LazyLock::new(|| {
            format!("SELECT {} FROM calls WHERE run = ? AND id = ?", CallRow::columns_of("calls"))
        });
        let row = sqlx::query(AssertSqlSafe(SQL.as_str())).bind(run).bind(id).fetch_optional(conn).await?;
        row.as_ref().map(Self::read).transpose()
    }

    /// Updates the row.
    pub(super) async fn save(&self, conn: &mut SqliteConnection) -> DbResult<()> {
        let key = vec![("run", self.run.value()), ("id", self.id.value())];
        update(conn, Self::TABLE, saved_columns(self.assignments()), key).await
    }

    /// Inserts the row.
    pub(super) async fn insert(&self, conn: &mut SqliteConnection) -> DbResult<()> {
        insert(conn, Self::TABLE, self.assignments()).await
    }
}
