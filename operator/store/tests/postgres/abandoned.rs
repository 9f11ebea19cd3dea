//! Calls that are given up while the server still works on them.

use std::time::Duration;

use dalsegno_model::Committed;
use dalsegno_protocol::Policy;
use futures::future::join_all;
use sqlx::{Connection as _, Executor as _, PgConnection};
use tokio::time::timeout;

use crate::context::*;
use crate::open;
use crate::pg::Server;

/// All connections that a process may have: for statements, heartbeats and read transactions, and one that asks about
/// abandoned calls.
const CONNECTIONS: i64 = 16 + 2 + 4 + 1;

/// A commit waits for the standby for as long as it takes, and no timeout of the server ends that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn abandoned_calls_occupy_no_more_backends_than_the_pool_while_a_standby_is_away() {
    let server = Server::start(&[]);
    let url = server.database().await;
    let cx = open(&url).await;
    let workers = join_all((0..48).map(|_| cx.worker())).await;
    let mut admin = PgConnection::connect(&url).await.unwrap();
    set_standby(&mut admin, "gone").await;
    for round in 0..4 {
        let given_up = workers.iter().zip(0..).map(async |(worker, number)| {
            let limit = Duration::from_millis(1_500);
            let (commit, claim) = (worker.result(1), worker.claim(&format!("call-{round}"), Policy::Probe));
            match number % 3 {
                0 => timeout(limit, cx.claim(&claim)).await.map(drop).ok(),
                1 => timeout(limit, cx.request_cancel(worker.run)).await.map(drop).ok(),
                _ => timeout(limit, cx.commit(&commit)).await.map(drop).ok(),
            }
        });
        assert!(join_all(given_up).await.contains(&None), "calls are given up");
        let all = count(&mut admin, "application_name LIKE 'dalsegno%'").await;
        let waiting = count(&mut admin, "wait_event = 'SyncRep'").await;
        assert!(waiting > 0, "commits wait for the standby");
        assert!(all <= CONNECTIONS, "round {round}: {all} backends, {waiting} wait for the standby");
    }
    // Heartbeats do not wait for the standby, and have connections of their own.
    let beats = workers.iter().map(|worker| (worker.run, worker.capability)).collect::<Vec<_>>();
    assert_eq!(cx.heartbeats(&beats).await.unwrap().len(), beats.len());
    set_standby(&mut admin, "").await;
    // Each permit is free again.
    let commits = join_all(workers.iter().skip(2).step_by(3).map(async |worker| {
        let commit = worker.result(2);
        timeout(Duration::from_secs(20), async {
            loop {
                match cx.commit(&commit).await {
                    Ok(committed) => return committed,
                    Err(_) => sleep_ms(200).await,
                }
            }
        })
        .await
        .expect("the pool works again")
    }));
    let commits = commits.await;
    // The first turn was committed or not: that was unknown.
    let is_expected = |it: &Committed| matches!(it, Committed::Ok(_) | Committed::Conflict { .. });
    assert!(commits.iter().all(is_expected), "{commits:?}");
    assert!(count(&mut admin, "application_name LIKE 'dalsegno%'").await <= CONNECTIONS);
}

/// Why an abandoned statement is not cancelled: a cancel request ends the wait for the standby and not the commit. A turn
/// that a fail-over would lose is then in every read, and in the status of its AgentRun.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_turn_that_the_standby_lacks_is_neither_read_nor_acknowledged() {
    let server = Server::start(&[]);
    let url = server.database().await;
    let cx = open(&url).await;
    let worker = cx.worker().await;
    let mut admin = PgConnection::connect(&url).await.unwrap();
    set_standby(&mut admin, "gone").await;
    let commit = worker.result(1);
    timeout(Duration::from_secs(1), cx.commit(&commit)).await.expect_err("it waits for the standby");
    cx.commit(&commit).await.expect_err("its retry waits too");
    assert_eq!(cx.run_of(&worker).await.head, None, "nobody reads the turn");
    let cancel = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
    admin.execute(cancel).await.unwrap();
    let is_read = timeout(Duration::from_secs(20), async {
        while cx.run_of(&worker).await.head.is_none() {
            sleep_ms(20).await;
        }
    });
    is_read.await.expect("after a cancel request the turn is read");
}

/// A call is abandoned in the middle of a transaction: the server rolls back, and the run's row is free.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn abandoned_calls_leave_no_transaction_open() {
    let server = Server::start(&[]);
    let url = server.database().await;
    let cx = open(&url).await;
    let workers = join_all((0..32).map(|_| cx.worker())).await;
    for millis in 0..12 {
        let calls = workers.iter().map(async |worker| {
            let call = cx.request_cancel(worker.run);
            let _ = timeout(Duration::from_millis(millis), call).await;
        });
        join_all(calls).await;
    }
    let mut admin = PgConnection::connect(&url).await.unwrap();
    let open = "application_name LIKE 'dalsegno%' AND state LIKE 'idle in transaction%'";
    let ended = timeout(Duration::from_secs(10), async {
        while count(&mut admin, open).await > 0 {
            sleep_ms(20).await;
        }
    });
    ended.await.expect("no transaction stays open");
    join_all(workers.iter().map(|worker| cx.request_cancel(worker.run))).await;
}

async fn set_standby(admin: &mut PgConnection, name: &'static str) {
    let set = sqlx::AssertSqlSafe(format!("ALTER SYSTEM SET synchronous_standby_names = '{name}'"));
    admin.execute(set).await.unwrap();
    admin.execute("SELECT pg_reload_conf()").await.unwrap();
    // The server's processes read the setting a moment later. Nothing shows when the last one has.
    sleep_ms(3_000).await;
}

async fn count(admin: &mut PgConnection, which: &str) -> i64 {
    let sql = format!("SELECT count(*) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND {which}");
    sqlx::query_scalar(sqlx::AssertSqlSafe(sql)).fetch_one(admin).await.unwrap()
}
