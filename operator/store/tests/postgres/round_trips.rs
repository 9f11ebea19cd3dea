//! The number of round trips of each call, and that calls work if each transaction uses another server connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use dalsegno_model::{
    Attached, BoundaryId, Claim, Class, Commit, Committed, Complete, Completed, Deadlines, NewMessage,
    OnPrior, Parked, RecordKeysQuery, RecordQuery, Retention, Rewind, Rewound, Sent,
};
use dalsegno_protocol::{Boundary, Payload, Policy, RecordOp, RecordOrder, Usage};
use dalsegno_store::postgres::Postgres;
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

/// A boundary that takes messages is a transaction: lock, commit, take, and the end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_a_commit_that_takes_messages_takes_more_round_trips() {
    let (direct, url) = fresh().await;
    let proxy = Proxy::new(&url, 1);
    let cx = open(&proxy.url()).await;
    let worker = cx.worker().await;
    let send = async |cx: &TestContext, id: i32| {
        let (run, value) = (worker.run, json("1"));
        let message =
            NewMessage { run, id: id.to_string(), topic: None, value, author: "ada".into(), audit_id: None };
        assert_eq!(cx.send_message(&message).await.unwrap(), Sent::Ok(id.into()));
    };
    for turn in 1..=4 {
        send(if turn < 3 { &cx } else { &direct }, turn).await;
        let before = proxy.round_trips();
        ok(cx.commit(&Commit { inbox: vec![turn.into()], ..worker.result(turn) }).await.unwrap());
        // Each statement is prepared once per connection.
        assert!(turn == 1 || proxy.round_trips() - before == 4, "{}", proxy.round_trips() - before);
    }
    cx.commit_turn(&worker, 5).await;
    let before = proxy.round_trips();
    assert_eq!(cx.commit_turn(&worker, 6).await.signals.inbox, 4);
    assert_eq!(proxy.round_trips() - before, 1);
    let before = proxy.round_trips();
    send(&cx, 5).await;
    assert_eq!(proxy.round_trips() - before, 4, "it reads the message too");
}

/// The time of the report is written by the same statement.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_or_a_heartbeat_that_reports_a_suspend_is_one_round_trip() {
    let (direct, url) = fresh().await;
    let proxy = Proxy::new(&url, 1);
    let cx = open(&proxy.url()).await;
    let worker = cx.worker().await;
    let heartbeat = async || cx.heartbeats(&[(worker.run, worker.capability)]).await.unwrap();
    // Each statement is prepared once per connection.
    heartbeat().await;
    cx.commit_turn(&worker, 1).await;
    for turn in 2..=5 {
        direct.suspend(worker.run).await.unwrap();
        let before = proxy.round_trips();
        if turn % 2 == 0 {
            assert!(cx.commit_turn(&worker, turn).await.signals.suspend);
            heartbeat().await;
        } else {
            heartbeat().await;
            assert!(cx.commit_turn(&worker, turn).await.signals.suspend);
        }
        assert_eq!(proxy.round_trips() - before, 2, "turn {turn}");
        assert!(direct.resume(worker.run).await.unwrap().suspend.is_none());
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
async fn lookups_and_heartbeats_are_one_round_trip() {
    let (_, url) = fresh().await;
    let proxy = Proxy::new(&url, 1);
    let cx = open(&proxy.url()).await;
    let worker = cx.worker().await;
    let calls = async || {
        let run = cx.run_of(&worker).await;
        cx.get_run(run.id).await.unwrap().unwrap();
        cx.find(&run.namespace, &run.name).await.unwrap();
        cx.heartbeats(&[(worker.run, worker.capability)]).await.unwrap();
    };
    // Each statement is prepared once on each connection.
    calls().await;
    let before = proxy.round_trips();
    calls().await;
    assert_eq!(proxy.round_trips() - before, 4);
}

/// What an agent does in every step is one statement each, whatever it says.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_and_records_are_one_round_trip() {
    let (_, url) = fresh().await;
    let proxy = Proxy::new(&url, 1);
    let cx = open(&proxy.url()).await;
    let worker = cx.worker().await;
    let records = || {
        let space = String::from("s");
        let put =
            |key: &str| RecordOp::Put { space: "s".into(), key: key.into(), value: Payload::Json(json("1")) };
        vec![put("a/1"), put("b"), RecordOp::DeletePrefix { space, prefix: "a/".into() }, put("a/2")]
    };
    let step = async |turn: i32| {
        let claim =
            Claim { tool: Some("model".into()), ..worker.claim(&format!("call-{turn}"), Policy::ReadOnly) };
        cx.claim(&claim).await.unwrap();
        let usage = Usage { tokens_in: 1, ..Usage::default() };
        cx.complete(&Complete { usage, ..worker.complete(&claim) }).await.unwrap();
        cx.write_records(&worker.record_batch(records())).await.unwrap();
        ok(cx.commit(&Commit { records: records(), ..worker.result(turn) }).await.unwrap());
        for order in [RecordOrder::Asc, RecordOrder::Desc] {
            let query = RecordQuery { order, ..all_records() };
            assert_eq!(cx.read_records(worker.run, &query).await.unwrap().records.len(), 2);
            assert_eq!(cx.read_record_keys(worker.run, &query).await.unwrap().keys.len(), 2);
        }
        let keys = vec!["b".to_owned(), "a/2".to_owned()];
        let query = RecordKeysQuery { space: "s".into(), keys, after: 0, limit: 9, bytes: 1 << 20 };
        assert_eq!(cx.read_records_of(worker.run, &query).await.unwrap().records.len(), 2);
    };
    // Each statement is prepared once on each connection.
    step(1).await;
    let before = proxy.round_trips();
    step(2).await;
    assert_eq!(proxy.round_trips() - before, 9);
}

