//! The faces that every case runs on.

#[path = "../support/pgbouncer.rs"]
mod bouncer;
#[path = "../support/forged.rs"]
mod forged;
#[allow(dead_code)]
#[path = "../support/keys.rs"]
mod keys;
#[path = "../support/pg.rs"]
mod pg;

use std::sync::Arc;

use dalsegno_store::postgres::Postgres;
use dalsegno_store::sqlite::Sqlite;
use dalsegno_store::{RunId, open_beside};
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection, SqliteConnection};

use crate::world::World;

/// SQLite in memory.
pub async fn memory() -> World {
    World::new(Arc::new(Sqlite::memory().await.unwrap()), ())
}

/// SQLite in a file, payloads sealed.
pub async fn file() -> World {
    let (dir, folder) = (tempfile::tempdir().unwrap(), keys::folder());
    let path = dir.path().join("runs.db");
    Sqlite::migrate(&path).await.unwrap();
    let store = Sqlite::open(&path).await.unwrap().sealed_by(keys::shared(&folder));
    World::new(Arc::new(store), (dir, folder)).at(format!("sqlite://{}", path.display())).sealed()
}

/// PostgreSQL, a database of its own, payloads sealed.
pub async fn postgres() -> World {
    let (url, folder) = (pg::database().await, keys::folder());
    let connect = async || Arc::new(Postgres::connect(&url).await.unwrap().sealed_by(keys::shared(&folder)));
    let (store, other) = (connect().await, connect().await);
    World::new(store, folder).beside(other).at(url).sealed()
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

/// Puts a snapshot of a state that no boundary made after a turn of the only run, as who has no key can make it.
pub async fn forge(world: &World, run: RunId, turn: i32, text: &str) {
    let boundary = world.boundaries(run, turn, turn).await.unwrap().remove(0);
    let is_postgres = world.url.as_deref().unwrap().starts_with("postgres");
    for sql in forged::snapshot(run, &boundary, text, is_postgres) {
        tamper(world, &sql).await;
    }
}

/// The same database, as a process without keys has it.
pub async fn plain(world: &World) -> World {
    let url = world.url.clone().unwrap();
    World::new(open_beside(&url, None).await.unwrap(), ()).at(url)
}

/// PostgreSQL behind pgbouncer in transaction mode, a database of its own.
pub async fn pgbouncer() -> World {
    let url = pg::database().await;
    let pooled = bouncer::before(&url);
    let connect = async || Arc::new(Postgres::connect(&pooled).await.unwrap());
    World::new(connect().await, ()).beside(connect().await).at(url)
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
