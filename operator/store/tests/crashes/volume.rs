//! The volume of an embedded store fills up: by a long read, by other files, or because it is small. The store accepts
//! turns again as soon as there is space, with and without a restart.
//!
//! Each case runs in a child process on a file system of 24 MiB, which ends with the child.

use std::io::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use dalsegno_model::{Commit, Committed, Error, NewRun, Read as _, RequestedBy, Store};
use dalsegno_store::sqlite::{DiskLevel, Sqlite};
use dalsegno_store::{ServedStore, open_to_serve};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions as _, SqliteConnection};

use crate::child::{self, database, prepare, print_line, with_mounts};
use crate::context::{TestContext, Worker, new_run, noise};

/// Bytes of the file system.
const VOLUME: u64 = 24 << 20;

/// The object of a run that the second process deletes.
const OTHER_OBJECT: &str = "deleted-on-a-full-volume";

/// Turns that fill the file system several times over.
const MANY_TURNS: i32 = 20_000;

/// Runs the children of a case one after the other on a file system of 24 MiB. Returns what they print. Returns `None`
/// if this user may not mount.
async fn on_a_small_volume(test: &str, children: usize) -> Option<String> {
    if !rustix::process::getuid().is_root() {
        eprintln!("SKIPPED: {test} mounts a file system, which needs root");
        return None;
    }
    let folder = tempfile::tempdir().unwrap();
    prepare(folder.path()).await;
    let script = format!(
        r#"small=$(mktemp -d) && mount -t tmpfs -o size={VOLUME} tmpfs "$small"
        trap 'umount "$small" && rmdir "$small"' EXIT
        cp -a "$DALSEGNO_TEST_CHILD"/. "$small"
        for child in $(seq {children}); do DALSEGNO_TEST_CHILD=$small "$@" || exit 1; done"#
    );
    let output = with_mounts(test, folder.path(), &script);
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{stdout}{}", String::from_utf8_lossy(&output.stderr));
    Some(stdout)
}

