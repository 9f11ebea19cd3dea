//! PostgreSQL crashes during commits, and connections to it are cut before and after them.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dalsegno_model::{Committed, Error, Store};
use dalsegno_store::postgres::Postgres;
use futures::future::{join, join_all};
use sqlx::{Connection as _, Executor as _, PgConnection};

use crate::child::{self, with_mounts};
use crate::context::{TestContext, Worker};
use crate::pg::{self, Server};
use crate::proxy::{Fault, Proxy};
use crate::retrying_worker::{Acknowledged, Pace, Unanswered, assert_acknowledged, hash, turns};

const WORKERS: usize = 8;

/// The free bytes that are left on the disk, enough for a few hundred turns.
const FREE_BYTES: u64 = 256 << 10;

/// How long a worker waits for an answer before it retries.
const WAIT: Duration = Duration::from_millis(150);

/// A stall shorter than the wait.
const SHORT: Duration = Duration::from_millis(40);

/// A stall that ends just after the worker's retry.
const AFTER_RETRY: Duration = Duration::from_millis(185);

/// A stall after which the run has moved on.
const LONG_DEADLINES: Duration = Duration::from_millis(500);

/// The faults that the proxy injects.
const FAULTS: [Fault; 7] = [
    Fault::CutBefore,
    Fault::CutAfter,
    Fault::Stall(SHORT),
    Fault::Stall(AFTER_RETRY),
    Fault::Stall(LONG_DEADLINES),
    Fault::Late(AFTER_RETRY),
    Fault::Late(LONG_DEADLINES),
];

