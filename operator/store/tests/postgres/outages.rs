//! Connections are lost, and found again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use dalsegno_protocol::Policy;
use dalsegno_store::{Committed, Deadlines, Error, NewRun, Result};
use futures::future::{join, join_all, join3};
use sqlx::{Connection as _, Executor as _, PgConnection};
use tokio::time::timeout;

use crate::wire::{Fate, Wire};
use crate::world::*;
use crate::{fresh, open};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_server_costs_one_answer() {
    let (world, url) = fresh().await;
    let worker = world.worker().await;
    // Several idle connections.
    join_all((0..8).map(|_| world.of(&worker))).await;
    let mut conn = PgConnection::connect(&url).await.unwrap();
    conn.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
         WHERE datname = current_database() AND pid <> pg_backend_pid() AND application_name = 'dalsegno'",
    )
    .await
    .unwrap();
    let commit = worker.result(1);
    let error = world.commit(&commit).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    ok(world.commit(&commit).await.unwrap());
    assert!(matches!(world.commit(&commit).await.unwrap(), Committed::Duplicate(_)));
}

/// Of a gateway that is lost with its node the server hears nothing for hours, and keeps for it whatever it might still read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_vanishes_holds_no_old_rows_for_long() {
    let (world, url) = fresh().await;
    let _reading = world.reading().await.unwrap();
    let mut conn = PgConnection::connect(&url).await.unwrap();
    let begun = "SELECT query FROM pg_stat_activity \
                 WHERE datname = current_database() AND state = 'idle in transaction'";
    let begun: String = sqlx::query_scalar(begun).fetch_one(&mut conn).await.unwrap();
    assert!(begun.contains("idle_in_transaction_session_timeout = '10min'"), "{begun}");
}

