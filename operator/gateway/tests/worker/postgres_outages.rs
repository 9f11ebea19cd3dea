//! A real PostgreSQL that crashes, stalls or stays down, as workers see it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use dalsegno_gateway::Config;
use dalsegno_store::postgres::Postgres;
use futures::future::join_all;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use sqlx::{Connection as _, Executor as _, PgConnection};

use crate::context::*;
use crate::pg::Server;
use crate::server::{start, until};

/// A run in this database; its worker has attached.
async fn attached(url: &str, config: Config) -> TestContext {
    let ctx = TestContext::with_store(Arc::new(Postgres::connect(url).await.unwrap()), config).await;
    ctx.record_pod(1, "pod-1", Some(accepted())).await;
    ctx.attach("pod-1", INSTANCE).await.ok();
    ctx
}

/// The value of a counter.
fn counted(ctx: &TestContext, metric: &str) -> u64 {
    let (mut registry, mut text) = (Registry::default(), String::new());
    ctx.gateway.register(&mut registry);
    encode(&mut text, &registry).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(metric));
    line.map_or(0, |count| count.trim().parse().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_of_the_database_is_not_visible_to_workers() {
    let mut postgres = Server::start(&[]);
    // Long enough for a crash recovery on a busy machine.
    let config = Config { store_timeout: Duration::from_secs(30), ..Config::default() };
    let ctx = attached(&postgres.database().await, config).await;
    let server = start(&ctx).await;
    until("it becomes ready", || ctx.gateway.is_ready()).await;
    let crash = tokio::task::spawn_blocking(move || {
        postgres.crash();
        postgres
    });
    tokio::time::sleep(Duration::from_millis(20)).await;
    let answer = ctx.post("turns/1", commit(1, "1")).await.ok();
    assert!(answer["result"] == "ok" || answer["result"] == "duplicate", "{answer}");
    let _postgres = crash.await.unwrap();
    let answer = ctx.post("turns/2", commit(2, "2")).await.ok();
    assert!(answer["result"] == "ok" || answer["result"] == "duplicate", "{answer}");
    assert!(counted(&ctx, "gateway_store_retries_total") > 0, "calls were repeated");
    assert_eq!(ctx.record().await.head.unwrap().turn, 2);
    server.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn at_most_max_store_calls_wait_for_a_stalled_database() {
    let server = Server::start(&[]);
    let url = server.database().await;
    let store_timeout = Duration::from_secs(30);
    let ctx = attached(&url, Config { store_timeout, ..test_config() }).await;
    let config = Config {
        max_store_calls: 4,
        max_calls_per_run: 64,
        store_timeout: Duration::from_secs(6),
        ..test_config()
    };
    let stalled = ctx.second_gateway(config);
    let mut blocker = PgConnection::connect(&url).await.unwrap();
    blocker.execute("BEGIN; LOCK TABLE runs IN ACCESS EXCLUSIVE MODE").await.unwrap();

    let began = Instant::now();
    let callers = join_all((0..20).map(|_| async {
        let answer = stalled.post("turns/1", commit(1, "1")).await;
        (answer, began.elapsed())
    }));
    let answers = callers.await;
    let (rejected, waited): (Vec<_>, Vec<_>) =
        answers.iter().partition(|(answer, _)| answer.detail().contains("had no effect"));
    assert_eq!((rejected.len(), waited.len()), (16, 4));
    for (answer, after) in &answers {
        assert_eq!((answer.status, answer.code().as_str()), (503, "UNAVAILABLE"));
        assert!(*after < store_timeout, "{after:?}");
    }
    let first_waited = waited.iter().map(|(_, after)| *after).min().unwrap();
    assert!(rejected.iter().all(|(_, after)| *after < first_waited), "they were refused at once");
    assert_eq!(counted(&stalled, r#"gateway_store_failures_total{failure="rejected"}"#), 16);
    assert_eq!(counted(&stalled, r#"gateway_store_failures_total{failure="timeout"}"#), 4);

    blocker.execute("ROLLBACK").await.unwrap();
    let answer = ctx.post("turns/1", commit(1, "1")).await.ok();
    assert!(answer["result"] == "ok" || answer["result"] == "duplicate", "{answer}");
    assert_eq!(ctx.record().await.head.unwrap().turn, 1, "the turn is committed once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_to_a_database_that_is_down_for_long_are_not_retried() {
    let server = Server::start(&[]);
    let config = Config { store_timeout: Duration::from_secs(30), ..Config::default() };
    let ctx = attached(&server.database().await, config).await;
    drop(server);
    let began = Instant::now();
    assert_eq!(ctx.post("turns/1", commit(1, "1")).await.code(), "UNAVAILABLE");
    assert!(
        began.elapsed() < Duration::from_secs(20),
        "no retry: the store has answered no gateway heartbeat"
    );
    assert_eq!(counted(&ctx, "gateway_store_retries_total"), 0);
}
