//! The connections of a process, as its options say.

use std::sync::Arc;
use std::time::Duration;

use dalsegno_store::ConnectionOptions;
use dalsegno_store::postgres::Postgres;
use futures::future::join_all;
use sqlx::{Connection as _, PgConnection};

use crate::context::*;
use crate::{patient, pg};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_show_the_part_that_opened_them() {
    let url = pg::database().await;
    let options = ConnectionOptions { application_name: "dalsegno-gateway".into(), ..Default::default() };
    let cx = open_with(&url, &options).await;
    cx.record_gateway_heartbeat().await.unwrap();
    let _reading = cx.begin_read().await.unwrap();
    let mut names: Vec<String> = backends(&url).await.into_iter().map(|(_, name)| name).collect();
    names.sort();
    names.dedup();
    assert_eq!(names, ["heartbeats", "reads", "statements"].map(|pool| format!("dalsegno-gateway-{pool}")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_opens_no_more_connections_than_it_may() {
    let url = pg::database().await;
    let cx = open_with(&url, &ConnectionOptions { max_connections: 4, ..Default::default() }).await;
    let workers = join_all((0..40).map(|_| cx.worker())).await;
    join_all(workers.iter().map(|worker| cx.request_cancel(worker.run))).await;
    let count = backends(&url).await.iter().filter(|(_, name)| name.ends_with("-statements")).count();
    assert_eq!(count, 4);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_old_connection_is_replaced() {
    let url = pg::database().await;
    let connection_lifetime = Duration::from_millis(300);
    let cx = open_with(&url, &ConnectionOptions { connection_lifetime, ..Default::default() }).await;
    cx.id().await.unwrap();
    let first = backends(&url).await;
    sleep_ms(400).await;
    cx.id().await.unwrap();
    // The server notices a closed connection a moment later.
    for _ in 0..100 {
        let now = backends(&url).await;
        if now.len() == 1 && now != first {
            return;
        }
        sleep_ms(50).await;
    }
    panic!("{first:?} is still there");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_statement_ends_at_the_timeout_of_the_options() {
    let url = pg::database().await;
    let worker = patient(&url).await.worker().await;
    let options = ConnectionOptions { statement_timeout: Duration::from_millis(300), ..Default::default() };
    let cx = open_with(&url, &options).await;
    let mut holder = PgConnection::connect(&url).await.unwrap();
    let mut transaction = holder.begin().await.unwrap();
    sqlx::query("SELECT FROM runs FOR UPDATE").execute(&mut *transaction).await.unwrap();
    let started = std::time::Instant::now();
    cx.commit(&worker.result(1)).await.unwrap_err();
    // By default it would wait for 5 s.
    assert!(started.elapsed() < Duration::from_millis(4_900), "{:?}", started.elapsed());
}

async fn open_with(url: &str, options: &ConnectionOptions) -> TestContext {
    TestContext::new(Arc::new(Postgres::connect_with(url, options).await.unwrap()), ())
}

/// Process id and name of each connection of Dal Segno to this database.
async fn backends(url: &str) -> Vec<(i32, String)> {
    let mut conn = PgConnection::connect(url).await.unwrap();
    let sql = "SELECT pid, application_name FROM pg_stat_activity \
               WHERE datname = current_database() AND application_name LIKE 'dalsegno%' ORDER BY pid";
    sqlx::query_as(sql).fetch_all(&mut conn).await.unwrap()
}
