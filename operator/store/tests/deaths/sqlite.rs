//! The process around an embedded store is killed; what it writes is on the disk before it is answered; its disk is full, or
//! may only be read.

use std::io::{BufRead as _, BufReader};
use std::process::Child;
use std::sync::Arc;
use std::time::Duration;

use dalsegno_store::Read as _;
use dalsegno_store::sqlite::Sqlite;

use crate::child::{
    self, command, commit_turns, database, heard, prepare, say, with_mounts, write_one_of_each,
};
use crate::steady::{Pace, expect_as_told, turns};
use crate::traced::{synced_before_each_answer, traced};

/// How often the process is killed.
const KILLS: u64 = 500;

#[tokio::test]
async fn a_process_that_is_killed_in_its_commits_loses_and_doubles_no_acknowledged_turn() {
    const THIS: &str =
        "sqlite::a_process_that_is_killed_in_its_commits_loses_and_doubles_no_acknowledged_turn";
    if let Some(folder) = child::folder() {
        return commit_turns(&folder, i32::MAX - 1_000_000).await;
    }
    let folder = tempfile::tempdir().unwrap();
    let worker = prepare(folder.path()).await;
    let (mut told, mut lost) = (Vec::new(), 0);
    for round in 0..KILLS {
        let mut child = command(THIS, folder.path(), &[]).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let first = lines.by_ref().map_while(Result::ok).find(|line| line.starts_with("head")).unwrap();
        lost += agree_on_head(&mut told, &first);
        // Anywhere in the first commits: beginning, writing, syncing, answering.
        std::thread::sleep(Duration::from_micros(round * 7_919 % 9_000));
        kill(&mut child);
        for line in lines.map_while(Result::ok) {
            match heard(&line) {
                Some(("ack", turn, hash)) if hash.len() == 71 => {
                    assert_eq!(turn, told.len() + 1, "a turn was acknowledged twice, or one was left out");
                    told.push(hash.to_owned());
                }
                // The last line may be cut, in which case nobody was told.
                None | Some(("ack", ..)) => {}
                Some(_) => panic!("{line}"),
            }
        }
    }
    let store = Sqlite::open(&database(folder.path())).await.unwrap();
    let head = store.get_run(worker.run).await.unwrap().unwrap().head.unwrap();
    lost += agree_on_head(&mut told, &format!("head {} {}", head.turn, head.content_hash));
    expect_as_told(&store, &worker, &told).await;
    let committed = told.len();
    assert!(committed > 100 && lost > 0, "{KILLS} lives, {committed} turns, {lost} lost answers");
}

/// The head that a process found is the last acknowledged turn, or the one after it, whose answer was lost. How many were.
fn agree_on_head(told: &mut Vec<String>, line: &str) -> usize {
    let (_, turn, hash) = heard(line).unwrap();
    let lost = turn.saturating_sub(told.len());
    if lost == 1 {
        told.push(hash.to_owned());
    }
    assert_eq!((turn, Some(hash)), (told.len(), Some(told.last().map_or("-", String::as_str))));
    lost
}

