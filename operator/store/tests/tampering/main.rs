//! Rows that were edited behind the store's back: nothing goes on from them, and what is still good is found.
#![allow(clippy::unwrap_used, reason = "a case that cannot go on has failed")]

#[path = "../support/both.rs"]
mod both;
#[path = "../support/forged.rs"]
mod forged;
#[allow(dead_code)]
#[path = "../support/keys.rs"]
mod keys;
#[path = "../support/pg.rs"]
mod pg;
#[allow(dead_code)]
#[path = "../conformance/world.rs"]
mod world;

mod edits;
mod random;
mod records;
mod sealed;

use std::path::PathBuf;

use both::on_both;
use dalsegno_store::postgres::Postgres;
use dalsegno_store::sqlite::Sqlite;
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection, SqliteConnection};
use std::sync::Arc;
use world::World;

/// A store, and a way to its rows that it knows nothing of.
pub struct Face {
    world: World,
    rows: Rows,
}

enum Rows {
    Sqlite(PathBuf),
    Postgres(String),
}

impl Face {
    async fn file() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("runs.db");
        Sqlite::migrate(&path).await.unwrap();
        let world = World::new(Arc::new(Sqlite::open(&path).await.unwrap()), dir);
        Self { world, rows: Rows::Sqlite(path) }
    }

    /// Payloads are sealed here: what is damaged there is damaged here too.
    async fn postgres() -> Self {
        let (url, folder) = (pg::database().await, keys::folder());
        let store = Postgres::connect(&url).await.unwrap().sealed_by(keys::shared(&folder));
        let world = World::new(Arc::new(store), folder);
        Self { world, rows: Rows::Postgres(url) }
    }

    /// Takes the triggers of the audit away, as whoever owns the tables or can write the file may do.
    async fn disarm(&self) {
        let drop = match &self.rows {
            Rows::Sqlite(_) => "DROP TRIGGER audit_is_not_edited; DROP TRIGGER audit_is_not_deleted",
            Rows::Postgres(_) => "DROP TRIGGER audit_is_append_only ON audit",
        };
        self.execute(drop).await;
    }

    /// Edits rows; at least one must be hit.
    async fn edit(&self, sql: &str) {
        assert!(self.execute(sql).await > 0);
    }

    /// How many rows were hit.
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
