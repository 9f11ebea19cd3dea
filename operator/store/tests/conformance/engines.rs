//! The engines that every case runs on.

#[path = "../support/forged.rs"]
mod forged;
#[allow(dead_code)]
#[path = "../support/keys.rs"]
mod keys;
#[path = "../support/pg.rs"]
mod pg;
#[path = "../support/pgbouncer.rs"]
mod pgbouncer_server;

use std::sync::Arc;

use dalsegno_model::{RunId, Store};
use dalsegno_store::open_beside;
use dalsegno_store::sqlite::Sqlite;
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection, SqliteConnection};

use crate::context::TestContext;

/// SQLite in memory.
pub async fn memory() -> TestContext {
    TestContext::new(Arc::new(Sqlite::memory().await.unwrap()), ())
}

/// SQLite in a file, with sealed payloads.
pub async fn file() -> TestContext {
    let (dir, folder) = (tempfile::tempdir().unwrap(), keys::folder());
    let path = dir.path().join("runs.db");
    Sqlite::migrate(&path).await.unwrap();
    let store = Sqlite::open(&path).await.unwrap().sealed_by(keys::shared(&folder));
    TestContext::new(Arc::new(store), (dir, folder)).with_url(format!("sqlite://{}", path.display())).sealed()
}

/// PostgreSQL with a database of its own and sealed payloads.
pub async fn postgres() -> TestContext {
    let (url, folder) = (pg::database().await, keys::folder());
    let connect = async || Arc::new(pg::patient(&url).await.sealed_by(keys::shared(&folder)));
    let (store, other) = (connect().await, connect().await);
    TestContext::new(store, folder).with_second_gateway(other).with_url(url).sealed()
}

/// Runs a statement directly on the database, past the store. Returns the number of affected rows.
pub async fn tamper(cx: &TestContext, sql: &str) -> u64 {
    let url = cx.url.as_deref().unwrap();
    let sql = AssertSqlSafe(sql.to_owned());
    if url.starts_with("sqlite:") {
        let mut conn = SqliteConnection::connect(url).await.unwrap();
        conn.execute(sql).await.unwrap().rows_affected()
    } else {
        let mut conn = PgConnection::connect(url).await.unwrap();
        conn.execute(sql).await.unwrap().rows_affected()
    }
}

/// Reads one number directly from the database, past the store.
pub async fn count(cx: &TestContext, sql: &str) -> i64 {
    let url = cx.url.as_deref().unwrap();
    let sql = AssertSqlSafe(sql.to_owned());
    if url.starts_with("sqlite:") {
        let mut conn = SqliteConnection::connect(url).await.unwrap();
        sqlx::query_scalar(sql).fetch_one(&mut conn).await.unwrap()
    } else {
        let mut conn = PgConnection::connect(url).await.unwrap();
        sqlx::query_scalar(sql).fetch_one(&mut conn).await.unwrap()
    }
}

/// Stores a forged snapshot of the run after this turn: its state was made by no boundary. Making it needs no key.
pub async fn forge_snapshot(cx: &TestContext, run: RunId, turn: i32, text: &str) {
    let boundary = cx.boundaries(run, turn, turn).await.unwrap().remove(0);
    let is_postgres = cx.url.as_deref().unwrap().starts_with("postgres");
    for sql in forged::snapshot(run, &boundary, text, is_postgres) {
        tamper(cx, &sql).await;
    }
}

/// A second store on the same database, opened without keys.
pub async fn without_keys(cx: &TestContext) -> TestContext {
    let url = cx.url.clone().unwrap();
    let store: Arc<dyn Store> = if cx.is_sqlite() {
        open_beside(&url, None).await.unwrap()
    } else {
        Arc::new(pg::patient(&url).await)
    };
    TestContext::new(store, ()).with_url(url)
}

/// PostgreSQL behind pgbouncer in transaction mode, with a database of its own.
pub async fn pgbouncer() -> TestContext {
    let url = pg::database().await;
    let pooled = pgbouncer_server::url_through(&url);
    let connect = async || Arc::new(pg::patient(&pooled).await);
    TestContext::new(connect().await, ()).with_second_gateway(connect().await).with_url(url)
}

/// Makes a test of each case for each engine.
macro_rules! on_every_engine {
    ($($case:ident),+ $(,)?) => {
        mod memory {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                super::$case(&crate::engines::memory().await).await;
            })+
        }
        mod file {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                super::$case(&crate::engines::file().await).await;
            })+
        }
        mod postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                super::$case(&crate::engines::postgres().await).await;
            })+
        }
        mod pgbouncer {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                super::$case(&crate::engines::pgbouncer().await).await;
            })+
        }
    };
}
pub(crate) use on_every_engine;

/// Makes a test of each case for each engine whose database other connections can reach.
macro_rules! on_every_persistent_engine {
    ($($case:ident),+ $(,)?) => {
        mod persistent_file {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                super::$case(&crate::engines::file().await).await;
            })+
        }
        mod persistent_postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                super::$case(&crate::engines::postgres().await).await;
            })+
        }
    };
}
pub(crate) use on_every_persistent_engine;
