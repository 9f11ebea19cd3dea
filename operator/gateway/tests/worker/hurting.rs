//! A real PostgreSQL that ends, or stalls: what workers notice of it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use dalsegno_gateway::Config;
use dalsegno_store::postgres::Postgres;
use futures::future::join_all;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use sqlx::{Connection as _, Executor as _, PgConnection};

use crate::pg::Server;
use crate::serving::{start, until};
use crate::world::*;

/// A worker that has attached to a gateway before this database.
async fn attached(url: &str, config: Config) -> World {
    let world = World::before(Arc::new(Postgres::connect(url).await.unwrap()), config).await;
    world.record_pod(1, "pod-1", Some(accepted())).await;
    world.attach("pod-1", INSTANCE).await.ok();
    world
}

/// What a metric of the gateway has counted.
fn counted(world: &World, metric: &str) -> u64 {
    let (mut registry, mut text) = (Registry::default(), String::new());
    world.gateway.register(&mut registry);
    encode(&mut text, &registry).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(metric));
    line.map_or(0, |count| count.trim().parse().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_is_started_anew_costs_no_worker_an_answer() {
    let mut server = Server::start(&[]);
    // Long enough for a server that has to recover on a busy machine.
    let config = Config { store_timeout: Duration::from_secs(30), ..Config::default() };
    let world = attached(&server.database().await, config).await;
    let serving = start(&world).await;
    until("it beats", || world.gateway.is_ready()).await;
    let crash = tokio::task::spawn_blocking(move || {
        server.crash();
        server
    });
    tokio::time::sleep(Duration::from_millis(20)).await;
    let answer = world.post("turns/1", commit(1, "1")).await.ok();
    assert!(answer["result"] == "ok" || answer["result"] == "duplicate", "{answer}");
    let _server = crash.await.unwrap();
    let answer = world.post("turns/2", commit(2, "2")).await.ok();
    assert!(answer["result"] == "ok" || answer["result"] == "duplicate", "{answer}");
    assert!(counted(&world, "gateway_store_retries_total") > 0, "the calls were made again");
    assert_eq!(world.record().await.head.unwrap().turn, 2);
    serving.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_stalls_is_not_waited_for_by_more_callers_than_may() {
    let server = Server::start(&[]);
    let url = server.database().await;
    let config = Config {
        max_store_calls: 4,
        max_calls_per_run: 64,
        store_timeout: Duration::from_secs(3),
        ..quick()
    };
    let world = attached(&url, config).await;
    let mut stall = PgConnection::connect(&url).await.unwrap();
    stall.execute("BEGIN; LOCK TABLE runs IN ACCESS EXCLUSIVE MODE").await.unwrap();

    let began = Instant::now();
    let callers = join_all((0..20).map(|_| async {
        let answer = world.post("turns/1", commit(1, "1")).await;
        (answer, began.elapsed())
    }));
    let answers = callers.await;
    let (rejected, waited): (Vec<_>, Vec<_>) =
        answers.iter().partition(|(answer, _)| answer.detail().contains("had no effect"));
    assert_eq!((rejected.len(), waited.len()), (16, 4));
    for (answer, after) in &answers {
        assert_eq!((answer.status, answer.code().as_str()), (503, "UNAVAILABLE"));
        assert!(*after < Config::default().store_timeout, "{after:?}");
    }
    assert!(
        rejected.iter().all(|(_, after)| *after < Duration::from_millis(2_500)),
        "they were refused at once"
    );
    assert_eq!(counted(&world, r#"gateway_store_failures_total{failure="rejected"}"#), 16);
    assert_eq!(counted(&world, r#"gateway_store_failures_total{failure="timeout"}"#), 4);

    stall.execute("ROLLBACK").await.unwrap();
    let answer = world.post("turns/1", commit(1, "1")).await.ok();
    assert!(answer["result"] == "ok" || answer["result"] == "duplicate", "{answer}");
    assert_eq!(world.record().await.head.unwrap().turn, 1, "the turn stands, and it stands once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn before_a_database_that_has_been_away_for_a_while_no_call_waits() {
    let server = Server::start(&[]);
    let config = Config { store_timeout: Duration::from_secs(30), ..Config::default() };
    let world = attached(&server.database().await, config).await;
    drop(server);
    let began = Instant::now();
    assert_eq!(world.post("turns/1", commit(1, "1")).await.code(), "UNAVAILABLE");
    assert!(began.elapsed() < Duration::from_secs(5), "it was asked once: no beat has come through");
    assert_eq!(counted(&world, "gateway_store_retries_total"), 0);
}
