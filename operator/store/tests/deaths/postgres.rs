//! PostgreSQL dies in the middle of commits, and wires to it are cut before and after them.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dalsegno_store::postgres::Postgres;
use dalsegno_store::{Committed, Error, Store};
use futures::future::{join, join_all};
use sqlx::{Connection as _, Executor as _, PgConnection};

use crate::child::{self, with_mounts};
use crate::pg::{self, Server};
use crate::steady::{Lost, Pace, Told, expect_as_told, hash, turns};
use crate::wire::{Fate, Wire};
use crate::world::{Worker, World};

const WORKERS: usize = 8;

/// Bytes that a disk has left, for a few hundred turns.
const ROOM: u64 = 256 << 10;

/// How long a worker waits at a wire that stalls.
const WAIT: Duration = Duration::from_millis(150);

/// A stall that it endures.
const SHORT: Duration = Duration::from_millis(40);

/// One that ends when it has just sent the same again.
const MEETING: Duration = Duration::from_millis(185);

/// One after which its run has gone on.
const LONG: Duration = Duration::from_millis(500);

/// What becomes of a request at such a wire, where it is not answered at once.
const FATES: [Fate; 7] = [
    Fate::CutBefore,
    Fate::CutAfter,
    Fate::Stall(SHORT),
    Fate::Stall(MEETING),
    Fate::Stall(LONG),
    Fate::Late(MEETING),
    Fate::Late(LONG),
];

