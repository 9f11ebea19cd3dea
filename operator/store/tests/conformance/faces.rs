//! The faces that every case runs on.

#[path = "../support/pgbouncer.rs"]
mod bouncer;
#[path = "../support/pg.rs"]
mod pg;

use std::sync::Arc;

use dalsegno_store::postgres::Postgres;
use dalsegno_store::sqlite::Sqlite;

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
    World::new(Arc::new(Sqlite::open(&path).await.unwrap()), dir)
}

/// PostgreSQL, a database of its own.
pub async fn postgres() -> World {
    let url = pg::database().await;
    World::new(Arc::new(Postgres::connect(&url).await.unwrap()), ())
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