async fn connect(url: &str) -> TestContext {
    for _ in 0..50 {
        if let Ok(store) = Postgres::connect(url).await {
            return TestContext::new(Arc::new(store), ());
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("cannot connect to {url}");
}

async fn workers(cx: &TestContext) -> Vec<Worker> {
    join_all((0..WORKERS).map(|_| cx.worker())).await
}

/// All workers commit this number of turns each. Returns the acknowledged turns of each, and the unanswered calls.
async fn all_turns(
    store: &dyn Store,
    workers: &[Worker],
    last: i32,
    pace: Pace,
) -> (Vec<Acknowledged>, Unanswered) {
    let done = join_all(workers.iter().map(|worker| turns(store, worker, last, pace))).await;
    let (acknowledged, unanswered): (Vec<_>, Vec<_>) = done.into_iter().unzip();
    let errors = unanswered.iter().map(|unanswered| unanswered.errors).sum();
    let abandoned = unanswered.iter().map(|unanswered| unanswered.abandoned).sum();
    (
        acknowledged,
        Unanswered {
            errors,
            duplicates: unanswered.iter().map(|unanswered| unanswered.duplicates).sum(),
            abandoned,
        },
    )
}

async fn assert_all_acknowledged(store: &dyn Store, workers: &[Worker], acknowledged: &[Acknowledged]) {
    for (worker, acknowledged) in workers.iter().zip(acknowledged) {
        assert_acknowledged(store, worker, acknowledged).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_crashes_repeatedly_keeps_each_acknowledged_turn_once() {
    let mut server = Server::start(&[]);
    let cx = connect(&server.database().await).await;
    let workers = workers(&cx).await;
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let killer = tokio::task::spawn_blocking(move || {
        let mut crashes = 0;
        // Irregular times, so that crashes hit different steps.
        for millis in [610, 370, 940, 530, 780, 290, 860].iter().cycle() {
            match stopped.recv_timeout(Duration::from_millis(*millis)) {
                Err(std::sync::mpsc::RecvTimeoutError::Timeout) => server.crash(),
                _ => break,
            }
            crashes += 1;
        }
        (crashes, server)
    });
    let pace = Pace::without_timeout(Duration::from_millis(10));
    let (acknowledged, unanswered) = all_turns(&*cx.store, &workers, 250, pace).await;
    drop(stop);
    let (crashes, _server) = killer.await.unwrap();
    // The first call after the last crash may fail too.
    let _ = cx.id().await;
    assert_all_acknowledged(&*cx.store, &workers, &acknowledged).await;
    // Whether an unanswered commit was stored is chance here; the test with cut connections covers it.
    assert!(crashes >= 3 && unanswered.errors >= crashes, "{crashes} crashes: {unanswered:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cut_and_stalled_connections_keep_each_turn_once() {
    let url = pg::database().await;
    let setup = connect(&url).await;
    let workers = workers(&setup).await;
    let met = Arc::new(Mutex::new(HashMap::<Fault, usize>::new()));
    let counter = Arc::clone(&met);
    let proxy = Proxy::with_faults(&url, move || {
        let mut met = counter.lock().unwrap();
        // The same sequence in every run. Each fault occurs at every step of a worker's turn.
        let number = met.values().sum::<usize>() * 7_919 % 41;
        let fault = FAULTS.get(number).copied().unwrap_or(Fault::Pass);
        *met.entry(fault).or_default() += 1;
        fault
    });
    let faulty = connect(&proxy.url()).await;
    let pace = Pace { pause: Duration::ZERO, wait: WAIT };
    let (acknowledged, unanswered) = all_turns(&*faulty.store, &workers, 250, pace).await;
    // Wait until the last abandoned request has been executed.
    tokio::time::sleep(2 * LONG_DEADLINES).await;
    assert_all_acknowledged(&*setup.store, &workers, &acknowledged).await;
    let met = met.lock().unwrap().clone();
    assert!(FAULTS.iter().all(|fault| met[fault] >= 10), "{met:?}");
    assert!(unanswered.duplicates >= 20, "some commits were cut after their execution: {unanswered:?}");
    assert!(unanswered.abandoned >= 20, "some stalls are longer than a worker waits: {unanswered:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_is_read_only_for_a_while_refuses_and_then_goes_on() {
    let url = pg::database().await;
    let setup = connect(&url).await;
    let worker = setup.worker().await;
    let mut admin = PgConnection::connect(&url).await.unwrap();
    let mut set_read_only = async |value: &str| {
        let sql = format!(
            "SET default_transaction_read_only = off; \
             DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_read_only = {value}', \
             current_database()); END $$; \
             SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
             WHERE datname = current_database() AND application_name LIKE 'dalsegno%'"
        );
        // Only new connections see the setting, so terminate the old ones.
        admin.execute(sqlx::AssertSqlSafe(sql)).await.unwrap();
    };
    set_read_only("on").await;
    let working = turns(&*setup.store, &worker, 3, Pace::without_timeout(Duration::ZERO));
    let restoring = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert!(setup.run_of(&worker).await.head.is_none(), "nothing was written");
        set_read_only("off").await;
    };
    let ((acknowledged, unanswered), ()) = join(working, restoring).await;
    assert!(unanswered.errors > 0, "a write was refused");
    assert_acknowledged(&*setup.store, &worker, &acknowledged).await;
}

/// The server's disk is a file system of its own, which ends with the child.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_refuses_a_turn_and_keeps_the_earlier_ones() {
    const THIS: &str = "postgres::a_full_disk_refuses_a_turn_and_keeps_the_earlier_ones";
    if let Some(disk) = child::folder() {
        return commit_until_full(&disk).await;
    }
    let disk = tempfile::tempdir().unwrap();
    let script = r#"mount -t tmpfs -o size=200m tmpfs "$DALSEGNO_TEST_CHILD"
        TMPDIR=$DALSEGNO_TEST_CHILD "$@""#;
    let output = with_mounts(THIS, disk.path(), script);
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(stdout.contains("1 passed"), "{stdout}{}", String::from_utf8_lossy(&output.stderr));
}

async fn commit_until_full(disk: &Path) {
    let server = Server::start(&[]);
    let cx = connect(&server.database().await).await;
    let worker = cx.worker().await;
    let filler = disk.join("filler");
    fill_disk_except(FREE_BYTES, &filler);
    let mut acknowledged = Acknowledged::new();
    let refused = loop {
        let turn = acknowledged.len() as i32 + 1;
        match cx.commit(&worker.result(turn)).await {
            Ok(Committed::Ok(receipt)) => acknowledged.push(hash(&receipt, turn)),
            Ok(other) => panic!("unexpected answer to turn {turn}: {other:?}"),
            Err(error) => break error,
        }
    };
    assert!(
        matches!(&refused, Error::Unavailable { source, .. } if source.to_string().contains("No space left")),
        "{refused:?}"
    );
    assert!(!acknowledged.is_empty());
    assert_acknowledged(&*cx.store, &worker, &acknowledged).await;
    // With free space, the same turn is accepted, and the next one.
    std::fs::remove_file(filler).unwrap();
    for turn in [acknowledged.len() as i32 + 1, acknowledged.len() as i32 + 2] {
        let Committed::Ok(receipt) = cx.commit(&worker.result(turn)).await.unwrap() else {
            panic!("turn {turn}")
        };
        acknowledged.push(hash(&receipt, turn));
    }
    assert_acknowledged(&*cx.store, &worker, &acknowledged).await;
}

/// Fills a disk except for this number of bytes. The server's write-ahead log reuses space that it already has.
fn fill_disk_except(bytes: u64, filler: &Path) {
    let mut file = std::fs::File::create(filler).unwrap();
    let full = std::io::copy(&mut std::io::repeat(0), &mut file).unwrap_err();
    assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);
    file.set_len(file.metadata().unwrap().len() - bytes).unwrap();
}
