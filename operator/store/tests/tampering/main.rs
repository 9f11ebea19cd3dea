//! Tampering with rows past the store: a damaged run does not go on, and the last good boundary is found.
#![allow(clippy::unwrap_used, reason = "a case that cannot go on has failed")]

#[path = "../support/both_databases.rs"]
mod both_databases;
#[allow(dead_code)]
#[path = "../conformance/context.rs"]
mod context;
#[path = "../support/forged.rs"]
mod forged;
#[allow(dead_code)]
#[path = "../support/keys.rs"]
mod keys;
#[path = "../support/pg.rs"]
mod pg;

mod edits;
mod random;
mod records;
mod sealed;

use std::path::PathBuf;

use both_databases::on_both_databases;
use context::TestContext;
use dalsegno_store::sqlite::Sqlite;
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection, SqliteConnection};
use std::sync::Arc;

/// A store, and direct access to its rows.
pub struct Engine {
    cx: TestContext,
    rows: Rows,
}

enum Rows {
    Sqlite(PathBuf),
    Postgres(String),
}

impl Engine {
    async fn file() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("runs.db");
        Sqlite::migrate(&path).await.unwrap();
        let cx = TestContext::new(Arc::new(Sqlite::open(&path).await.unwrap()), dir);
        Self { cx, rows: Rows::Sqlite(path) }
    }

    /// With sealed payloads: damage must be found in them as well.
    async fn postgres() -> Self {
        let (url, folder) = (pg::database().await, keys::folder());
        let store = pg::patient(&url).await.sealed_by(keys::shared(&folder));
        let cx = TestContext::new(Arc::new(store), folder);
        Self { cx, rows: Rows::Postgres(url) }
    }

    /// Drops the audit's triggers, as an owner of the tables or a writer of the file could.
    async fn drop_audit_triggers(&self) {
        let drop = match &self.rows {
            Rows::Sqlite(_) => "DROP TRIGGER audit_is_not_edited; DROP TRIGGER audit_is_not_deleted",
            Rows::Postgres(_) => "DROP TRIGGER audit_is_append_only ON audit",
        };
        self.execute(drop).await;
    }

    /// Edits rows. At least one row must be affected.
    async fn edit(&self, sql: &str) {
        assert!(self.execute(sql).await > 0);
    }

    /// Runs a statement. Returns the number of affected rows.
    async fn execute(&self, sql: &str) -> u64 {
        let sql = AssertSqlSafe(sql.to_owned());
        match &self.rows {
            Rows::Sqlite(path) => {
                let url = format!("sqlite://{}", path.display());
                let mut conn = SqliteConnection::connect(&url).await.unwrap();
                conn.execute(sql).await.unwrap().rows_affected()
            }
            Rows::Postgres(url) => {
                let mut conn = PgConnection::connect(url).await.unwrap();
                conn.execute(sql).await.unwrap().rows_affected()
            }
        }
    }
}
