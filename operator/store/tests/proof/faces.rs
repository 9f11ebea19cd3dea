//! The databases that a case runs on, and a way to write to them behind the store's back.

use std::collections::BTreeSet;
use std::sync::Arc;

use dalsegno_store::proof::{Anchors, Problem, Summary, check_store};
use dalsegno_store::sqlite::Sqlite;
use dalsegno_store::{Store, postgres::Postgres};
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection, SqliteConnection};

use crate::world::World;
use crate::{keys, pg};

/// A store, and where it is kept.
pub struct Face {
    pub world: World,
    pub url: String,
}

impl Face {
    /// SQLite in a file.
    pub async fn file() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("runs.db");
        Sqlite::migrate(&path).await.unwrap();
        let store = Arc::new(Sqlite::open(&path).await.unwrap());
        Self { url: format!("sqlite://{}", path.display()), world: World::new(store, dir) }
    }

    /// PostgreSQL, a database of its own, payloads sealed.
    pub async fn postgres() -> Self {
        let (url, folder) = (pg::database().await, keys::folder());
        let store = Postgres::connect(&url).await.unwrap().sealed_by(keys::shared(&folder));
        Self { world: World::new(Arc::new(store), folder), url }
    }

    pub fn is_postgres(&self) -> bool {
        self.url.starts_with("postgres:")
    }

    /// Runs statements as whoever owns the database.
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

    /// Which columns a table has.
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

    /// Takes away what keeps the owner from editing the audit.
    pub async fn unlock(&self) {
        let sql = if self.is_postgres() {
            "ALTER TABLE audit DISABLE TRIGGER ALL"
        } else {
            "DROP TRIGGER audit_is_not_edited; DROP TRIGGER audit_is_not_deleted"
        };
        self.execute(sql).await.unwrap();
    }

    /// Every problem that its rows show.
    pub async fn check(&self) -> (Summary, Vec<Problem>) {
        let store: &dyn Store = &*self.world.store;
        let mut told = Vec::new();
        let mut reading = store.reading().await.unwrap();
        let summary =
            check_store(&mut *reading, Anchors::default(), &mut |problem| told.push(problem)).await.unwrap();
        (summary, told)
    }
}
