//! Concurrency: a call that waits for a run's row is judged by what the call before it has written.

use std::time::{Duration, Instant};

use dalsegno_model::{Claimed, Class, Committed, Error, HeartbeatAnswer};
use dalsegno_protocol::Policy;
use futures::FutureExt as _;
use futures::future::{join, join_all};
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection};
use tokio::time::timeout;

use crate::context::*;
use crate::proxy::{Fault, Proxy};
use crate::{fresh, open, patient};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_concurrent_pairs_are_each_one_ok_and_one_duplicate() {
    let (cx, url) = fresh().await;
    let other = patient(&url).await;
    let runs = join_all((0..10).map(|_| async {
        let worker = cx.worker().await;
        for turn in 1..=100 {
            let commit = worker.result(turn);
            match join(cx.commit(&commit), other.commit(&commit)).await {
                (Ok(Committed::Ok(one)), Ok(Committed::Duplicate(two)))
                | (Ok(Committed::Duplicate(two)), Ok(Committed::Ok(one))) => assert_eq!(one.head, two.head),
                pair => panic!("turn {turn}: {pair:?}"),
            }
        }
        worker
    }))
    .await;
    for worker in runs {
        assert_eq!(cx.run_of(&worker).await.head.map(|head| head.turn), Some(100));
        assert_eq!(cx.boundaries(worker.run, 1, 100).await.unwrap().len(), 100);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_that_waits_for_the_end_of_its_attempt_is_fenced() {
    let (cx, url) = fresh().await;
    let worker = cx.worker().await;
    let mut operator = PgConnection::connect(&url).await.unwrap();
    let mut transaction = operator.begin().await.unwrap();
    end(&mut transaction, &worker).await;
    let commit = worker.result(1);
    let old_worker = async {
        let answer = cx.commit(&commit).await.unwrap();
        assert_eq!(answer, Committed::Fenced { committed: false });
    };
    let operator = async {
        wait_for_lock_waits(&url, 1).await;
        transaction.commit().await.unwrap();
    };
    join(old_worker, operator).await;
    assert_eq!(cx.run_of(&worker).await.head, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_that_waits_for_an_end_that_is_rolled_back_is_accepted() {
    let (cx, url) = fresh().await;
    let worker = cx.worker().await;
    let mut operator = PgConnection::connect(&url).await.unwrap();
    let mut transaction = operator.begin().await.unwrap();
    end(&mut transaction, &worker).await;
    let commit = worker.result(1);
    let (answer, ()) = join(cx.commit(&commit), async {
        wait_for_lock_waits(&url, 1).await;
        transaction.rollback().await.unwrap();
    })
    .await;
    ok(answer.unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_end_that_waits_for_a_commit_counts_it_as_progress() {
    let (cx, url) = fresh().await;
    let worker = cx.worker().await;
    // Hold the row as a commit does, until a commit and an end wait for it.
    let mut holder = PgConnection::connect(&url).await.unwrap();
    let mut transaction = holder.begin().await.unwrap();
    sqlx::query("SELECT FROM runs WHERE id = $1 FOR UPDATE")
        .bind(worker.run)
        .execute(&mut *transaction)
        .await
        .unwrap();
    let operator = patient(&url).await;
    let commit = worker.result(1);
    let (committed, run, ()) = futures::join!(
        cx.commit(&commit),
        async {
            wait_for_lock_waits(&url, 1).await;
            operator.end_and_reserve(&worker, Class::Crash).await
        },
        async {
            wait_for_lock_waits(&url, 2).await;
            transaction.rollback().await.unwrap();
        },
    );
    // The lock is granted in the order of the requests.
    ok(committed.unwrap());
    assert_eq!(run.past[0].end.as_ref().map(|end| end.progress), Some(true));
    assert_eq!(run.counters.attempts_without_progress, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_heartbeat_does_not_wait_for_a_lock() {
    let (cx, url) = fresh().await;
    let (busy, idle) = (cx.worker().await, cx.worker().await);
    let mut holder = PgConnection::connect(&url).await.unwrap();
    let mut transaction = holder.begin().await.unwrap();
    end(&mut transaction, &busy).await;
    // Heartbeats that waited would wait for the end of the transaction below, and fail.
    let beats = cx.heartbeats(&[(busy.run, busy.capability), (idle.run, idle.capability)]).await.unwrap();
    assert!(matches!(beats[..], [HeartbeatAnswer::Ok(_), HeartbeatAnswer::Ok(_)]), "{beats:?}");
    transaction.commit().await.unwrap();
    assert_eq!(cx.run_of(&busy).await.past[0].lease_renewed_at, None, "its row was skipped");
    assert!(cx.run_of(&idle).await.attempt.lease_renewed_at.is_some());
    let beats = cx.heartbeats(&[(busy.run, busy.capability)]).await.unwrap();
    assert_eq!(beats, [HeartbeatAnswer::Fenced]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_does_not_wait_for_another_runs_lock() {
    let (cx, url) = fresh().await;
    let workers = join_all((0..20).map(|_| cx.worker())).await;
    let mut holder = PgConnection::connect(&url).await.unwrap();
    let mut transaction = holder.begin().await.unwrap();
    // More workers than commit slots.
    let (held, free) = workers.split_at(5);
    for worker in held {
        end(&mut transaction, worker).await;
    }
    let waiting = join_all(held.iter().map(|worker| {
        let (store, commit) = (cx.store.clone(), worker.result(1));
        tokio::spawn(async move { store.commit(&commit).await }).map(|answer| {
            let answer = answer.unwrap();
            // A statement waits up to a minute.
            let waited =
                matches!(answer, Ok(Committed::Fenced { committed: false }) | Err(Error::Unavailable { .. }));
            assert!(waited, "{answer:?}");
        })
    }));
    let going = async {
        wait_for_lock_waits(&url, 1).await;
        // A commit that waited for the held runs would wait for the end of this block, and fail.
        for turn in 1..=5 {
            join_all(free.iter().map(|worker| cx.commit_turn(worker, turn))).await;
        }
        transaction.commit().await.unwrap();
    };
    join(waiting, going).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heartbeats_do_not_wait_behind_calls() {
    let (cx, url) = fresh().await;
    let workers = join_all((0..20).map(|_| cx.worker())).await;
    let mut holder = PgConnection::connect(&url).await.unwrap();
    let mut transaction = holder.begin().await.unwrap();
    for worker in &workers {
        end(&mut transaction, worker).await;
    }
    let claims: Vec<_> = workers.iter().map(|worker| worker.claim("call", Policy::Probe)).collect();
    // Open their connections first.
    cx.heartbeats(&[]).await.unwrap();
    cx.record_gateway_heartbeat().await.unwrap();
    let claiming = join_all(claims.iter().map(|claim| cx.claim(claim)));
    let beating = async {
        wait_for_lock_waits(&url, 16).await;
        let beating: Vec<_> = workers.iter().map(|worker| (worker.run, worker.capability)).collect();
        let mut took = Vec::new();
        for _ in 0..5 {
            let started = Instant::now();
            cx.heartbeats(&beating).await.unwrap();
            cx.record_gateway_heartbeat().await.unwrap();
            took.push(started.elapsed());
        }
        // Heartbeats that are blocked here are all slow. On a busy machine others are slow too.
        assert!(took.iter().any(|time| *time < Duration::from_millis(500)), "{took:?}");
        transaction.commit().await.unwrap();
    };
    let (claimed, ()) = join(claiming, beating).await;
    let waited = |answer: &_| matches!(answer, Ok(Claimed::Fenced) | Err(Error::Unavailable { .. }));
    assert!(claimed.iter().all(waited), "{claimed:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_do_not_wait_behind_those_of_another_run() {
    let (direct, url) = fresh().await;
    let (held, free) = (direct.worker().await, direct.worker().await);
    // A statement that was given up keeps its connection until its timeout, here the default.
    let cx = open(&url).await;
    let mut holder = PgConnection::connect(&url).await.unwrap();
    let mut transaction = holder.begin().await.unwrap();
    end(&mut transaction, &held).await;
    // More callers than connections, several times over: each gives up soon and asks again.
    let waiting = join_all((0..32).map(|number| {
        let (store, held) = (cx.store.clone(), held.clone());
        tokio::spawn(async move {
            for round in 0..3 {
                let claim = held.claim(&format!("call-{number}"), Policy::Probe);
                let (commit, limit) = (held.result(1), Duration::from_millis(700));
                match (number + round) % 2 {
                    0 => drop(timeout(limit, store.claim(&claim)).await),
                    _ => drop(timeout(limit, store.commit(&commit)).await),
                }
            }
        })
    }));
    let going = async {
        wait_for_lock_waits(&url, 1).await;
        let mut took = Vec::new();
        for turn in 1..=10 {
            sleep_ms(150).await;
            let claim = free.claim(&format!("call-{turn}"), Policy::Probe);
            let beating = [(free.run, free.capability), (held.run, held.capability)];
            let started = Instant::now();
            cx.commit_turn(&free, turn).await;
            cx.claim(&claim).await.unwrap();
            cx.complete(&free.complete(&claim)).await.unwrap();
            cx.heartbeats(&beating).await.unwrap();
            cx.record_gateway_heartbeat().await.unwrap();
            took.push(started.elapsed());
        }
        // A call that is blocked here is slow nearly always; on a busy machine one is slow now and then.
        took.sort_unstable();
        assert!(took[5] < Duration::from_millis(500), "{took:?}");
    };
    join(waiting, going).await;
    transaction.commit().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_waits_too_long_is_an_unknown_outcome() {
    let (_, url) = fresh().await;
    let cx = open(&url).await;
    let worker = cx.worker().await;
    let mut holder = PgConnection::connect(&url).await.unwrap();
    let mut transaction = holder.begin().await.unwrap();
    end(&mut transaction, &worker).await;
    let commit = worker.result(1);
    let error = cx.commit(&commit).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    transaction.rollback().await.unwrap();
    ok(cx.commit(&commit).await.unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_statement_through_a_pooler_has_the_same_timeout() {
    let (direct, url) = fresh().await;
    let proxy = Proxy::new(&url, 1);
    let cx = open(&format!("{}&pgbouncer=true", proxy.url())).await;
    let worker = direct.worker().await;
    let mut reading = cx.begin_read().await.unwrap();
    let mut holder = PgConnection::connect(&url).await.unwrap();
    let mut transaction = holder.begin().await.unwrap();
    end(&mut transaction, &worker).await;
    transaction.execute("LOCK TABLE anchors IN ACCESS EXCLUSIVE MODE").await.unwrap();
    let commit = worker.result(1);
    let (commit, read) = join(cx.commit(&commit), reading.anchors(0)).await;
    assert!(matches!(commit, Err(Error::Unavailable { .. })), "{commit:?}");
    assert!(matches!(read, Err(Error::Unavailable { .. })), "{read:?}");
    assert_eq!(waiting(&url).await, 0);
}

/// The pooler keeps its connection, so the server does not notice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_lost_behind_a_pooler_leaves_no_run_locked() {
    let (direct, url) = fresh().await;
    // Slow enough to fall between a statement and its commit.
    let proxy = Proxy::with_faults(&url, || Fault::Stall(Duration::from_millis(500)));
    let cx = open(&format!("{}&pgbouncer=true", proxy.url())).await;
    let worker = direct.worker().await;
    let claim = worker.claim("call", Policy::Probe);
    let vanishing = tokio::spawn(async move { cx.claim(&claim).await });
    let mut conn = PgConnection::connect(&url).await.unwrap();
    let mut is_locked = async || {
        let free = sqlx::query("SELECT FROM runs WHERE id = $1 FOR UPDATE SKIP LOCKED").bind(worker.run);
        free.fetch_optional(&mut conn).await.unwrap().is_none()
    };
    let met = async {
        while !is_locked().await {
            sleep_ms(5).await;
        }
    };
    timeout(Duration::from_secs(60), met).await.expect("the claim locks the row");
    proxy.go_silent();
    direct.end_and_reserve(&worker, Class::Disruption).await;
    assert!(vanishing.await.unwrap().is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commits_and_heartbeats_are_hot_updates() {
    let (cx, url) = fresh().await;
    let worker = cx.worker().await;
    for turn in 1..=200 {
        cx.commit_turn(&worker, turn).await;
        cx.heartbeats(&[(worker.run, worker.capability)]).await.unwrap();
    }
    let mut conn = PgConnection::connect(&url).await.unwrap();
    let mut counts = (0, 0);
    for _ in 0..100 {
        counts =
            sqlx::query_as("SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'runs'")
                .fetch_one(&mut conn)
                .await
                .unwrap();
        if counts.0 >= 400 {
            break;
        }
        sleep_ms(100).await;
    }
    let (all, inside): (i64, i64) = counts;
    // Now and then the page is full of row versions that a transaction may still see.
    assert!(all >= 400 && inside * 100 >= all * 75, "{inside} of {all}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_template_that_is_found_just_before_it_would_be_dropped_stays() {
    let (cx, url) = fresh().await;
    let (before, run) = (cx.run().await, cx.run().await);
    recorded(cx.put_revision(before.id, 1, &template("template", "{}")).await.unwrap());
    cx.mark_deleted(&before.object_uid).await.unwrap();
    // Slow enough for the deletion to start between the lookup and the write.
    let proxy = Proxy::with_faults(&url, || Fault::Stall(Duration::from_millis(500)));
    let slow = open(&proxy.url()).await;
    let template = template("template", "{}");
    let (put, dropped) = join(slow.put_revision(run.id, 1, &template), async {
        let met = timeout(Duration::from_secs(30), async {
            while advisory_locks(&url).await == 0 {
                sleep_ms(5).await;
            }
        });
        met.await.expect("put_revision should hold an advisory lock");
        assert_eq!(candidates(&url).await, 1, "it has not written yet");
        cx.delete_unused_revisions(500).await
    })
    .await;
    recorded(put.unwrap());
    assert_eq!(dropped.unwrap(), 0);
    assert!(cx.get_revision("template").await.unwrap().is_some());
}

/// Attempts that a template is kept for, as others see it.
async fn candidates(url: &str) -> i64 {
    number(url, "SELECT count(*) FROM attempts WHERE cardinality(candidates) > 0").await
}

async fn advisory_locks(url: &str) -> i64 {
    let locks = "SELECT count(*) FROM pg_locks l JOIN pg_database d ON d.oid = l.database \
                 WHERE d.datname = current_database() AND l.locktype = 'advisory'";
    number(url, locks).await
}

async fn number(url: &str, sql: &'static str) -> i64 {
    let mut conn = PgConnection::connect(url).await.unwrap();
    let number = sqlx::query_scalar(sql).fetch_one(&mut conn).await.unwrap();
    conn.close().await.unwrap();
    number
}

/// Ends the worker's attempt and reserves the next in an open transaction, which holds the run's row.
async fn end(conn: &mut PgConnection, worker: &Worker) {
    let Worker { run, attempt, .. } = worker;
    let end = format!(
        "UPDATE runs SET epoch = epoch + 1, capability = NULL, attempt = attempt + 1, attempt_state = 'reserved', \
             pod_uid = NULL, verdict = NULL, attached_at = NULL, lease_renewed_at = NULL WHERE id = '{run}'; \
         UPDATE attempts SET state = 'ended', ended_at = ds_now_v1(), turn_at_end = 0, cause = 'Evicted', \
             class = 'Disruption', charged = false, progress = false, message = '' \
         WHERE run = '{run}' AND number = {attempt}; \
         INSERT INTO attempts (run, number, state, epoch, turn_at_start, reserved_at) \
         VALUES ('{run}', {attempt} + 1, 'reserved', 2, 0, ds_now_v1())"
    );
    conn.execute(AssertSqlSafe(end)).await.unwrap();
}

/// Waits until this many connections to this database wait for a lock. A call of a patient store waits for longer.
async fn wait_for_lock_waits(url: &str, count: i64) {
    let met = async {
        while waiting(url).await < count {
            sleep_ms(5).await;
        }
    };
    timeout(Duration::from_secs(50), met).await.expect("the calls wait for a lock");
}

async fn waiting(url: &str) -> i64 {
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
    number(url, waiting).await
}
