//! Two at once: whoever waits for a run's row judges by what the one before has written.

use std::time::{Duration, Instant};

use dalsegno_protocol::Policy;
use dalsegno_store::{Beat, Claimed, Class, Committed, Error};
use futures::FutureExt as _;
use futures::future::{join, join_all};
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection};
use tokio::time::timeout;

use crate::wire::{Fate, Wire};
use crate::world::*;
use crate::{fresh, open};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_a_thousand_pairs_of_twins_each_is_one_ok_and_one_duplicate() {
    let (world, url) = fresh().await;
    let other = open(&url).await;
    let runs = join_all((0..10).map(|_| async {
        let worker = world.worker().await;
        for turn in 1..=100 {
            let commit = worker.result(turn);
            match join(world.commit(&commit), other.commit(&commit)).await {
                (Ok(Committed::Ok(one)), Ok(Committed::Duplicate(two)))
                | (Ok(Committed::Duplicate(two)), Ok(Committed::Ok(one))) => assert_eq!(one.head, two.head),
                pair => panic!("turn {turn}: {pair:?}"),
            }
        }
        worker
    }))
    .await;
    for worker in runs {
        assert_eq!(world.of(&worker).await.head.map(|head| head.turn), Some(100));
        assert_eq!(world.boundaries(worker.run, 1, 100).await.unwrap().len(), 100);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_that_waits_for_the_end_of_its_attempt_is_fenced() {
    let (world, url) = fresh().await;
    let worker = world.worker().await;
    let mut operator = PgConnection::connect(&url).await.unwrap();
    let mut transaction = operator.begin().await.unwrap();
    end(&mut transaction, &worker).await;
    let commit = worker.result(1);
    let zombie = async {
        let answer = world.commit(&commit).await.unwrap();
        assert_eq!(answer, Committed::Fenced { committed: false });
    };
    let operator = async {
        waits(&url).await;
        transaction.commit().await.unwrap();
    };
    join(zombie, operator).await;
    assert_eq!(world.of(&worker).await.head, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_that_waits_for_an_end_that_is_taken_back_stands() {
    let (world, url) = fresh().await;
    let worker = world.worker().await;
    let mut operator = PgConnection::connect(&url).await.unwrap();
    let mut transaction = operator.begin().await.unwrap();
    end(&mut transaction, &worker).await;
    let commit = worker.result(1);
    let (answer, ()) = join(world.commit(&commit), async {
        waits(&url).await;
        transaction.rollback().await.unwrap();
    })
    .await;
    ok(answer.unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_end_that_waits_for_a_commit_counts_it_as_progress() {
    let (world, url) = fresh().await;
    let worker = world.worker().await;
    // Holds the row as a commit does, and commits a turn under it.
    let mut holder = PgConnection::connect(&url).await.unwrap();
    let mut transaction = holder.begin().await.unwrap();
    sqlx::query("SELECT FROM runs WHERE id = $1 FOR UPDATE")
        .bind(worker.run)
        .execute(&mut *transaction)
        .await
        .unwrap();
    let operator = open(&url).await;
    let commit = worker.result(1);
    let (committed, run, ()) = futures::join!(
        world.commit(&commit),
        async {
            waits(&url).await;
            operator.lose(&worker, Class::Crash).await
        },
        async {
            while waiting(&url).await < 2 {
                pause(5).await;
            }
            transaction.rollback().await.unwrap();
        },
    );
    // The lock goes to whoever came first.
    ok(committed.unwrap());
    assert_eq!(run.past[0].end.as_ref().map(|end| end.progress), Some(true));
    assert_eq!(run.counters.attempts_without_progress, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_heartbeat_waits_for_no_lock() {
    let (world, url) = fresh().await;
    let (busy, idle) = (world.worker().await, world.worker().await);
    let mut holder = PgConnection::connect(&url).await.unwrap();
    let mut transaction = holder.begin().await.unwrap();
    end(&mut transaction, &busy).await;
    let started = Instant::now();
    let beats = world.heartbeats(&[(busy.run, busy.capability), (idle.run, idle.capability)]).await.unwrap();
    assert!(started.elapsed() < Duration::from_secs(2));
    assert!(matches!(beats[..], [Beat::Ok(_), Beat::Ok(_)]), "{beats:?}");
    transaction.commit().await.unwrap();
    assert_eq!(world.of(&busy).await.past[0].lease_renewed_at, None, "its row was skipped");
    assert!(world.of(&idle).await.attempt.lease_renewed_at.is_some());
    let beats = world.heartbeats(&[(busy.run, busy.capability)]).await.unwrap();
    assert_eq!(beats, [Beat::Fenced]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_waits_for_no_lock_of_another_run() {
    let (world, url) = fresh().await;
    let crowd = join_all((0..20).map(|_| world.worker())).await;
    let mut holder = PgConnection::connect(&url).await.unwrap();
    let mut transaction = holder.begin().await.unwrap();
    // More than there are lanes.
    let (held, free) = crowd.split_at(5);
    for worker in held {
        end(&mut transaction, worker).await;
    }
    let waiting = join_all(held.iter().map(|worker| {
        let (store, commit) = (world.store.clone(), worker.result(1));
        tokio::spawn(async move { store.commit(&commit).await }).map(|answer| {
            let answer = answer.unwrap();
            // A statement waits no longer than five seconds.
            let waited =
                matches!(answer, Ok(Committed::Fenced { committed: false }) | Err(Error::Unavailable { .. }));
            assert!(waited, "{answer:?}");
        })
    }));
    let going = async {
        waits(&url).await;
        // Whoever waited for those that are held would wait for the end of this, and fail.
        for turn in 1..=5 {
            join_all(free.iter().map(|worker| world.turn(worker, turn))).await;
        }
        transaction.commit().await.unwrap();
    };
    join(waiting, going).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn beats_and_heartbeats_wait_behind_no_call() {
    let (world, url) = fresh().await;
    let crowd = join_all((0..20).map(|_| world.worker())).await;
    let mut holder = PgConnection::connect(&url).await.unwrap();
    let mut transaction = holder.begin().await.unwrap();
    for worker in &crowd {
        end(&mut transaction, worker).await;
    }
    let claims: Vec<_> = crowd.iter().map(|worker| worker.claim("call", Policy::Probe)).collect();
    // Their connections are there.
    world.heartbeats(&[]).await.unwrap();
    world.beat().await.unwrap();
    let claiming = join_all(claims.iter().map(|claim| world.claim(claim)));
    let beating = async {
        while waiting(&url).await < 16 {
            pause(5).await;
        }
        let beating: Vec<_> = crowd.iter().map(|worker| (worker.run, worker.capability)).collect();
        let mut took = Vec::new();
        for _ in 0..5 {
            let started = Instant::now();
            world.heartbeats(&beating).await.unwrap();
            world.beat().await.unwrap();
            took.push(started.elapsed());
        }
        took.sort_unstable();
        assert!(took[2] < Duration::from_millis(500), "{took:?}");
        transaction.commit().await.unwrap();
    };
    let (claimed, ()) = join(claiming, beating).await;
    let waited = |answer: &_| matches!(answer, Ok(Claimed::Fenced) | Err(Error::Unavailable { .. }));
    assert!(claimed.iter().all(waited), "{claimed:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_waits_behind_the_calls_of_another_run() {
    let (world, url) = fresh().await;
    let (held, free) = (world.worker().await, world.worker().await);
    let mut holder = PgConnection::connect(&url).await.unwrap();
    let mut transaction = holder.begin().await.unwrap();
    end(&mut transaction, &held).await;
    // More than there are connections, again and again: nobody waits long, and everybody asks once more.
    let waiting = join_all((0..32).map(|number| {
        let (store, held) = (world.store.clone(), held.clone());
        tokio::spawn(async move {
            for round in 0..3 {
                let claim = held.claim(&format!("call-{number}"), Policy::Probe);
                let (commit, patience) = (held.result(1), Duration::from_millis(700));
                match (number + round) % 2 {
                    0 => drop(timeout(patience, store.claim(&claim)).await),
                    _ => drop(timeout(patience, store.commit(&commit)).await),
                }
            }
        })
    }));
    let going = async {
        waits(&url).await;
        let mut took = Vec::new();
        for turn in 1..=10 {
            pause(150).await;
            let claim = free.claim(&format!("call-{turn}"), Policy::Probe);
            let beating = [(free.run, free.capability), (held.run, held.capability)];
            let started = Instant::now();
            world.turn(&free, turn).await;
            world.claim(&claim).await.unwrap();
            world.complete(&free.complete(&claim)).await.unwrap();
            world.heartbeats(&beating).await.unwrap();
            world.beat().await.unwrap();
            took.push(started.elapsed());
        }
        // Whoever waits here waits nearly always; a busy machine is slow now and then.
        took.sort_unstable();
        assert!(took[5] < Duration::from_millis(500), "{took:?}");
    };
    join(waiting, going).await;
    transaction.commit().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_waits_too_long_is_an_unknown_outcome() {
    let (world, url) = fresh().await;
    let worker = world.worker().await;
    let mut holder = PgConnection::connect(&url).await.unwrap();
    let mut transaction = holder.begin().await.unwrap();
    end(&mut transaction, &worker).await;
    let commit = worker.result(1);
    let error = world.commit(&commit).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    transaction.rollback().await.unwrap();
    ok(world.commit(&commit).await.unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn through_a_pooler_a_statement_waits_no_longer_either() {
    let (direct, url) = fresh().await;
    let wire = Wire::to(&url, 1);
    let world = open(&format!("{}&pgbouncer=true", wire.url())).await;
    let worker = direct.worker().await;
    let mut reading = world.reading().await.unwrap();
    let mut holder = PgConnection::connect(&url).await.unwrap();
    let mut transaction = holder.begin().await.unwrap();
    end(&mut transaction, &worker).await;
    transaction.execute("LOCK TABLE anchors IN ACCESS EXCLUSIVE MODE").await.unwrap();
    let commit = worker.result(1);
    let (commit, read) = join(world.commit(&commit), reading.anchors(0)).await;
    assert!(matches!(commit, Err(Error::Unavailable { .. })), "{commit:?}");
    assert!(matches!(read, Err(Error::Unavailable { .. })), "{read:?}");
    assert_eq!(waiting(&url).await, 0);
}

/// The pooler lives, and the server is told nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_vanishes_behind_a_pooler_leaves_no_run_locked() {
    let (direct, url) = fresh().await;
    // Slow enough to be met between a statement and its commit.
    let wire = Wire::torn(&url, || Fate::Stall(Duration::from_millis(500)));
    let world = open(&format!("{}&pgbouncer=true", wire.url())).await;
    let worker = direct.worker().await;
    let claim = worker.claim("call", Policy::Probe);
    let vanishing = tokio::spawn(async move { world.claim(&claim).await });
    let mut conn = PgConnection::connect(&url).await.unwrap();
    let mut is_locked = async || {
        let free = sqlx::query("SELECT FROM runs WHERE id = $1 FOR UPDATE SKIP LOCKED").bind(worker.run);
        free.fetch_optional(&mut conn).await.unwrap().is_none()
    };
    let met = async {
        while !is_locked().await {
            pause(5).await;
        }
    };
    timeout(Duration::from_secs(60), met).await.expect("the claim locks the row");
    wire.fall_silent();
    direct.lose(&worker, Class::Disruption).await;
    assert!(vanishing.await.unwrap().is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commits_and_heartbeats_move_the_runs_row_inside_its_page() {
    let (world, url) = fresh().await;
    let worker = world.worker().await;
    for turn in 1..=200 {
        world.turn(&worker, turn).await;
        world.heartbeats(&[(worker.run, worker.capability)]).await.unwrap();
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
        pause(100).await;
    }
    let (all, inside): (i64, i64) = counts;
    // Now and then the page is full of versions that somebody may still look at.
    assert!(all >= 400 && inside * 100 >= all * 75, "{inside} of {all}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_template_that_is_found_just_before_it_would_be_dropped_stays() {
    let (world, url) = fresh().await;
    let (before, run) = (world.run().await, world.run().await);
    recorded(world.put_revision(before.id, 1, "template", "{}").await.unwrap());
    world.mark_deleted(&before.object_uid).await.unwrap();
    // Slow enough to be met between its first look and its write.
    let wire = Wire::torn(&url, || Fate::Stall(Duration::from_millis(500)));
    let slow = open(&wire.url()).await;
    let (put, dropped) = join(slow.put_revision(run.id, 1, "template", "{}"), async {
        let met = timeout(Duration::from_secs(30), async {
            while advisory_locks(&url).await == 0 {
                pause(5).await;
            }
        });
        met.await.expect("whoever names a template holds a lock");
        assert_eq!(candidates(&url).await, 1, "it has not written yet");
        world.drop_revisions(500).await
    })
    .await;
    recorded(put.unwrap());
    assert_eq!(dropped.unwrap(), 0);
    assert!(world.get_revision("template").await.unwrap().is_some());
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

/// Returns once somebody waits for a lock in this database.
async fn waits(url: &str) {
    while waiting(url).await == 0 {
        pause(5).await;
    }
}

async fn waiting(url: &str) -> i64 {
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
    number(url, waiting).await
}