/// A transition locks and reads in the first trip, writes in the second, commits in the third. One that changes nothing is
/// over with the second.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transition_is_three_round_trips_and_two_where_nothing_changes() {
    let (_, url) = fresh().await;
    let proxy = Proxy::new(&url, 1);
    let cx = open(&proxy.url()).await;
    // Each statement is prepared once on each connection.
    life(&cx, &proxy).await;
    let trips = life(&cx, &proxy).await;
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
        ("suspend", 3),
        ("suspend again", 2),
        ("attach again: the first report of the suspend", 4),
        ("attach again, and the suspend was reported", 1),
        ("park", 3),
        ("park again", 2),
        ("resume", 3),
        ("request a cancel", 3),
        ("finish", 3),
        ("adopt: looks before and after", 5),
        ("delete: a look, and a transition", 4),
    ];
    assert_eq!(trips, expected);
}

/// A run from its beginning to its end, and how many trips each call of it took.
async fn life(cx: &TestContext, proxy: &Proxy) -> Vec<(&'static str, u64)> {
    let mut trips = Vec::new();
    let mut last = proxy.round_trips();
    let mut count = |call: Option<&'static str>| {
        let now = proxy.round_trips();
        trips.extend(call.map(|call| (call, now - last)));
        last = now;
    };
    let new = new_run();
    count(None);
    let run = cx.create(&new).await;
    count(Some("create: a look, and one statement"));
    cx.create(&new).await;
    count(Some("create again: a look"));
    recorded(cx.put_revision(run.id, 1, &template(&format!("template of {}", run.id), "{}")).await.unwrap());
    count(Some("keep a template"));
    let (pod, capability) = (pod(&run), random_digest());
    assert!(matches!(cx.attach(run.id, &pod.uid, &capability).await.unwrap(), Attached::NotRecorded));
    count(Some("attach, not recorded: a look"));
    recorded(cx.record_pod(run.id, 1, &pod).await.unwrap());
    count(Some("record the pod"));
    recorded(cx.record_pod(run.id, 1, &pod).await.unwrap());
    count(Some("record the pod again"));
    recorded(cx.record_scheduled(run.id, 1, "node-a").await.unwrap());
    count(Some("record the node"));
    attached(cx.attach(run.id, &pod.uid, &capability).await.unwrap());
    count(Some("attach: a look, and a transition"));
    attached(cx.attach(run.id, &pod.uid, &capability).await.unwrap());
    count(Some("attach again: a look"));
    let deadlines = Deadlines { start_ms: LONG_DEADLINES.start_ms + 1, ..LONG_DEADLINES };
    cx.set_deadlines(run.id, &deadlines).await.unwrap();
    count(Some("set deadlines"));
    cx.set_deadlines(run.id, &deadlines).await.unwrap();
    count(Some("set the same deadlines"));
    cx.set_retention(run.id, &Retention { days: 7, ..Retention::default() }).await.unwrap();
    count(Some("set the retention"));
    cx.reset_budget(run.id, 0, 1).await.unwrap();
    count(Some("grant a budget"));
    let object_uid = run.object_uid.clone();
    let worker = Worker { run: run.id, object_uid, attempt: 1, pod_uid: pod.uid, capability };
    cx.commit_turn(&worker, 1).await;
    cx.commit_turn(&worker, 2).await;
    let to = BoundaryId { turn: 1, boundary: Boundary::Result, epoch: 1 };
    let rewind = Rewind { epoch: 1, to, reason: "it went astray".into(), actor: "ada".into() };
    count(None);
    for call in ["rewind: it reads boundaries too", "rewind again"] {
        let rewound = cx.rewind(run.id, &rewind).await.unwrap();
        count(Some(call));
        assert!(matches!(rewound, Rewound::Done(_)), "{rewound:?}");
    }
    let worker = cx.start_worker(&cx.run_by_uid(&new.object_uid).await).await;
    cx.start_call(&worker, "pay", Policy::Ask).await;
    count(None);
    cx.end_and_reserve(&worker, Class::Disruption).await;
    count(Some("end and reserve"));
    cx.end_and_reserve(&worker, Class::Disruption).await;
    count(Some("end again"));
    cx.settle(&person_settles(run.id, "pay")).await.unwrap();
    count(Some("settle: it reads the call too"));
    let worker = cx.start_worker(&cx.run_by_uid(&new.object_uid).await).await;
    count(None);
    for call in ["suspend", "suspend again"] {
        cx.suspend(run.id).await.unwrap();
        count(Some(call));
    }
    for call in
        ["attach again: the first report of the suspend", "attach again, and the suspend was reported"]
    {
        attached(cx.attach(run.id, &worker.pod_uid, &worker.capability).await.unwrap());
        count(Some(call));
    }
    let park = worker.park();
    for call in ["park", "park again"] {
        assert_eq!(cx.park(&park).await.unwrap(), Parked::Parked);
        count(Some(call));
    }
    cx.resume(run.id).await.unwrap();
    count(Some("resume"));
    cx.request_cancel(run.id).await.unwrap();
    count(Some("request a cancel"));
    let worker = cx.start_worker(&cx.run_by_uid(&new.object_uid).await).await;
    count(None);
    ok(cx.finish(&worker.finish()).await.unwrap());
    count(Some("finish"));
    let later = namesake(&new, OnPrior::Adopt);
    cx.create(&later).await;
    count(Some("adopt: looks before and after"));
    cx.mark_deleted(&later.object_uid).await.unwrap();
    count(Some("delete: a look, and a transition"));
    trips
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
