//! Reads that are dropped, and long reads beside short ones.

use std::time::{Duration, Instant};

use sqlx::Row as _;

use super::file;
use crate::sqlite::database::QueryExecutor as _;
use dalsegno_model::{Operator as _, Read as _};

/// A query that takes minutes.
const ENDLESS: &str =
    "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n";

/// A read waits up to 10 s for a connection. One that finds a free one is over before, on a busy machine too.
const NO_WAIT: Duration = Duration::from_secs(9);

#[tokio::test]
async fn a_dropped_read_is_interrupted_and_frees_its_connection() {
    let (_dir, store) = file().await;
    // More reads than connections.
    for _ in 0..12 {
        let endless = store.read("counting", |conn, _| {
            Box::pin(async move { Ok(sqlx::query(ENDLESS).fetch_one(conn).await?.try_get::<i64, _>(0)?) })
        });
        tokio::time::timeout(Duration::from_millis(50), endless).await.unwrap_err();
    }
    let began = Instant::now();
    store.poll_deadlines(jiff::Timestamp::now().into()).await.unwrap();
    assert!(began.elapsed() < NO_WAIT, "a read waited for {:?}", began.elapsed());
}

#[tokio::test]
async fn long_reads_leave_the_connections_of_short_ones_free() {
    let (_dir, store) = file().await;
    let mut long = Vec::new();
    for _ in 0..4 {
        let mut reading = store.begin_read().await.unwrap();
        reading.runs(None).await.unwrap();
        long.push(reading);
    }
    let began = Instant::now();
    store.poll_deadlines(jiff::Timestamp::now().into()).await.unwrap();
    assert!(began.elapsed() < NO_WAIT, "a read waited for {:?}", began.elapsed());
}
