//! Rights are given to another role than the one that migrates.

use dalsegno_store::grant;
use futures::future::join_all;
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection};

use crate::pg;

/// Runs statements, one after the other.
async fn execute(url: &str, statements: &[&str]) {
    let mut conn = PgConnection::connect(url).await.unwrap();
    for sql in statements {
        conn.execute(AssertSqlSafe((*sql).to_owned())).await.unwrap();
    }
    conn.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_may_grant_at_once() {
    let url = pg::database().await;
    execute(&url, &["CREATE ROLE crowded"]).await;
    for granted in join_all((0..8).map(|_| grant(&url, "crowded"))).await {
        granted.unwrap();
    }
}
