//! Lost connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use dalsegno_model::{Committed, Deadlines, Error, NewRun, Result};
use dalsegno_protocol::{CONTRACT, FIRST_CONTRACT, Policy};
use futures::future::{join, join_all, join3};
use sqlx::{Connection as _, Executor as _, PgConnection};
use tokio::time::timeout;

use crate::context::*;
use crate::proxy::{Fault, Proxy};
use crate::{fresh, open, patient};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_server_costs_one_answer() {
    let (cx, url) = fresh().await;
    let worker = cx.worker().await;
    // Open several connections.
    join_all((0..8).map(|_| cx.run_of(&worker))).await;
    let mut conn = PgConnection::connect(&url).await.unwrap();
    conn.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
         WHERE datname = current_database() AND pid <> pg_backend_pid() AND application_name LIKE 'dalsegno%'",
    )
    .await
    .unwrap();
    let commit = worker.result(1);
    let error = cx.commit(&commit).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    ok(cx.commit(&commit).await.unwrap());
    assert!(matches!(cx.commit(&commit).await.unwrap(), Committed::Duplicate(_)));
}

/// The server does not notice for hours that a gateway's node is gone, and keeps every row version that it might read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_reader_keeps_old_rows_only_until_a_timeout() {
    let (cx, url) = fresh().await;
    let _reading = cx.begin_read().await.unwrap();
    let mut conn = PgConnection::connect(&url).await.unwrap();
    let begun = "SELECT query FROM pg_stat_activity \
                 WHERE datname = current_database() AND state = 'idle in transaction'";
    let begun: String = sqlx::query_scalar(begun).fetch_one(&mut conn).await.unwrap();
    assert!(begun.contains("idle_in_transaction_session_timeout = '10min'"), "{begun}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_contract_is_the_lowest_among_the_gateways_that_serve() {
    let (cx, url) = fresh().await;
    assert_eq!(cx.record_gateway_heartbeat().await.unwrap(), CONTRACT);
    let mut conn = PgConnection::connect(&url).await.unwrap();
    // As a gateway of the version before does, which does not know the column.
    let old = "INSERT INTO gateways (id, beat_last, beat_since, gap_from) SELECT gen_random_uuid(), now, now, now \
               FROM (SELECT ds_now_v1() AS now) AS clock";
    conn.execute(old).await.unwrap();
    assert_eq!(cx.record_gateway_heartbeat().await.unwrap(), FIRST_CONTRACT);
    let gone = format!("UPDATE gateways SET beat_last = beat_last - 16000 WHERE contract = {FIRST_CONTRACT}");
    conn.execute(sqlx::AssertSqlSafe(gone)).await.unwrap();
    assert_eq!(cx.record_gateway_heartbeat().await.unwrap(), CONTRACT, "the old gateway has ended");
}