/// SIGKILL.
fn kill(child: &mut Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

/// What a kill cannot show: the kernel keeps what a dead process has written, a power cut does not. That such a test fails
/// where the store does not wait for the disk is tried within it, in `src/sqlite/tests/careless.rs`.
#[tokio::test]
async fn the_disk_has_a_commit_before_its_worker_has_the_answer() {
    const THIS: &str = "sqlite::the_disk_has_a_commit_before_its_worker_has_the_answer";
    if let Some(folder) = child::folder() {
        return commit_turns(&folder, 20).await;
    }
    let folder = tempfile::tempdir().unwrap();
    prepare(folder.path()).await;
    let trace = traced(THIS, folder.path());
    assert_eq!(synced_before_each_answer(&trace), Ok(20));
}

#[tokio::test]
async fn the_disk_has_whatever_is_written_before_its_answer() {
    const THIS: &str = "sqlite::the_disk_has_whatever_is_written_before_its_answer";
    if let Some(folder) = child::folder() {
        return write_one_of_each(&folder).await;
    }
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(synced_before_each_answer(&traced(THIS, folder.path())), Ok(23));
}

/// The file system is one of its own, of a megabyte, which goes with the process.
#[tokio::test]
async fn a_full_disk_refuses_a_turn_and_keeps_all_before_it() {
    const THIS: &str = "sqlite::a_full_disk_refuses_a_turn_and_keeps_all_before_it";
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
    let said = String::from_utf8_lossy(&output.stdout);
    let told: Vec<String> = said
        .lines()
        .filter_map(heard)
        .filter(|(what, ..)| *what == "ack")
        .map(|(.., hash)| hash.to_owned())
        .collect();
    let refusal = said.lines().filter_map(heard).find(|(what, ..)| *what == "refused");
    let (_, turn, why) =
        refusal.unwrap_or_else(|| panic!("{said}{}", String::from_utf8_lossy(&output.stderr)));
    assert_eq!(turn, told.len() + 1);
    assert!(why.contains("Unavailable") && why.contains("full"), "{why}");
    // With room again all is as it was told, and the next turn is taken.
    let store = Arc::new(Sqlite::open(&database(folder.path())).await.unwrap());
    expect_as_told(&*store, &worker, &told).await;
    let world = crate::world::World::new(store, ());
    world.turn(&worker, told.len() as i32 + 1).await;
}

/// A kernel that finds an error makes a file system read-only under whoever writes to it, and does so for nobody who asks:
/// here a few writes are answered as if it had.
#[tokio::test]
async fn a_file_system_that_becomes_read_only_refuses_turns_and_takes_the_same_ones_later() {
    const THIS: &str =
        "sqlite::a_file_system_that_becomes_read_only_refuses_turns_and_takes_the_same_ones_later";
    if let Some(folder) = child::folder() {
        let (store, worker) = (Sqlite::open(&database(&folder)).await.unwrap(), child::worker(&folder));
        let (told, lost) = turns(&store, &worker, 30, Pace::patient(Duration::ZERO)).await;
        expect_as_told(&store, &worker, &told).await;
        return say(&format!("lost {} {}", lost.answers, lost.alone));
    }
    let folder = tempfile::tempdir().unwrap();
    let worker = prepare(folder.path()).await;
    let refusing = ["-e", "trace=pwrite64", "-e", "inject=pwrite64:error=EROFS:when=100..120"];
    let strace = [&["strace", "-f", "-qq", "-o", "/dev/null"][..], &refusing].concat();
    let output = command(THIS, folder.path(), &strace).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let lost = said.lines().find_map(|line| line.strip_prefix("lost "));
    let lost = lost.unwrap_or_else(|| panic!("{said}{}", String::from_utf8_lossy(&output.stderr)));
    let (refused, alone) = lost.split_once(' ').unwrap();
    assert!(refused.parse::<u32>().unwrap() > 0, "no turn was refused");
    assert_eq!(alone, "0", "what was refused stood");
    let store = Sqlite::open(&database(folder.path())).await.unwrap();
    assert_eq!(store.get_run(worker.run).await.unwrap().unwrap().head.unwrap().turn, 30);
}

#[tokio::test]
async fn a_file_system_that_may_only_be_read_is_named_at_the_start() {
    const THIS: &str = "sqlite::a_file_system_that_may_only_be_read_is_named_at_the_start";
    if let Some(folder) = child::folder() {
        let refused = Sqlite::open(&database(&folder)).await.err();
        return say(&format!("refused 0 {}", refused.map_or("nothing".into(), |error| error.to_string())));
    }
    let folder = tempfile::tempdir().unwrap();
    prepare(folder.path()).await;
    let output = with_mounts(
        THIS,
        folder.path(),
        r#"mount --bind "$DALSEGNO_TEST_CHILD" "$DALSEGNO_TEST_CHILD"
        mount -o remount,ro,bind "$DALSEGNO_TEST_CHILD" && "$@""#,
    );
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("ead-only"), "{said}{}", String::from_utf8_lossy(&output.stderr));
}
