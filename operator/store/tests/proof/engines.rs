//! The databases that the cases run on, and direct access to their rows.

use std::collections::BTreeSet;
use std::sync::Arc;

use dalsegno_model::Store;
use dalsegno_proof::{Anchors, Problem, Summary, check_store};
use dalsegno_store::sqlite::Sqlite;
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection, SqliteConnection};

use crate::context::TestContext;
use crate::{keys, pg};

/// A store and its database.
pub struct Engine {
    pub cx: TestContext,
    pub url: String,
}

impl Engine {
    /// SQLite in a file.
    pub async fn file() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("runs.db");
        Sqlite::migrate(&path).await.unwrap();
        let store = Arc::new(Sqlite::open(&path).await.unwrap());
        Self { url: format!("sqlite://{}", path.display()), cx: TestContext::new(store, dir) }
    }

    /// PostgreSQL with a database of its own and sealed payloads.
    pub async fn postgres() -> Self {
        let (url, folder) = (pg::database().await, keys::folder());
        let store = pg::patient(&url).await.sealed_by(keys::shared(&folder));
        Self { cx: TestContext::new(Arc::new(store), folder), url }
    }

    pub fn is_postgres(&self) -> bool {
        self.url.starts_with("postgres:")
    }

    /// Runs statements as the owner of the database.
    pub async fn execute(&self, sql: &str) -> sqlx::Result<()> {
        let sql = AssertSqlSafe(sql.to_owned());
        if self.is_postgres() {
            let mut conn = PgConnection::connect(&self.url).await?;
            conn.execute(sqlx::raw_sql(sql)).await?;
        } else {
            let mut conn = SqliteConnection::connect(&self.url).await?;
            conn.execute(sqlx::raw_sql(sql)).await?;
        }
        Ok(())
    }

    /// The columns of a table.
    pub async fn columns(&self, table: &str) -> BTreeSet<String> {
        let columns: Vec<String> = if self.is_postgres() {
            let sql = "SELECT attname::text FROM pg_attribute WHERE attrelid = $1::regclass AND attnum > 0";
            let mut conn = PgConnection::connect(&self.url).await.unwrap();
            sqlx::query_scalar(sql).bind(table).fetch_all(&mut conn).await.unwrap()
        } else {
            let sql = "SELECT name FROM pragma_table_info(?)";
            let mut conn = SqliteConnection::connect(&self.url).await.unwrap();
            sqlx::query_scalar(sql).bind(table).fetch_all(&mut conn).await.unwrap()
        };
        columns.into_iter().collect()
    }

    /// Removes the triggers that keep the owner from editing the audit.
    pub async fn unlock(&self) {
        let sql = if self.is_postgres() {
            "ALTER TABLE audit DISABLE TRIGGER ALL"
        } else {
            "DROP TRIGGER audit_is_not_edited; DROP TRIGGER audit_is_not_deleted"
        };
        self.execute(sql).await.unwrap();
    }

    /// Removes the triggers that keep the owner from editing the leaves of anchors.
    pub async fn unlock_anchors(&self) {
        let sql = if self.is_postgres() {
            "ALTER TABLE anchor_leaves DISABLE TRIGGER ALL"
        } else {
            "DROP TRIGGER anchor_leaves_are_not_edited; DROP TRIGGER anchor_leaves_are_not_deleted"
        };
        self.execute(sql).await.unwrap();
    }

    /// Removes the triggers that keep the owner from editing purge records.
    pub async fn unlock_purges(&self) {
        let sql = if self.is_postgres() {
            "ALTER TABLE purges DISABLE TRIGGER ALL"
        } else {
            "DROP TRIGGER purges_are_not_edited; DROP TRIGGER purges_are_not_deleted"
        };
        self.execute(sql).await.unwrap();
    }

    /// The number that a query returns.
    pub async fn count(&self, sql: &str) -> i64 {
        let sql = AssertSqlSafe(sql.to_owned());
        if self.is_postgres() {
            let mut conn = PgConnection::connect(&self.url).await.unwrap();
            sqlx::query_scalar(sql).fetch_one(&mut conn).await.unwrap()
        } else {
            let mut conn = SqliteConnection::connect(&self.url).await.unwrap();
            sqlx::query_scalar(sql).fetch_one(&mut conn).await.unwrap()
        }
    }

    /// Checks the whole store. Returns every problem.
    pub async fn check(&self) -> (Summary, Vec<Problem>) {
        let store: &dyn Store = &*self.cx.store;
        let mut problems = Vec::new();
        let mut reading = store.begin_read().await.unwrap();
        let summary = check_store(&mut *reading, Anchors::default(), &mut |problem| problems.push(problem))
            .await
            .unwrap();
        (summary, problems)
    }
}
