//! The line before a run's row: who comes first is done first.

use dalsegno_store::RunId;
use futures::future::{BoxFuture, join, join_all};
use sqlx::{Connection as _, Executor as _, PgConnection};

use crate::world::*;

/// Does these in this order. On PostgreSQL each is on its way before the first is done: the row is held until all wait for
/// it. SQLite's writer has a line of its own.
pub async fn in_order<T>(world: &World, run: RunId, all: Vec<BoxFuture<'_, T>>) -> Vec<T> {
    let Some(url) = world.url.as_deref().filter(|url| url.starts_with("postgres:")) else {
        return join_all(all).await;
    };
    let mut holder = PgConnection::connect(url).await.unwrap();
    let mut held = holder.begin().await.unwrap();
    held.execute(sqlx::query("SELECT FROM runs WHERE id = $1 FOR UPDATE").bind(run)).await.unwrap();
    let count = all.len();
    let coming = all.into_iter().enumerate().map(async |(place, one)| {
        until_waiting(url, run, place).await;
        one.await
    });
    let (done, ()) = join(join_all(coming), async {
        until_waiting(url, run, count).await;
        held.rollback().await.unwrap();
    })
    .await;
    done
}

/// Returns once so many wait for this row: each stands in the line for this version of it, and its first has it.
async fn until_waiting(url: &str, run: RunId, count: usize) {
    let mut conn = PgConnection::connect(url).await.unwrap();
    loop {
        let waiting: i64 = sqlx::query_scalar(
            "SELECT count(*) FROM pg_locks l JOIN pg_database d ON d.oid = l.database \
             JOIN runs r ON r.ctid = format('(%s,%s)', l.page, l.tuple)::tid WHERE d.datname = current_database() \
             AND l.relation = 'runs'::regclass AND l.locktype = 'tuple' AND r.id = $1",
        )
        .bind(run)
        .fetch_one(&mut conn)
        .await
        .unwrap();
        if waiting >= count as i64 {
            return conn.close().await.unwrap();
        }
        pause(2).await;
    }
}
