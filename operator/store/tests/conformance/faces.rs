//! The faces that every case runs on.

#[path = "../support/pgbouncer.rs"]
mod bouncer;
#[path = "../support/pg.rs"]
mod pg;

use std::sync::Arc;

use dalsegno_store::postgres::Postgres;
use dalsegno_store::sqlite::Sqlite;
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection, SqliteConnection};

use crate::world::World;

/// SQLite in memory.
pub async fn memory() -> World {
    World::new(Arc::new(Sqlite::memory().await.unwrap()), ())
}

/// SQLite in a file.
pub async fn file() -> World {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("runs.db");
    Sqlite::migrate(&path).await.unwrap();
    World::new(Arc::new(Sqlite::open(&path).await.unwrap()), dir).at(format!("sqlite://{}", path.display()))
}

/// PostgreSQL, a database of its own.
pub async fn postgres() -> World {
    let url = pg::database().await;
    World::new(Arc::new(Postgres::connect(&url).await.unwrap()), ()).at(url)
}

/// Changes the database behind the store's back. How many rows that met.
pub async fn tamper(world: &World, sql: &str) -> u64 {
    let url = world.url.as_deref().unwrap();
    let sql = AssertSqlSafe(sql.to_owned());
    if url.starts_with("sqlite:") {
        let mut conn = SqliteConnection::connect(url).await.unwrap();
        conn.execute(sql).await.unwrap().rows_affected()
    } else {
        let mut conn = PgConnection::connect(url).await.unwrap();
        conn.execute(sql).await.unwrap().rows_affected()
    }
}

/// A number that the database tells behind the store's back.
pub async fn count(world: &World, sql: &str) -> i64 {
    let url = world.url.as_deref().unwrap();
    let sql = AssertSqlSafe(sql.to_owned());
    if url.starts_with("sqlite:") {
        let mut conn = SqliteConnection::connect(url).await.unwrap();
        sqlx::query_scalar(sql).fetch_one(&mut conn).await.unwrap()
    } else {
        let mut conn = PgConnection::connect(url).await.unwrap();
        sqlx::query_scalar(sql).fetch_one(&mut conn).await.unwrap()
    }
}

/// PostgreSQL behind pgbouncer in transaction mode, a database of its own.
pub async fn pgbouncer() -> World {
    let url = bouncer::before(&pg::database().await);
    World::new(Arc::new(Postgres::connect(&url).await.unwrap()), ())
}

/// Makes a test of each of these cases for each face.
macro_rules! on_every_face {
    ($($case:ident),+ $(,)?) => {
        mod memory {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                super::$case(&crate::faces::memory().await).await;
            })+
        }
        mod file {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                super::$case(&crate::faces::file().await).await;
            })+
        }
        mod postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                super::$case(&crate::faces::postgres().await).await;
            })+
        }
        mod pgbouncer {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                super::$case(&crate::faces::pgbouncer().await).await;
            })+
        }
    };
}
pub(crate) use on_every_face;

/// Makes a test of each of these cases for each face that others can reach.
macro_rules! on_every_lasting_face {
    ($($case:ident),+ $(,)?) => {
        mod lasting_file {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                super::$case(&crate::faces::file().await).await;
            })+
        }
        mod lasting_postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                super::$case(&crate::faces::postgres().await).await;
            })+
        }
    };
}
pub(crate) use on_every_lasting_face;
