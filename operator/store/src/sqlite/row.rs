//! Rows of runs, attempts and calls: how they are loaded and saved.

use std::sync::LazyLock;

use sqlx::SqliteConnection;

use super::by_size::{BySize, by_size};
use super::columns::{insert, update};
use crate::RunId;
use crate::db_error::{DbError, DbResult};
use crate::reads::{Assignment, AttemptRow, CallRow, Column as _};
pub(super) use crate::reads::{HeadPoint, RunRow};

/// Columns that no write but a transition changes. They are in indexes: to set them to what they are costs as much as a
/// change.
const FIXED: [&str; 11] = [
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

fn moving(mut row: Vec<Assignment>) -> Vec<Assignment> {
    row.retain(|(column, _)| !FIXED.contains(column));
    row
}

impl RunRow {
    pub(super) async fn load(conn: &mut SqliteConnection, run: RunId) -> DbResult<Option<Self>> {
        let row = sqlx::query("SELECT * FROM runs WHERE id = ?").bind(run).fetch_optional(conn).await?;
        row.as_ref().map(Self::read).transpose()
    }

    /// Those of these runs that are there, in any order.
    pub(super) async fn load_all(conn: &mut SqliteConnection, runs: &[RunId]) -> DbResult<Vec<Self>> {
        static LOAD: LazyLock<BySize> = LazyLock::new(|| {
            BySize::new(|runs| format!("SELECT * FROM runs WHERE id IN ({})", vec!["?"; runs].join(", ")))
        });
        let mut rows = Vec::with_capacity(runs.len());
        for some in by_size(runs) {
            let query = sqlx::query(LOAD.text(some.len()));
            let found = some.iter().fold(query, |query, run| query.bind(run)).fetch_all(&mut *conn).await?;
            rows.extend(found.iter().map(Self::read).collect::<DbResult<Vec<_>>>()?);
        }
        Ok(rows)
    }

    /// The row of a run that the operator holds a record of, and which therefore must be there.
    pub(super) async fn expect(conn: &mut SqliteConnection, run: RunId) -> DbResult<Self> {
        Self::load(conn, run).await?.ok_or_else(|| DbError::Corrupt(format!("there is no run {run}")))
    }

    /// Writes the moving columns of a row that is there.
    pub(super) async fn save(&self, conn: &mut SqliteConnection) -> DbResult<()> {
        update(conn, Self::TABLE, moving(self.assignments()), vec![("id", self.id.value())]).await
    }

    /// Writes a row that was not there.
    pub(super) async fn insert(&self, conn: &mut SqliteConnection) -> DbResult<()> {
        insert(conn, Self::TABLE, self.assignments()).await
    }
}

impl AttemptRow {
    pub(super) async fn load(conn: &mut SqliteConnection, run: RunId, number: i32) -> DbResult<Option<Self>> {
        let row = sqlx::query("SELECT * FROM attempts WHERE run = ? AND number = ?")
            .bind(run)
            .bind(number)
            .fetch_optional(conn)
            .await?;
        row.as_ref().map(Self::read).transpose()
    }

    /// Writes a row that was not there.
    pub(super) async fn insert(&self, conn: &mut SqliteConnection) -> DbResult<()> {
        insert(conn, Self::TABLE, self.assignments()).await
    }
}

impl CallRow {
    pub(super) async fn load(conn: &mut SqliteConnection, run: RunId, id: &str) -> DbResult<Option<Self>> {
        let row = sqlx::query("SELECT * FROM calls WHERE run = ? AND id = ?")
            .bind(run)
            .bind(id)
            .fetch_optional(conn)
            .await?;
        row.as_ref().map(Self::read).transpose()
    }

    /// Writes the moving columns of a row that is there.
    pub(super) async fn save(&self, conn: &mut SqliteConnection) -> DbResult<()> {
        let key = vec![("run", self.run.value()), ("id", self.id.value())];
        update(conn, Self::TABLE, moving(self.assignments()), key).await
    }

    /// Writes a row that was not there.
    pub(super) async fn insert(&self, conn: &mut SqliteConnection) -> DbResult<()> {
        insert(conn, Self::TABLE, self.assignments()).await
    }
}
