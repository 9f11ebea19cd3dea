//! The process of an embedded store is killed; writes are synced before they are answered; the disk is full or read-only.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::Child;
use std::sync::Arc;
use std::time::Duration;

use dalsegno_model::{Committed, Error, Read as _, Worker as _};
use dalsegno_store::sqlite::Sqlite;

use crate::child::{
    self, command, commit_turns, database, parse_line, prepare, print_line, with_mounts, write_one_of_each,
};
use crate::retrying_worker::{Pace, assert_acknowledged, hash, turns};
use crate::strace::{synced_before_each_answer, traced};

/// How often the process is killed.
const KILLS: u64 = 500;

/// How often it is killed at most, if a slow disk left too few turns.
const MOST_KILLS: u64 = 3_000;

/// The process lives up to this long, in microseconds.
const LIFE: u64 = 9_000;

/// After so many kills in a row without a turn, the next processes live up to twice as long.
const IDLE_KILLS: u64 = 50;

#[tokio::test]
async fn a_process_killed_during_commits_keeps_each_acknowledged_turn_once() {
    const THIS: &str = "sqlite::a_process_killed_during_commits_keeps_each_acknowledged_turn_once";
    if let Some(folder) = child::folder() {
        return commit_turns(&folder, i32::MAX - 1_000_000).await;
    }
    let folder = tempfile::tempdir().unwrap();
    let worker = prepare(folder.path()).await;
    let (mut acknowledged, mut lost) = (Vec::new(), 0);
    let (mut kills, mut life, mut idle) = (0, LIFE, 0);
    while kills < KILLS || (kills < MOST_KILLS && (acknowledged.len() <= 100 || lost == 0)) {
        let before = acknowledged.len();
        let mut child = command(THIS, folder.path(), &[]).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let first = lines.by_ref().map_while(Result::ok).find(|line| line.starts_with("head")).unwrap();
        lost += check_head(&mut acknowledged, &first);
        // Spread over all steps of the first commits: begin, write, sync, answer.
        std::thread::sleep(Duration::from_micros(kills * 7_919 % life));
        kill(&mut child);
        kills += 1;
        for line in lines.map_while(Result::ok) {
            match parse_line(&line) {
                Some(("ack", turn, hash)) if hash.len() == 71 => {
                    assert_eq!(turn, acknowledged.len() + 1, "a turn was acknowledged twice or skipped");
                    acknowledged.push(hash.to_owned());
                }
                // The last line may be cut: its worker got no answer.
                None | Some(("ack", ..)) => {}
                Some(_) => panic!("{line}"),
            }
        }
        idle = if acknowledged.len() > before { 0 } else { idle + 1 };
        if idle == IDLE_KILLS {
            (life, idle) = ((2 * life).min(100 * LIFE), 0);
        }
    }
    let store = Sqlite::open(&database(folder.path())).await.unwrap();
    let head = store.get_run(worker.run).await.unwrap().unwrap().head.unwrap();
    lost += check_head(&mut acknowledged, &format!("head {} {}", head.turn, head.content_hash));
    assert_acknowledged(&store, &worker, &acknowledged).await;
    let committed = acknowledged.len();
    assert!(committed > 100 && lost > 0, "{kills} kills, {committed} turns, {lost} lost answers");
}

/// Checks the head that a process found: it is the last acknowledged turn, or the one after it if its answer was lost.
/// Returns the number of lost answers, 0 or 1.
fn check_head(acknowledged: &mut Vec<String>, line: &str) -> usize {
    let (_, turn, hash) = parse_line(line).unwrap();
    let lost = turn.saturating_sub(acknowledged.len());
    if lost == 1 {
        acknowledged.push(hash.to_owned());
    }
    assert_eq!(
        (turn, Some(hash)),
        (acknowledged.len(), Some(acknowledged.last().map_or("-", String::as_str)))
    );
    lost
}