/// The server's clock was put back, or the next server's clock is behind.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gateway_heartbeats_restart_if_the_servers_clock_goes_back() {
    let (cx, url) = fresh().await;
    let deadlines = Deadlines { progress_ms: 200, ..LONG_DEADLINES };
    let worker = cx.start_worker(&cx.create(&NewRun { deadlines, ..new_run() }).await).await;
    cx.record_gateway_heartbeat().await.unwrap();
    let mut conn = PgConnection::connect(&url).await.unwrap();
    let ahead = "UPDATE store SET beat_last = beat_last + 3600000, beat_since = beat_since + 3600000";
    conn.execute(ahead).await.unwrap();
    sleep_ms(300).await;
    let expired = async || cx.poll_deadlines(jiff::Timestamp::now().into()).await.unwrap().expired.len();
    assert_eq!(expired().await, 0);
    cx.record_gateway_heartbeat().await.unwrap();
    let run = cx.run_of(&worker).await;
    assert!(run.beat.since <= run.now && run.beat.last <= run.now && run.beat.gap_from <= run.beat.since);
    sleep_ms(300).await;
    cx.record_gateway_heartbeat().await.unwrap();
    assert_eq!(expired().await, 1, "the clock continues from there");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_connections_cost_each_caller_one_answer() {
    let (_, url) = fresh().await;
    let proxy = Proxy::new(&url, 1);
    let cx = open(&proxy.url()).await;
    let workers = join_all((0..8).map(|_| cx.worker())).await;
    /// Whether a call succeeds within the 5 s that a caller has.
    async fn done<T>(call: impl Future<Output = Result<T>>) -> bool {
        timeout(Duration::from_secs(5), call).await.is_ok_and(|answer| answer.is_ok())
    }
    let calls = async |turn| {
        let claim = workers[1].claim(&format!("call-{turn}"), Policy::Probe);
        let (commit, beats) = (workers[0].result(turn), [(workers[2].run, workers[2].capability)]);
        let (commit, claim) = (cx.commit(&commit), cx.claim(&claim));
        let done = futures::join!(
            done(commit),
            done(claim),
            done(cx.record_gateway_heartbeat()),
            done(cx.heartbeats(&beats))
        );
        <[bool; 4]>::from(done)
    };
    // Several idle connections; each could be the next one used.
    join_all(workers.iter().map(|worker| cx.run_of(worker))).await;
    assert_eq!(calls(1).await, [true; 4]);
    proxy.go_silent();
    assert_eq!(calls(2).await, [false; 4], "no answers");
    // A silent connection never answers, however long the caller waits.
    for turn in 2..=4 {
        assert_eq!(calls(turn).await, [true; 4]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_abandoned_call_does_not_affect_the_next() {
    let (cx, url) = fresh().await;
    let worker = cx.worker().await;
    let mut holder = PgConnection::connect(&url).await.unwrap();
    let mut transaction = holder.begin().await.unwrap();
    sqlx::query("SELECT FROM runs FOR UPDATE").execute(&mut *transaction).await.unwrap();
    let commit = worker.result(1);
    let given_up = tokio::time::timeout(std::time::Duration::from_millis(200), cx.commit(&commit)).await;
    assert!(given_up.is_err());
    assert_eq!(cx.run_of(&worker).await.head, None, "a read does not wait for a lock");
    transaction.rollback().await.unwrap();
    // The abandoned commit may have been executed.
    match cx.commit(&commit).await.unwrap() {
        Committed::Ok(_) | Committed::Duplicate(_) => {}
        other => panic!("{other:?}"),
    }
    assert_eq!(cx.boundaries(worker.run, 1, 9).await.unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_callers_than_connections_are_all_answered() {
    let (cx, _) = fresh().await;
    let workers = join_all((0..100).map(|_| cx.worker())).await;
    join_all(workers.iter().map(|worker| cx.commit_turn(worker, 1))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_behind_hanging_ones_waits_no_longer_than_they_do() {
    let (_, url) = fresh().await;
    let (proxy, hangs) = hanging(&url);
    let cx = open(&proxy.url()).await;
    let workers = join_all((0..3).map(|_| cx.worker())).await;
    hangs.store(true, SeqCst);
    let waits = workers.iter().zip(0..).map(async |(worker, boundary_id)| {
        // One after the other, so that the last one finds all slots taken.
        sleep_ms(300 * boundary_id).await;
        let started = Instant::now();
        let error = cx.commit(&worker.result(1)).await.unwrap_err();
        assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
        started.elapsed()
    });
    let waits = join_all(waits).await;
    assert!(waits.iter().all(|wait| *wait < Duration::from_secs(12)), "{waits:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_abandoned_commit_frees_its_slot() {
    let (_, url) = fresh().await;
    let (proxy, hangs) = hanging(&url);
    let cx = open(&proxy.url()).await;
    let workers = join_all((0..3).map(|_| cx.worker())).await;
    hangs.store(true, SeqCst);
    let given_up = workers[..2].iter().map(async |worker| {
        let commit = worker.result(1);
        tokio::time::timeout(Duration::from_secs(2), cx.commit(&commit)).await.unwrap_err();
    });
    let waiting = async {
        // All slots are taken by now.
        sleep_ms(1_000).await;
        hangs.store(false, SeqCst);
        ok(cx.commit(&workers[2].result(1)).await.unwrap());
    };
    join(join_all(given_up), waiting).await;
}

/// Its batch was sent without it because its run's row was locked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_abandoned_in_the_queue_is_never_executed() {
    let (_, url) = fresh().await;
    let is_slow = Arc::<AtomicBool>::default();
    let slow = Arc::clone(&is_slow);
    let proxy = Proxy::with_faults(&url, move || {
        if slow.load(SeqCst) { Fault::Stall(Duration::from_millis(300)) } else { Fault::Pass }
    });
    let cx = patient(&proxy.url()).await;
    let workers = join_all((0..3).map(|_| cx.worker())).await;
    let mut holder = PgConnection::connect(&url).await.unwrap();
    let mut transaction = holder.begin().await.unwrap();
    let lock = sqlx::query("SELECT FROM runs WHERE id = $1 FOR UPDATE");
    transaction.execute(lock.bind(workers[0].run)).await.unwrap();
    let claims = ["a", "b"].map(|id| workers[0].claim(id, Policy::Probe));
    let queued = join_all(claims.iter().map(|claim| cx.claim(claim)));
    let others = join_all(workers[1..].iter().map(async |worker| {
        sleep_ms(300).await;
        is_slow.store(true, SeqCst);
        cx.commit_turn(worker, 1).await;
    }));
    let given_up = async {
        // All slots are taken by now.
        sleep_ms(500).await;
        let commit = workers[0].result(1);
        timeout(Duration::from_secs(2), cx.commit(&commit)).await.unwrap_err();
        transaction.rollback().await.unwrap();
    };
    let (claimed, ..) = join3(queued, others, given_up).await;
    assert!(claimed.iter().all(Result::is_ok), "{claimed:?}");
    sleep_ms(1_000).await;
    assert_eq!(cx.run_of(&workers[0]).await.head, None);
}

/// A proxy, and a switch that makes every request on it hang.
fn hanging(url: &str) -> (Proxy, Arc<AtomicBool>) {
    let hangs = Arc::<AtomicBool>::default();
    let switch = Arc::clone(&hangs);
    let fault = move || if switch.load(SeqCst) { Fault::Stall(Duration::from_secs(30)) } else { Fault::Pass };
    (Proxy::with_faults(url, fault), hangs)
}