/// A server whose clock is put back, or the next one after it, whose clock is behind.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn beats_start_anew_where_the_servers_clock_was_put_back() {
    let (world, url) = fresh().await;
    let deadlines = Deadlines { progress_ms: 200, ..LONG };
    let worker = world.work_on(&world.take_up(&NewRun { deadlines, ..new_run() }).await).await;
    world.beat().await.unwrap();
    let mut conn = PgConnection::connect(&url).await.unwrap();
    let ahead = "UPDATE store SET beat_last = beat_last + 3600000, beat_since = beat_since + 3600000";
    conn.execute(ahead).await.unwrap();
    pause(300).await;
    let expired = async || world.pulse(jiff::Timestamp::now()).await.unwrap().expired.len();
    assert_eq!(expired().await, 0);
    world.beat().await.unwrap();
    let run = world.of(&worker).await;
    assert!(run.beat.since <= run.now && run.beat.last <= run.now && run.beat.gap_from <= run.beat.since);
    pause(300).await;
    world.beat().await.unwrap();
    assert_eq!(expired().await, 1, "and runs on from there");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_fall_silent_cost_each_caller_one_answer() {
    let (_, url) = fresh().await;
    let wire = Wire::to(&url, 1);
    let world = open(&wire.url()).await;
    let crowd = join_all((0..8).map(|_| world.worker())).await;
    /// Whether it is done within the time that a caller has.
    async fn done<T>(call: impl Future<Output = Result<T>>) -> bool {
        timeout(Duration::from_secs(5), call).await.is_ok_and(|answer| answer.is_ok())
    }
    let calls = async |turn| {
        let claim = crowd[1].claim(&format!("call-{turn}"), Policy::Probe);
        let (commit, heard) = (crowd[0].result(turn), [(crowd[2].run, crowd[2].capability)]);
        let (commit, claim) = (world.commit(&commit), world.claim(&claim));
        let done =
            futures::join!(done(commit), done(claim), done(world.beat()), done(world.heartbeats(&heard)));
        <[bool; 4]>::from(done)
    };
    // Several idle connections, each of which could be the next.
    join_all(crowd.iter().map(|worker| world.of(worker))).await;
    assert_eq!(calls(1).await, [true; 4]);
    wire.fall_silent();
    assert_eq!(calls(2).await, [false; 4], "nobody hears anything");
    // A connection that is lost answers nobody, however long he waits.
    for turn in 2..=4 {
        assert_eq!(calls(turn).await, [true; 4]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_is_given_up_leaves_nothing_behind_for_the_next() {
    let (world, url) = fresh().await;
    let worker = world.worker().await;
    let mut holder = PgConnection::connect(&url).await.unwrap();
    let mut transaction = holder.begin().await.unwrap();
    sqlx::query("SELECT FROM runs FOR UPDATE").execute(&mut *transaction).await.unwrap();
    let commit = worker.result(1);
    let given_up = tokio::time::timeout(std::time::Duration::from_millis(200), world.commit(&commit)).await;
    assert!(given_up.is_err());
    assert_eq!(world.of(&worker).await.head, None, "a read waits for no lock");
    transaction.rollback().await.unwrap();
    // What was given up may have been done meanwhile.
    match world.commit(&commit).await.unwrap() {
        Committed::Ok(_) | Committed::Duplicate(_) => {}
        other => panic!("{other:?}"),
    }
    assert_eq!(world.boundaries(worker.run, 1, 9).await.unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_callers_than_connections_all_get_their_answer() {
    let (world, _) = fresh().await;
    let workers = join_all((0..100).map(|_| world.worker())).await;
    join_all(workers.iter().map(|worker| world.turn(worker, 1))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_behind_others_that_hang_waits_no_longer_than_they() {
    let (_, url) = fresh().await;
    let (wire, hangs) = hanging(&url);
    let world = open(&wire.url()).await;
    let crowd = join_all((0..3).map(|_| world.worker())).await;
    hangs.store(true, SeqCst);
    let waits = crowd.iter().zip(0..).map(async |(worker, place)| {
        // One after the other, so that the last finds all lanes taken.
        pause(300 * place).await;
        let started = Instant::now();
        let error = world.commit(&worker.result(1)).await.unwrap_err();
        assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
        started.elapsed()
    });
    let waits = join_all(waits).await;
    assert!(waits.iter().all(|wait| *wait < Duration::from_secs(12)), "{waits:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_gives_up_leaves_the_way_to_those_that_wait() {
    let (_, url) = fresh().await;
    let (wire, hangs) = hanging(&url);
    let world = open(&wire.url()).await;
    let crowd = join_all((0..3).map(|_| world.worker())).await;
    hangs.store(true, SeqCst);
    let given_up = crowd[..2].iter().map(async |worker| {
        let commit = worker.result(1);
        tokio::time::timeout(Duration::from_secs(2), world.commit(&commit)).await.unwrap_err();
    });
    let waiting = async {
        // By then all lanes are taken.
        pause(1_000).await;
        hangs.store(false, SeqCst);
        ok(world.commit(&crowd[2].result(1)).await.unwrap());
    };
    join(join_all(given_up), waiting).await;
}

/// It was left behind by those it was gathered with, as its run's row was locked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_that_was_given_up_in_line_is_never_made() {
    let (_, url) = fresh().await;
    let is_slow = Arc::<AtomicBool>::default();
    let slow = Arc::clone(&is_slow);
    let wire = Wire::torn(&url, move || {
        if slow.load(SeqCst) { Fate::Stall(Duration::from_millis(300)) } else { Fate::Pass }
    });
    let world = open(&wire.url()).await;
    let crowd = join_all((0..3).map(|_| world.worker())).await;
    let mut holder = PgConnection::connect(&url).await.unwrap();
    let mut transaction = holder.begin().await.unwrap();
    let lock = sqlx::query("SELECT FROM runs WHERE id = $1 FOR UPDATE");
    transaction.execute(lock.bind(crowd[0].run)).await.unwrap();
    let claims = ["a", "b"].map(|id| crowd[0].claim(id, Policy::Probe));
    let in_line = join_all(claims.iter().map(|claim| world.claim(claim)));
    let lanes = join_all(crowd[1..].iter().map(async |worker| {
        pause(300).await;
        is_slow.store(true, SeqCst);
        world.turn(worker, 1).await;
    }));
    let given_up = async {
        // By then all lanes are taken.
        pause(500).await;
        let commit = crowd[0].result(1);
        timeout(Duration::from_secs(2), world.commit(&commit)).await.unwrap_err();
        transaction.rollback().await.unwrap();
    };
    let (claimed, ..) = join3(in_line, lanes, given_up).await;
    assert!(claimed.iter().all(Result::is_ok), "{claimed:?}");
    pause(1_000).await;
    assert_eq!(world.of(&crowd[0]).await.head, None);
}

/// A wire, and what makes every request on it hang.
fn hanging(url: &str) -> (Wire, Arc<AtomicBool>) {
    let hangs = Arc::<AtomicBool>::default();
    let told = Arc::clone(&hangs);
    let fate = move || if told.load(SeqCst) { Fate::Stall(Duration::from_secs(30)) } else { Fate::Pass };
    (Wire::torn(url, fate), hangs)
}
