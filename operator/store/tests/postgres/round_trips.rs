//! The number of round trips of each call, and that calls work if each transaction uses another server connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use dalsegno_protocol::Policy;
use dalsegno_store::postgres::Postgres;
use dalsegno_store::{Class, Commit, Committed, Completed};
use futures::future::join_all;

use crate::context::*;
use crate::proxy::{Fault, Proxy};
use crate::{fresh, keys, open};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_is_one_round_trip() {
    let (_, url) = fresh().await;
    let proxy = Proxy::new(&url, 1);
    let cx = open(&proxy.url()).await;
    let worker = cx.worker().await;
    // Each statement is prepared once per connection.
    cx.commit_turn(&worker, 1).await;
    for turn in 2..=21 {
        let before = proxy.round_trips();
        cx.commit_turn(&worker, turn).await;
        assert_eq!(proxy.round_trips() - before, 1, "turn {turn}");
    }
}

/// The first commits are sent at once; the others wait for them and are sent together.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commits_of_many_runs_share_round_trips() {
    const WORKERS: u64 = 32;
    let (_, url) = fresh().await;
    let is_slow = Arc::<AtomicBool>::default();
    let slow = Arc::clone(&is_slow);
    let proxy = Proxy::with_faults(&url, move || {
        if slow.load(SeqCst) { Fault::Stall(Duration::from_millis(200)) } else { Fault::Pass }
    });
    let cx = open(&proxy.url()).await;
    let workers = join_all((0..WORKERS).map(|_| cx.worker())).await;
    // Each statement is prepared once per connection.
    join_all(workers.iter().map(|worker| cx.commit_turn(worker, 1))).await;
    is_slow.store(true, SeqCst);
    let before = proxy.round_trips();
    join_all(workers.iter().map(|worker| cx.commit_turn(worker, 2))).await;
    let round_trips = proxy.round_trips() - before;
    assert!((1..=WORKERS / 4).contains(&round_trips), "{round_trips} for {WORKERS}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_encrypted_commit_is_one_round_trip_with_a_cached_data_key() {
    let (direct, url) = fresh().await;
    let proxy = Proxy::new(&url, 1);
    let folder = keys::folder();
    let open = async || {
        let store = Postgres::connect(&proxy.url()).await.unwrap().sealed_by(keys::shared(&folder));
        TestContext::new(Arc::new(store), ())
    };
    let cx = open().await;
    // Each statement is prepared once per connection.
    cx.commit_turn(&cx.worker().await, 1).await;
    let mut worker = direct.worker().await;
    let reopened = open().await;
    reopened.commit_turn(&reopened.worker().await, 1).await;
    for (cx, turns) in [(cx, 1..=5), (reopened, 6..=10)] {
        for turn in turns.clone() {
            let before = proxy.round_trips();
            cx.commit_turn(&worker, turn).await;
            let first = turn == *turns.start();
            assert_eq!(proxy.round_trips() - before, if first { 2 } else { 1 }, "turn {turn}");
        }
        worker = direct.next_worker(&worker).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_other_call_is_one_round_trip_too() {
    let (_, url) = fresh().await;
    let proxy = Proxy::new(&url, 1);
    let cx = open(&proxy.url()).await;
    let mut worker = cx.worker().await;
    cx.heartbeats(&[(worker.run, worker.capability)]).await.unwrap();
    cx.run_of(&worker).await;
    worker = cx.next_worker(&worker).await;
    let before = proxy.round_trips();
    cx.run_of(&worker).await;
    cx.heartbeats(&[(worker.run, worker.capability)]).await.unwrap();
    cx.end_and_reserve(&worker, Class::Disruption).await;
    assert_eq!(proxy.round_trips() - before, 3);
}

/// However many calls the turn has, and in every turn: the turn's first call counts the open ones.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_plans_and_results_are_one_round_trip_each() {
    let (_, url) = fresh().await;
    let proxy = Proxy::new(&url, 1);
    let cx = open(&proxy.url()).await;
    let worker = cx.worker().await;
    for turn in 1..=4 {
        let before = proxy.round_trips();
        let calls = vec![planned(&format!("planned-{turn}"), Policy::Probe)];
        ok(cx.commit(&Commit { calls, ..worker.plan(turn) }).await.unwrap());
        for name in ["planned", "claimed"] {
            let claim = cx.start_call(&worker, &format!("{name}-{turn}"), Policy::Probe).await;
            let completed = cx.complete(&worker.complete(&claim)).await.unwrap();
            assert!(matches!(completed, Completed::Ok), "{completed:?}");
        }
        // Each statement is prepared once per connection.
        assert!(
            turn == 1 || proxy.round_trips() - before == 5,
            "turn {turn}: {}",
            proxy.round_trips() - before
        );
        cx.commit_turn(&worker, turn).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_work_if_a_pooler_uses_another_server_for_each_transaction() {
    let (direct, url) = fresh().await;
    let proxy = Proxy::new(&url, 3);
    let cx = open(&format!("{}&pgbouncer=true", proxy.url())).await;
    let mut worker = cx.worker().await;
    for turn in 1..=10 {
        let commit = worker.result(turn);
        ok(cx.commit(&commit).await.unwrap());
        assert!(matches!(cx.commit(&commit).await.unwrap(), Committed::Duplicate(_)));
        let before = proxy.round_trips();
        cx.heartbeats(&[(worker.run, worker.capability)]).await.unwrap();
        assert_eq!(
            proxy.round_trips() - before,
            if turn == 1 { 5 } else { 4 },
            "the first one checks its settings"
        );
        worker = cx.next_worker(&worker).await;
    }
    assert_eq!(direct.run_of(&worker).await.attempt.number, 11);
    assert_eq!(direct.boundaries(worker.run, 1, 10).await.unwrap().len(), 10);
}
