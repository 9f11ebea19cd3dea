//! The test that a commit is on the disk before it is answered would fail if it were not: the store's own commit, by the
//! store's own writer, and no more asked of the disk than of a heartbeat.

#[path = "../../../tests/support/strace.rs"]
mod traced;

use std::path::Path;

use dalsegno_protocol::{Boundary, Usage};
use traced::{folder, print_line, synced_before_each_answer, traced};
use uuid::Uuid;

use super::{Durability, Sqlite, new_run};
use crate::encoded_ops::EncodedOps;
use crate::seal::PayloadCipher;
use crate::sqlite::boundary::Prepared;
use crate::sqlite::commit;
use crate::{Commit, Created, Digest, Identity, Operator as _, PodRecord, RunId, Verdict, Worker as _};

const TURNS: usize = 20;

const CAPABILITY: Digest = [7; 32];

/// A run whose worker has attached.
pub(super) async fn attached(store: &Sqlite) -> RunId {
    let Created::Run(run) = store.create_run(&new_run()).await.unwrap() else { panic!("a prior run") };
    let identity = Identity {
        image_digest: "sha256:1111".into(),
        agent_version: "v1".into(),
        verdict: Verdict::Accepted,
        remark: String::new(),
    };
    let pod = PodRecord {
        uid: "pod".into(),
        name: "pod".into(),
        revision: "revision".into(),
        identity: Some(identity),
    };
    store.record_pod(run.id, run.attempt.number, &pod).await.unwrap();
    store.attach(run.id, &pod.uid, &CAPABILITY).await.unwrap();
    run.id
}

pub(super) fn turn(run: RunId, turn: i32) -> Commit {
    Commit {
        run,
        capability: CAPABILITY,
        turn,
        boundary: Boundary::Result,
        commit_id: Uuid::new_v4(),
        digest: [turn as u8; 32],
        ops: Some(br#"{"full":true,"set":{}}"#.to_vec()),
        full: true,
        size: 0,
        base: None,
        events: Vec::new(),
        calls: Vec::new(),
        records: Vec::new(),
        usage: Usage::default(),
        trigger: None,
        finish: None,
    }
}

/// What a child does: commits, and says so as soon as it is answered.
async fn commit_turns(folder: &Path, durability: Durability) {
    let path = folder.join("runs.db");
    Sqlite::migrate(&path).await.unwrap();
    let store = Sqlite::open(&path).await.unwrap();
    let run = attached(&store).await;
    for number in 1..=TURNS {
        let (commit, cipher) = (turn(run, number as i32), PayloadCipher::default());
        let packed = EncodedOps::plain(&commit, &cipher).unwrap();
        let prepared = Prepared::new(&commit, packed, cipher).unwrap();
        let committed = store
            .submit(durability, "committing a boundary", |conn, now| {
                Box::pin(async move { commit::commit(conn, now, &prepared).await })
            })
            .await;
        assert!(matches!(committed, Ok(Some(crate::Committed::Ok(_)))), "{committed:?}");
        print_line(&format!("ack {number} -"));
    }
}

/// How it is judged where commits are to be so durable.
async fn judged(test: &str, durability: Durability) -> Option<Result<usize, String>> {
    if let Some(folder) = folder() {
        commit_turns(&folder, durability).await;
        return None;
    }
    let folder = tempfile::tempdir().unwrap();
    Some(synced_before_each_answer(&traced(test, folder.path())))
}

#[tokio::test]
async fn a_commit_that_is_to_last_is_on_the_disk_before_its_answer() {
    const THIS: &str = "sqlite::tests::careless::a_commit_that_is_to_last_is_on_the_disk_before_its_answer";
    if let Some(judged) = judged(THIS, Durability::Lasting).await {
        assert_eq!(judged, Ok(TURNS));
    }
}

#[tokio::test]
async fn a_commit_that_need_not_last_is_found_out() {
    const THIS: &str = "sqlite::tests::careless::a_commit_that_need_not_last_is_found_out";
    if let Some(judged) = judged(THIS, Durability::Passing).await {
        assert!(judged.as_ref().is_err_and(|why| why.contains("no sync")), "{judged:?}");
    }
}