/// A turn whose state is a few kilobytes that cannot be compressed.
fn turn(worker: &Worker, number: i32) -> Commit {
    let ops = format!(r#"{{"set":{{"a":{{"json":"{}"}}}}}}"#, noise(number.unsigned_abs().into(), 5_000));
    Commit { ops: Some(ops.into()), full: false, ..worker.result(number) }
}

/// The next turn of the run.
async fn next_turn(store: &dyn Store, worker: &Worker) -> i32 {
    store.get_run(worker.run).await.unwrap().unwrap().head.map_or(1, |head| head.turn + 1)
}

/// Commits turns until one is refused. Returns that turn, and why it was refused.
async fn commit_until_refused(store: &dyn Store, worker: &Worker) -> (Commit, Error) {
    let first = next_turn(store, worker).await;
    for number in first..first + MANY_TURNS {
        let commit = turn(worker, number);
        match store.commit(&commit).await {
            Ok(Committed::Ok(_)) => {}
            Ok(other) => panic!("turn {number}: {other:?}"),
            Err(error) => return (commit, error),
        }
    }
    panic!("no turn was refused");
}

/// Commits this many turns. None of them may be refused.
async fn commit_turns(store: &dyn Store, worker: &Worker, count: i32) {
    let first = next_turn(store, worker).await;
    for number in first..first + count {
        let committed = store.commit(&turn(worker, number)).await;
        assert!(matches!(committed, Ok(Committed::Ok(_))), "turn {number}: {committed:?}");
    }
}

/// Sends the same bytes again until they are accepted.
async fn retry(store: &dyn Store, commit: &Commit) {
    eventually("the turn is accepted", async || {
        matches!(store.commit(commit).await, Ok(Committed::Ok(_) | Committed::Duplicate(_)))
    })
    .await;
}

async fn eventually<F: Future<Output = bool>>(what: &str, mut holds: impl FnMut() -> F) {
    let began = Instant::now();
    while !holds().await {
        assert!(began.elapsed() < Duration::from_secs(20), "{what}: not within 20 s");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Bytes of a file; 0 if there is none.
fn size(folder: &Path, name: &str) -> u64 {
    std::fs::metadata(folder.join(name)).map_or(0, |file| file.len())
}

/// A read of another program, which the store cannot end.
async fn foreign_read(folder: &Path) -> SqliteConnection {
    let options = SqliteConnectOptions::new().filename(database(folder)).read_only(true);
    let mut reader = options.connect().await.unwrap();
    sqlx::query("BEGIN").execute(&mut reader).await.unwrap();
    let _: i64 = sqlx::query_scalar("SELECT count(*) FROM runs").fetch_one(&mut reader).await.unwrap();
    reader
}

#[tokio::test]
async fn a_store_whose_volume_a_long_read_filled_serves_again_once_the_read_has_ended() {
    const THIS: &str = "volume::a_store_whose_volume_a_long_read_filled_serves_again_once_the_read_has_ended";
    let Some(folder) = child::folder() else {
        let Some(printed) = on_a_small_volume(THIS, 2).await else { return };
        assert!(printed.contains("recovered") && printed.contains("restarted"), "{printed}");
        return;
    };
    let (store, worker) = (Sqlite::open(&database(&folder)).await.unwrap(), child::worker(&folder));
    if next_turn(&store, &worker).await > 1 {
        commit_turns(&store, &worker, 50).await;
        return print_line("restarted");
    }
    let reader = foreign_read(&folder).await;
    let (refused, why) = commit_until_refused(&store, &worker).await;
    print_line(&format!("refused {} {why:?}", refused.turn));
    drop(reader);
    retry(&store, &refused).await;
    commit_turns(&store, &worker, 50).await;
    print_line("recovered");
}

#[tokio::test]
async fn a_read_of_the_store_itself_never_fills_the_volume() {
    const THIS: &str = "volume::a_read_of_the_store_itself_never_fills_the_volume";
    let Some(folder) = child::folder() else {
        let Some(printed) = on_a_small_volume(THIS, 1).await else { return };
        assert!(printed.contains("bounded"), "{printed}");
        return;
    };
    let store = Sqlite::open(&database(&folder)).await.unwrap();
    let worker = child::worker(&folder);
    let mut reading = store.begin_read().await.unwrap();
    reading.runs(None).await.unwrap();
    let mut largest = 0;
    while reading.runs(None).await.is_ok() {
        commit_turns(&store, &worker, 20).await;
        largest = largest.max(size(&folder, "runs.db-wal"));
    }
    assert!(largest < VOLUME / 3, "the write-ahead log had {largest} bytes");
    commit_turns(&store, &worker, 20).await;
    eventually("the log shrinks", async || size(&folder, "runs.db-wal") < VOLUME / 16).await;
    print_line("bounded");
}

/// Fills the volume to the last byte.
fn fill(folder: &Path) {
    let mut file = std::fs::File::create(folder.join("filler")).unwrap();
    while file.write_all(&[1; 4_096]).is_ok() {}
}

#[tokio::test]
async fn on_a_volume_that_other_files_filled_runs_can_end_and_turns_are_accepted_when_there_is_space() {
    const THIS: &str =
        "volume::on_a_volume_that_other_files_filled_runs_can_end_and_turns_are_accepted_when_there_is_space";
    let Some(folder) = child::folder() else {
        let Some(printed) = on_a_small_volume(THIS, 2).await else { return };
        assert!(printed.contains("recovered") && printed.contains("restarted"), "{printed}");
        return;
    };
    let url = format!("sqlite://{}", database(&folder).display());
    let worker = child::worker(&folder);
    if folder.join("filler").exists() {
        // The process ended with a full volume. The next one starts, and deletes a run.
        let ServedStore { store, .. } = open_to_serve(&url, None).await.unwrap();
        store.mark_deleted(OTHER_OBJECT, &RequestedBy::default()).await.unwrap();
        std::fs::remove_file(folder.join("filler")).unwrap();
        retry(&*store, &turn(&worker, next_turn(&*store, &worker).await)).await;
        return print_line("restarted");
    }
    let ServedStore { store, disk } = open_to_serve(&url, None).await.unwrap();
    let disk = disk.unwrap();
    disk.keep_reserve();
    let cx = TestContext::new(store.clone(), ());
    let (ends, is_deleted) = (cx.worker().await, cx.worker().await);
    cx.create_run(&NewRun { object_uid: OTHER_OBJECT.into(), ..new_run() }).await.unwrap();
    commit_turns(&*store, &worker, 20).await;
    eventually("the reserve is made", async || disk.status().has_reserve).await;
    fill(&folder);
    let (refused, why) = commit_until_refused(&*store, &worker).await;
    assert!(matches!(why, Error::StorageFull { .. }), "{why:?}");
    eventually("the level is full", async || disk.status().level == DiskLevel::Full).await;
    assert!(matches!(store.commit(&refused).await, Err(Error::StorageFull { .. })));
    // What ends a run is accepted, and so are heartbeats: the reserve has made room for them.
    eventually("a run is finished", async || store.finish(&ends.finish()).await.is_ok()).await;
    store.mark_deleted(&is_deleted.object_uid, &RequestedBy::default()).await.unwrap();
    store.record_gateway_heartbeat().await.unwrap();
    std::fs::remove_file(folder.join("filler")).unwrap();
    retry(&*store, &refused).await;
    commit_turns(&*store, &worker, 20).await;
    eventually("the reserve is made again", async || {
        commit_turns(&*store, &worker, 1).await;
        disk.status().has_reserve
    })
    .await;
    print_line("recovered");
    fill(&folder);
}

/// As a command line that is started beside the server.
#[tokio::test]
async fn a_read_of_another_process_of_the_store_ends_by_itself() {
    const THIS: &str = "volume::a_read_of_another_process_of_the_store_ends_by_itself";
    let Some(folder) = child::folder() else {
        let Some(printed) = on_a_small_volume(THIS, 1).await else { return };
        assert!(printed.contains("ended"), "{printed}");
        return;
    };
    let store = Sqlite::open(&database(&folder)).await.unwrap();
    let worker = child::worker(&folder);
    let other = Sqlite::open_read_only(&database(&folder)).await.unwrap();
    let mut reading = other.begin_read().await.unwrap();
    reading.runs(None).await.unwrap();
    let (refused, _) = commit_until_refused(&store, &worker).await;
    retry(&store, &refused).await;
    let why = reading.runs(None).await.unwrap_err();
    assert!(matches!(why, Error::Unavailable { .. }), "{why:?}");
    commit_turns(&store, &worker, 20).await;
    print_line("ended");
}
