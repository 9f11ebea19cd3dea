//! The kernel makes the volume of an embedded store read-only while the store serves, as after an error of the device.
//! The file system is a real one on a loop device, and its own test hook reports the error.

use std::time::Duration;

use dalsegno_model::{Committed, Read as _, Worker as _};
use dalsegno_store::sqlite::Sqlite;

use crate::child::{self, database, prepare, print_line, with_mounts};
use crate::retrying_worker::{assert_acknowledged, hash};

/// Environment variable with the file that makes the file system report an error.
const TRIGGER: &str = "DALSEGNO_TEST_TRIGGER";

/// The exit code of the script if there is no loop device.
const NO_LOOP_DEVICE: i32 = 77;

/// Runs a child that sees the error, one that finds the volume read-only, and one after the repair.
const SCRIPT: &str = r#"image=$DALSEGNO_TEST_CHILD/image
    truncate -s 24m "$image" && mkfs.ext4 -q "$image"
    loop=$(losetup --show --find "$image") || exit 77
    volume=$(mktemp -d)
    trap 'umount "$volume"; losetup --detach "$loop"; rmdir "$volume"' EXIT
    mount -o errors=remount-ro "$loop" "$volume"
    cp -a "$DALSEGNO_TEST_CHILD"/runs.db "$DALSEGNO_TEST_CHILD"/worker "$volume" && sync --file-system "$volume"
    export DALSEGNO_TEST_CHILD=$volume
    DALSEGNO_TEST_TRIGGER=/sys/fs/ext4/$(basename "$loop")/trigger_fs_error "$@"
    "$@"
    umount "$volume" && { e2fsck -fy "$loop" >&2 || test $? -le 2; } && mount "$loop" "$volume"
    "$@""#;

#[tokio::test]
async fn a_store_whose_volume_became_read_only_fails_and_continues_after_the_repair() {
    const THIS: &str =
        "read_only_volume::a_store_whose_volume_became_read_only_fails_and_continues_after_the_repair";
    if let Some(folder) = child::folder() {
        return commit_beside_an_error(&folder).await;
    }
    if !rustix::process::getuid().is_root() {
        return eprintln!("SKIPPED: {THIS} mounts a file system, which needs root");
    }
    let folder = tempfile::tempdir().unwrap();
    prepare(folder.path()).await;
    let output = with_mounts(THIS, folder.path(), SCRIPT);
    if output.status.code() == Some(NO_LOOP_DEVICE) {
        return eprintln!("SKIPPED: {THIS} needs a loop device");
    }
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{stdout}{}", String::from_utf8_lossy(&output.stderr));
    for expected in ["failed ", "refused to open ", "continued"] {
        assert!(stdout.contains(expected), "{expected}: {stdout}");
    }
}

async fn commit_beside_an_error(folder: &std::path::Path) {
    let worker = child::worker(folder);
    let store = match Sqlite::open(&database(folder)).await {
        Ok(store) => store,
        Err(error) => return print_line(&format!("refused to open {error}")),
    };
    let first = store.get_run(worker.run).await.unwrap().unwrap().head.map_or(1, |head| head.turn + 1);
    let mut acknowledged = Vec::new();
    for turn in first..first + 20 {
        match store.commit(&worker.result(turn)).await.unwrap() {
            Committed::Ok(receipt) => acknowledged.push(hash(&receipt, turn)),
            other => panic!("turn {turn}: {other:?}"),
        }
    }
    let list = folder.join("acknowledged");
    let Some(trigger) = std::env::var_os(TRIGGER) else {
        let before = std::fs::read_to_string(list).unwrap();
        let all: Vec<_> = before.lines().map(str::to_owned).chain(acknowledged).collect();
        assert_acknowledged(&store, &worker, &all).await;
        return print_line("continued");
    };
    std::fs::write(&list, acknowledged.join("\n")).unwrap();
    std::fs::File::open(&list).unwrap().sync_all().unwrap();
    std::fs::write(trigger, "an error for a test").unwrap();
    store.record_gateway_heartbeat().await.unwrap_err();
    let disk = store.disk().unwrap();
    let why = tokio::time::timeout(Duration::from_secs(10), disk.failed()).await.unwrap();
    print_line(&format!("failed {why}"));
}