/// Sends SIGKILL.
fn kill(child: &mut Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

/// A kill cannot show this: the kernel keeps what a dead process has written, and a power cut does not. The tests in
/// `src/sqlite/tests/unsynced_commits.rs` show that this check fails if the store does not wait for the disk.
#[tokio::test]
async fn a_commit_is_synced_before_it_is_answered() {
    const THIS: &str = "sqlite::a_commit_is_synced_before_it_is_answered";
    if let Some(folder) = child::folder() {
        return commit_turns(&folder, 20).await;
    }
    let folder = tempfile::tempdir().unwrap();
    prepare(folder.path()).await;
    let trace = traced(THIS, folder.path());
    assert_eq!(synced_before_each_answer(&trace), Ok(20));
}

#[tokio::test]
async fn every_write_is_synced_before_it_is_answered() {
    const THIS: &str = "sqlite::every_write_is_synced_before_it_is_answered";
    if let Some(folder) = child::folder() {
        return write_one_of_each(&folder).await;
    }
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(synced_before_each_answer(&traced(THIS, folder.path())), Ok(28));
}

/// The file system of 1 MiB belongs to the child and ends with it.
#[tokio::test]
async fn a_full_disk_refuses_a_turn_and_keeps_the_earlier_ones() {
    const THIS: &str = "sqlite::a_full_disk_refuses_a_turn_and_keeps_the_earlier_ones";
    if let Some(folder) = child::folder() {
        return commit_turns(&folder, 100_000).await;
    }
    let folder = tempfile::tempdir().unwrap();
    let worker = prepare(folder.path()).await;
    let output = with_mounts(
        THIS,
        folder.path(),
        r#"small=$(mktemp -d) && mount -t tmpfs -o size=1m tmpfs "$small" && cp -a "$DALSEGNO_TEST_CHILD"/. "$small"
        DALSEGNO_TEST_CHILD=$small "$@"
        cp -a "$small"/. "$DALSEGNO_TEST_CHILD" && umount "$small" && rmdir "$small""#,
    );
    let stdout = String::from_utf8_lossy(&output.stdout);
    let acknowledged: Vec<String> = stdout
        .lines()
        .filter_map(parse_line)
        .filter(|(what, ..)| *what == "ack")
        .map(|(.., hash)| hash.to_owned())
        .collect();
    let refusal = stdout.lines().filter_map(parse_line).find(|(what, ..)| *what == "refused");
    let (_, turn, why) =
        refusal.unwrap_or_else(|| panic!("{stdout}{}", String::from_utf8_lossy(&output.stderr)));
    assert_eq!(turn, acknowledged.len() + 1);
    assert!(why.contains("StorageFull") && why.contains("less space"), "{why}");
    // With free space, everything acknowledged is stored, and the next turn is accepted.
    let store = Arc::new(Sqlite::open(&database(folder.path())).await.unwrap());
    assert_acknowledged(&*store, &worker, &acknowledged).await;
    let cx = crate::context::TestContext::new(store, ());
    cx.commit_turn(&worker, acknowledged.len() as i32 + 1).await;
}

/// The work of a child: commits turns until one is refused, and prints the acknowledged ones. Then no write is accepted,
/// although the volume works again, and the store says that it has failed.
async fn commit_until_the_volume_fails(folder: &Path) {
    let (store, worker) = (Sqlite::open(&database(folder)).await.unwrap(), child::worker(folder));
    let failed = async {
        let disk = store.disk().unwrap();
        let why = tokio::time::timeout(Duration::from_secs(20), disk.failed()).await.unwrap();
        assert_eq!(disk.failure(), Some(why));
    };
    let mut turn = 0;
    let refused = loop {
        turn += 1;
        match store.commit(&worker.result(turn)).await {
            Ok(Committed::Ok(receipt)) => print_line(&format!("ack {turn} {}", hash(&receipt, turn))),
            other => break other,
        }
    };
    assert!(matches!(refused, Err(Error::Unavailable { .. })), "{refused:?}");
    failed.await;
    for _ in 0..20 {
        store.record_gateway_heartbeat().await.unwrap_err();
        store.commit(&worker.result(turn)).await.unwrap_err();
    }
    print_line(&format!("refused {turn} {refused:?}"));
}

/// After a failed sync Linux takes the pages for written, so the next sync succeeds without them. After an error the
/// kernel may also make a file system read-only. `strace` lets one system call fail as if it had.
#[tokio::test]
async fn after_an_error_of_its_volume_a_store_accepts_nothing_and_the_next_process_continues() {
    const THIS: &str =
        "sqlite::after_an_error_of_its_volume_a_store_accepts_nothing_and_the_next_process_continues";
    if let Some(folder) = child::folder() {
        return commit_until_the_volume_fails(&folder).await;
    }
    for inject in [
        "inject=fdatasync,fsync:error=EIO:when=12",
        "inject=pwrite64:error=EIO:when=100",
        "inject=pwrite64:error=EROFS:when=100",
    ] {
        let folder = tempfile::tempdir().unwrap();
        let worker = prepare(folder.path()).await;
        let strace =
            ["strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=pwrite64,fdatasync,fsync", "-e", inject];
        let output = command(THIS, folder.path(), &strace).output().unwrap();
        let stdout = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{inject}: {stdout}{}", String::from_utf8_lossy(&output.stderr));
        let lines: Vec<_> = stdout.lines().filter_map(parse_line).collect();
        let mut acknowledged: Vec<_> =
            lines.iter().filter(|line| line.0 == "ack").map(|line| line.2.to_owned()).collect();
        assert!(
            acknowledged.len() > 3 && lines.last().is_some_and(|line| line.0 == "refused"),
            "{inject}: {stdout}"
        );
        let store = Arc::new(Sqlite::open(&database(folder.path())).await.unwrap());
        let head = store.get_run(worker.run).await.unwrap().unwrap().head.unwrap();
        check_head(&mut acknowledged, &format!("head {} {}", head.turn, head.content_hash));
        assert_acknowledged(&*store, &worker, &acknowledged).await;
        let cx = crate::context::TestContext::new(store, ());
        cx.commit_turn(&worker, acknowledged.len() as i32 + 1).await;
    }
}

/// A sync takes longer than the store waits for an operation.
#[tokio::test]
async fn a_disk_that_hangs_for_a_while_delays_turns_and_loses_none() {
    const THIS: &str = "sqlite::a_disk_that_hangs_for_a_while_delays_turns_and_loses_none";
    if let Some(folder) = child::folder() {
        let (store, worker) = (Sqlite::open(&database(&folder)).await.unwrap(), child::worker(&folder));
        let (acknowledged, unanswered) =
            turns(&store, &worker, 30, Pace::without_timeout(Duration::ZERO)).await;
        assert_acknowledged(&store, &worker, &acknowledged).await;
        return print_line(&format!("unanswered {} {}", unanswered.errors, unanswered.duplicates));
    }
    let folder = tempfile::tempdir().unwrap();
    prepare(folder.path()).await;
    let inject = "inject=fdatasync,fsync:delay_enter=11000000:when=15";
    let strace = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=fdatasync,fsync", "-e", inject];
    let output = command(THIS, folder.path(), &strace).output().unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(stdout.contains("unanswered 1 1"), "{stdout}{}", String::from_utf8_lossy(&output.stderr));
}

#[tokio::test]
async fn a_read_only_file_system_is_reported_at_the_start() {
    const THIS: &str = "sqlite::a_read_only_file_system_is_reported_at_the_start";
    if let Some(folder) = child::folder() {
        let refused = Sqlite::open(&database(&folder)).await.err();
        return print_line(&format!(
            "refused 0 {}",
            refused.map_or("nothing".into(), |error| error.to_string())
        ));
    }
    let folder = tempfile::tempdir().unwrap();
    prepare(folder.path()).await;
    let output = with_mounts(
        THIS,
        folder.path(),
        r#"mount --bind "$DALSEGNO_TEST_CHILD" "$DALSEGNO_TEST_CHILD"
        mount -o remount,ro,bind "$DALSEGNO_TEST_CHILD" && "$@""#,
    );
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(stdout.contains("ead-only"), "{stdout}{}", String::from_utf8_lossy(&output.stderr));
}
