//! A pod that waits for its record or its version check looks often. Its looks must not wait for the disk.

use std::path::Path;
use std::sync::Arc;

use dalsegno_model::{Attached, Operator as _, PodRecord, Worker as _};
use dalsegno_store::sqlite::Sqlite;

use crate::child::{self, database, print_line};
use crate::context::*;
use crate::strace::traced;

const LOOKS: usize = 300;

/// The child: a pod without a version verdict tries to attach, again and again.
async fn look(folder: &Path) {
    let store = Arc::new(Sqlite::open(&database(folder)).await.unwrap());
    let run = TestContext::new(store.clone(), ()).run().await;
    store.record_pod(run.id, 1, &PodRecord { identity: None, ..pod(&run) }).await.unwrap();
    let uid = pod(&run).uid;
    print_line("first look");
    for _ in 0..LOOKS {
        let answer = store.attach(run.id, &uid, &[7; 32]).await.unwrap();
        assert!(matches!(answer, Attached::VersionPending), "{answer:?}");
    }
    print_line("last look");
    store.close().await;
}

#[tokio::test]
async fn a_waiting_attach_does_not_sync_the_disk() {
    const THIS: &str = "waiting_attach::a_waiting_attach_does_not_sync_the_disk";
    if let Some(folder) = child::folder() {
        return look(&folder).await;
    }
    let folder = tempfile::tempdir().unwrap();
    Sqlite::migrate(&database(folder.path())).await.unwrap();
    let trace = traced(THIS, folder.path());
    let looks = trace.lines().skip_while(|line| !line.contains("first look"));
    let during: Vec<_> = looks.take_while(|line| !line.contains("last look")).collect();
    assert!(!during.is_empty(), "the child has printed both lines");
    let syncs = during.iter().filter(|line| line.contains("sync")).count();
    assert!(syncs <= 2, "{LOOKS} looks synced the disk {syncs} times");
}
