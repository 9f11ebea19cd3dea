//! How often a call waits for the wire, and that it works where each transaction is another server's.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use dalsegno_protocol::Policy;
use dalsegno_store::postgres::Postgres;
use dalsegno_store::{Class, Commit, Committed, Completed};
use futures::future::join_all;

use crate::wire::{Fate, Wire};
use crate::world::*;
use crate::{fresh, keys, open};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_is_one_round_trip() {
    let (_, url) = fresh().await;
    let wire = Wire::to(&url, 1);
    let world = open(&wire.url()).await;
    let worker = world.worker().await;
    // Each statement is prepared once on each connection.
    world.turn(&worker, 1).await;
    for turn in 2..=21 {
        let before = wire.exchanges();
        world.turn(&worker, turn).await;
        assert_eq!(wire.exchanges() - before, 1, "turn {turn}");
    }
}

/// The first of them go at once; the others wait for these, and go together.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commits_of_many_runs_share_round_trips() {
    const CROWD: u64 = 32;
    let (_, url) = fresh().await;
    let is_slow = Arc::<AtomicBool>::default();
    let slow = Arc::clone(&is_slow);
    let wire = Wire::torn(&url, move || {
        if slow.load(SeqCst) { Fate::Stall(Duration::from_millis(200)) } else { Fate::Pass }
    });
    let world = open(&wire.url()).await;
    let crowd = join_all((0..CROWD).map(|_| world.worker())).await;
    // Each statement is prepared once on each connection.
    join_all(crowd.iter().map(|worker| world.turn(worker, 1))).await;
    is_slow.store(true, SeqCst);
    let before = wire.exchanges();
    join_all(crowd.iter().map(|worker| world.turn(worker, 2))).await;
    let exchanges = wire.exchanges() - before;
    assert!((1..=CROWD / 4).contains(&exchanges), "{exchanges} for {CROWD}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_encrypted_commit_is_one_round_trip_once_the_runs_data_key_is_known() {
    let (direct, url) = fresh().await;
    let wire = Wire::to(&url, 1);
    let folder = keys::folder();
    let open = async || {
        let store = Postgres::connect(&wire.url()).await.unwrap().sealed_by(keys::shared(&folder));
        World::new(Arc::new(store), ())
    };
    let world = open().await;
    // Each statement is prepared once on each connection.
    world.turn(&world.worker().await, 1).await;
    let mut worker = direct.worker().await;
    let again = open().await;
    again.turn(&again.worker().await, 1).await;
    for (world, turns) in [(world, 1..=5), (again, 6..=10)] {
        for turn in turns.clone() {
            let before = wire.exchanges();
            world.turn(&worker, turn).await;
            let first = turn == *turns.start();
            assert_eq!(wire.exchanges() - before, if first { 2 } else { 1 }, "turn {turn}");
        }
        worker = direct.next(&worker).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_other_call_is_one_round_trip_too() {
    let (_, url) = fresh().await;
    let wire = Wire::to(&url, 1);
    let world = open(&wire.url()).await;
    let mut worker = world.worker().await;
    world.heartbeats(&[(worker.run, worker.capability)]).await.unwrap();
    world.of(&worker).await;
    worker = world.next(&worker).await;
    let before = wire.exchanges();
    world.of(&worker).await;
    world.heartbeats(&[(worker.run, worker.capability)]).await.unwrap();
    world.lose(&worker, Class::Disruption).await;
    assert_eq!(wire.exchanges() - before, 3);
}

/// However many calls the turn has made, and in whichever turn: the first one of a turn counts what is open.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_is_one_round_trip_and_so_are_a_plan_and_a_result() {
    let (_, url) = fresh().await;
    let wire = Wire::to(&url, 1);
    let world = open(&wire.url()).await;
    let worker = world.worker().await;
    for turn in 1..=4 {
        let before = wire.exchanges();
        let calls = vec![planned(&format!("planned-{turn}"), Policy::Probe)];
        ok(world.commit(&Commit { calls, ..worker.plan(turn) }).await.unwrap());
        for name in ["planned", "claimed"] {
            let claim = world.start_call(&worker, &format!("{name}-{turn}"), Policy::Probe).await;
            let completed = world.complete(&worker.complete(&claim)).await.unwrap();
            assert!(matches!(completed, Completed::Ok), "{completed:?}");
        }
        // Each statement is prepared once on each connection.
        assert!(turn == 1 || wire.exchanges() - before == 5, "turn {turn}: {}", wire.exchanges() - before);
        world.turn(&worker, turn).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pooler_may_give_each_transaction_another_server() {
    let (direct, url) = fresh().await;
    let wire = Wire::to(&url, 3);
    let world = open(&format!("{}&pgbouncer=true", wire.url())).await;
    let mut worker = world.worker().await;
    for turn in 1..=10 {
        let commit = worker.result(turn);
        ok(world.commit(&commit).await.unwrap());
        assert!(matches!(world.commit(&commit).await.unwrap(), Committed::Duplicate(_)));
        let before = wire.exchanges();
        world.heartbeats(&[(worker.run, worker.capability)]).await.unwrap();
        assert_eq!(
            wire.exchanges() - before,
            if turn == 1 { 5 } else { 4 },
            "the first one checks its settings"
        );
        worker = world.next(&worker).await;
    }
    assert_eq!(direct.of(&worker).await.attempt.number, 11);
    assert_eq!(direct.boundaries(worker.run, 1, 10).await.unwrap().len(), 10);
}
