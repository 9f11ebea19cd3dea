//! The order in which requests wait for a run's row: first come, first served.

use std::time::Duration;

use dalsegno_model::RunId;
use futures::future::{BoxFuture, join, join_all};
use sqlx::{Connection as _, Executor as _, PgConnection};
use tokio::time::timeout;

use crate::context::*;

/// Shorter than a request waits for a lock: after that none would be there any more.
const LIMIT: Duration = Duration::from_secs(50);

/// Runs the requests in this order. On PostgreSQL, all are sent before the first is done: this holds the row's lock until
/// all wait for it. SQLite's writer has a queue of its own.
pub async fn in_order<T>(cx: &TestContext, run: RunId, all: Vec<BoxFuture<'_, T>>) -> Vec<T> {
    let Some(url) = cx.url.as_deref().filter(|url| url.starts_with("postgres:")) else {
        return join_all(all).await;
    };
    let mut holder = PgConnection::connect(url).await.unwrap();
    let mut held = holder.begin().await.unwrap();
    held.execute(sqlx::query("SELECT FROM runs WHERE id = $1 FOR UPDATE").bind(run)).await.unwrap();
    let count = all.len();
    let queued = all.into_iter().enumerate().map(async |(boundary_id, one)| {
        wait_for_waiters(url, run, boundary_id).await;
        one.await
    });
    let (done, ()) = join(join_all(queued), async {
        wait_for_waiters(url, run, count).await;
        held.rollback().await.unwrap();
    })
    .await;
    done
}

/// Waits until this many requests wait for the run's row. All wait for a lock on the row's current version.
async fn wait_for_waiters(url: &str, run: RunId, count: usize) {
    let mut conn = PgConnection::connect(url).await.unwrap();
    let met = timeout(LIMIT, async {
        while waiters(&mut conn, run).await < count as i64 {
            sleep_ms(2).await;
        }
    });
    met.await.unwrap_or_else(|_| panic!("fewer than {count} requests wait for the row of the run {run}"));
    conn.close().await.unwrap();
}

async fn waiters(conn: &mut PgConnection, run: RunId) -> i64 {
    sqlx::query_scalar(
        "SELECT count(*) FROM pg_locks l JOIN pg_database d ON d.oid = l.database \
         JOIN runs r ON r.ctid = format('(%s,%s)', l.page, l.tuple)::tid WHERE d.datname = current_database() \
         AND l.relation = 'runs'::regclass AND l.locktype = 'tuple' AND r.id = $1",
    )
    .bind(run)
    .fetch_one(conn)
    .await
    .unwrap()
}
