//! How often a call waits for the wire, and that it works where each transaction is another server's.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use dalsegno_protocol::{Boundary, Policy};
use dalsegno_store::postgres::Postgres;
use dalsegno_store::{
    Attached, Class, Commit, Committed, Completed, Deadlines, OnPrior, Place, Retention, Rewind, Rewound,
};
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
async fn lookups_and_heartbeats_are_one_round_trip() {
    let (_, url) = fresh().await;
    let wire = Wire::to(&url, 1);
    let world = open(&wire.url()).await;
    let worker = world.worker().await;
    let calls = async || {
        let run = world.of(&worker).await;
        world.get_run(run.id).await.unwrap().unwrap();
        world.find(&run.namespace, &run.name).await.unwrap();
        world.heartbeats(&[(worker.run, worker.capability)]).await.unwrap();
    };
    // Each statement is prepared once on each connection.
    calls().await;
    let before = wire.exchanges();
    calls().await;
    assert_eq!(wire.exchanges() - before, 4);
}

/// A transition locks and reads in the first trip, writes in the second, commits in the third. One that changes nothing is
/// over with the second.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transition_is_three_round_trips_and_two_where_nothing_changes() {
    let (_, url) = fresh().await;
    let wire = Wire::to(&url, 1);
    let world = open(&wire.url()).await;
    // Each statement is prepared once on each connection.
    life(&world, &wire).await;
    let trips = life(&world, &wire).await;
    let expected = [
        ("create: a look, and one statement", 2),
        ("create again: a look", 1),
        ("keep a template", 3),
        ("attach, not recorded: a look", 1),
        ("record the pod", 3),
        ("record the pod again", 2),
        ("record the node", 3),
        ("attach: a look, and a transition", 4),
        ("attach again: a look", 1),
        ("set deadlines", 3),
        ("set the same deadlines", 2),
        ("set the retention", 3),
        ("grant a budget", 3),
        ("rewind: it reads boundaries too", 4),
        ("rewind again", 3),
        ("end and reserve", 3),
        ("end again", 2),
        ("settle: it reads the call too", 4),
        ("request a cancel", 3),
        ("finish", 3),
        ("adopt: looks before and after", 5),
        ("delete: a look, and a transition", 4),
    ];
    assert_eq!(trips, expected);
}

/// A run from its beginning to its end, and how many trips each call of it took.
async fn life(world: &World, wire: &Wire) -> Vec<(&'static str, u64)> {
    let mut trips = Vec::new();
    let mut last = wire.exchanges();
    let mut count = |call: Option<&'static str>| {
        let now = wire.exchanges();
        trips.extend(call.map(|call| (call, now - last)));
        last = now;
    };
    let new = new_run();
    count(None);
    let run = world.take_up(&new).await;
    count(Some("create: a look, and one statement"));
    world.take_up(&new).await;
    count(Some("create again: a look"));
    recorded(world.put_revision(run.id, 1, &format!("template of {}", run.id), "{}").await.unwrap());
    count(Some("keep a template"));
    let (pod, capability) = (pod(&run), random());
    assert!(matches!(world.attach(run.id, &pod.uid, &capability).await.unwrap(), Attached::NotRecorded));
    count(Some("attach, not recorded: a look"));
    recorded(world.record_pod(run.id, 1, &pod).await.unwrap());
    count(Some("record the pod"));
    recorded(world.record_pod(run.id, 1, &pod).await.unwrap());
    count(Some("record the pod again"));
    recorded(world.record_scheduled(run.id, 1, "node-a").await.unwrap());
    count(Some("record the node"));
    attached(world.attach(run.id, &pod.uid, &capability).await.unwrap());
    count(Some("attach: a look, and a transition"));
    attached(world.attach(run.id, &pod.uid, &capability).await.unwrap());
    count(Some("attach again: a look"));
    let deadlines = Deadlines { start_ms: LONG.start_ms + 1, ..LONG };
    world.set_deadlines(run.id, &deadlines).await.unwrap();
    count(Some("set deadlines"));
    world.set_deadlines(run.id, &deadlines).await.unwrap();
    count(Some("set the same deadlines"));
    world.set_retention(run.id, &Retention { days: 7, keep_last: None }).await.unwrap();
    count(Some("set the retention"));
    world.reset_budget(run.id, 0, 1).await.unwrap();
    count(Some("grant a budget"));
    let object_uid = run.object_uid.clone();
    let worker = Worker { run: run.id, object_uid, attempt: 1, pod_uid: pod.uid, capability };
    world.turn(&worker, 1).await;
    world.turn(&worker, 2).await;
    let to = Place { turn: 1, boundary: Boundary::Result, epoch: 1 };
    let rewind = Rewind { epoch: 1, to, reason: "it went astray".into(), actor: "ada".into() };
    count(None);
    for call in ["rewind: it reads boundaries too", "rewind again"] {
        let rewound = world.rewind(run.id, &rewind).await.unwrap();
        count(Some(call));
        assert!(matches!(rewound, Rewound::Done(_)), "{rewound:?}");
    }
    let worker = world.work_on(&world.look(&new.object_uid).await).await;
    world.start_call(&worker, "pay", Policy::Ask).await;
    count(None);
    world.lose(&worker, Class::Disruption).await;
    count(Some("end and reserve"));
    world.lose(&worker, Class::Disruption).await;
    count(Some("end again"));
    world.settle(&person_settles(run.id, "pay")).await.unwrap();
    count(Some("settle: it reads the call too"));
    world.request_cancel(run.id).await.unwrap();
    count(Some("request a cancel"));
    let worker = world.work_on(&world.look(&new.object_uid).await).await;
    count(None);
    ok(world.finish(&worker.finish()).await.unwrap());
    count(Some("finish"));
    let later = namesake(&new, OnPrior::Adopt);
    world.take_up(&later).await;
    count(Some("adopt: looks before and after"));
    world.mark_deleted(&later.object_uid).await.unwrap();
    count(Some("delete: a look, and a transition"));
    trips
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