async fn connect(url: &str) -> World {
    for _ in 0..50 {
        if let Ok(store) = Postgres::connect(url).await {
            return World::new(Arc::new(store), ());
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("no way to {url}");
}

async fn workers(world: &World) -> Vec<Worker> {
    join_all((0..WORKERS).map(|_| world.worker())).await
}

/// All workers commit as many turns each; answers what each was told, and what was lost.
async fn all_turns(store: &dyn Store, workers: &[Worker], last: i32, pace: Pace) -> (Vec<Told>, Lost) {
    let done = join_all(workers.iter().map(|worker| turns(store, worker, last, pace))).await;
    let (told, lost): (Vec<_>, Vec<_>) = done.into_iter().unzip();
    let answers = lost.iter().map(|lost| lost.answers).sum();
    let given_up = lost.iter().map(|lost| lost.given_up).sum();
    (told, Lost { answers, alone: lost.iter().map(|lost| lost.alone).sum(), given_up })
}

async fn expect_all_as_told(store: &dyn Store, workers: &[Worker], told: &[Told]) {
    for (worker, told) in workers.iter().zip(told) {
        expect_as_told(store, worker, told).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_ended_again_and_again_loses_and_doubles_no_acknowledged_turn() {
    let mut server = Server::start(&[]);
    let world = connect(&server.database().await).await;
    let workers = workers(&world).await;
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let killer = tokio::task::spawn_blocking(move || {
        let mut crashes = 0;
        // Not in step with anything.
        for millis in [610, 370, 940, 530, 780, 290, 860].iter().cycle() {
            match stopped.recv_timeout(Duration::from_millis(*millis)) {
                Err(std::sync::mpsc::RecvTimeoutError::Timeout) => server.crash(),
                _ => break,
            }
            crashes += 1;
        }
        (crashes, server)
    });
    let pace = Pace::patient(Duration::from_millis(10));
    let (told, lost) = all_turns(&*world.store, &workers, 250, pace).await;
    drop(stop);
    let (crashes, _server) = killer.await.unwrap();
    // The first answer after the last death may be lost, too.
    let _ = world.id().await;
    expect_all_as_told(&*world.store, &workers, &told).await;
    // Whether a commit that stood was among the unanswered is chance; wires that are cut after it show that.
    assert!(crashes >= 3 && lost.answers >= crashes, "{crashes} deaths: {lost:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wire_that_is_cut_before_and_after_commits_and_stalls_loses_and_doubles_no_turn() {
    let url = pg::database().await;
    let setup = connect(&url).await;
    let workers = workers(&setup).await;
    let met = Arc::new(Mutex::new(HashMap::<Fate, usize>::new()));
    let counter = Arc::clone(&met);
    let wire = Wire::torn(&url, move || {
        let mut met = counter.lock().unwrap();
        // The same sequence in every run, with each fate at every place of a worker's turns.
        let number = met.values().sum::<usize>() * 7_919 % 41;
        let fate = FATES.get(number).copied().unwrap_or(Fate::Pass);
        *met.entry(fate).or_default() += 1;
        fate
    });
    let torn = connect(&wire.url()).await;
    let pace = Pace { pause: Duration::ZERO, wait: WAIT };
    let (told, lost) = all_turns(&*torn.store, &workers, 250, pace).await;
    // What was given up last is there by then.
    tokio::time::sleep(2 * LONG).await;
    expect_all_as_told(&*setup.store, &workers, &told).await;
    let met = met.lock().unwrap().clone();
    assert!(FATES.iter().all(|fate| met[fate] >= 10), "{met:?}");
    assert!(lost.alone >= 20, "most requests are commits, and of these some were cut after: {lost:?}");
    assert!(lost.given_up >= 20, "some stalls outlast a worker's patience: {lost:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_takes_no_writes_for_a_while_refuses_and_then_goes_on() {
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
             WHERE datname = current_database() AND application_name = 'dalsegno'"
        );
        // Only new connections hear of it, so the old ones are ended.
        admin.execute(sqlx::AssertSqlSafe(sql)).await.unwrap();
    };
    set_read_only("on").await;
    let working = turns(&*setup.store, &worker, 3, Pace::patient(Duration::ZERO));
    let mending = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert!(setup.of(&worker).await.head.is_none(), "nothing was written");
        set_read_only("off").await;
    };
    let ((told, lost), ()) = join(working, mending).await;
    assert!(lost.answers > 0, "a write was refused");
    expect_as_told(&*setup.store, &worker, &told).await;
}

/// The server's disk is one of its own, which goes with the process.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_refuses_a_turn_and_keeps_all_before_it() {
    const THIS: &str = "postgres::a_full_disk_refuses_a_turn_and_keeps_all_before_it";
    if let Some(disk) = child::folder() {
        return fill_the_disk(&disk).await;
    }
    let disk = tempfile::tempdir().unwrap();
    let script = r#"mount -t tmpfs -o size=200m tmpfs "$DALSEGNO_TEST_CHILD"
        TMPDIR=$DALSEGNO_TEST_CHILD "$@""#;
    let output = with_mounts(THIS, disk.path(), script);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("1 passed"), "{said}{}", String::from_utf8_lossy(&output.stderr));
}

async fn fill_the_disk(disk: &Path) {
    let server = Server::start(&[]);
    let world = connect(&server.database().await).await;
    let worker = world.worker().await;
    let ballast = disk.join("ballast");
    leave(ROOM, &ballast);
    let mut told = Told::new();
    let refused = loop {
        let turn = told.len() as i32 + 1;
        match world.commit(&worker.result(turn)).await {
            Ok(Committed::Ok(standing)) => told.push(hash(&standing, turn)),
            Ok(other) => panic!("turn {turn} came to {other:?}"),
            Err(error) => break error,
        }
    };
    assert!(
        matches!(&refused, Error::Unavailable { source, .. } if source.to_string().contains("No space left")),
        "{refused:?}"
    );
    assert!(!told.is_empty());
    expect_as_told(&*world.store, &worker, &told).await;
    // With room again the same turn is taken, and the next one.
    std::fs::remove_file(ballast).unwrap();
    for turn in [told.len() as i32 + 1, told.len() as i32 + 2] {
        let Committed::Ok(standing) = world.commit(&worker.result(turn)).await.unwrap() else {
            panic!("turn {turn}")
        };
        told.push(hash(&standing, turn));
    }
    expect_as_told(&*world.store, &worker, &told).await;
}

/// Fills a disk but for so many bytes. What the server writes ahead goes where it has room already.
fn leave(bytes: u64, ballast: &Path) {
    let mut file = std::fs::File::create(ballast).unwrap();
    let full = std::io::copy(&mut std::io::repeat(0), &mut file).unwrap_err();
    assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);
    file.set_len(file.metadata().unwrap().len() - bytes).unwrap();
}
