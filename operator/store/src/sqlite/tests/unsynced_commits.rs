//! Shows that the test of synced commits can fail: the same commit, by the same writer, but as unsynced as a heartbeat,
//! does not pass it.

#[path = "../../../tests/support/strace.rs"]
mod traced;

use std::path::Path;

use dalsegno_protocol::{Boundary, Usage};
use traced::{folder, print_line, synced_before_each_answer, traced};
use uuid::Uuid;

use super::{Durability, Sqlite, new_run};
use crate::encoded_ops::EncodedOps;
use crate::sqlite::boundary::PreparedCommit;
use crate::sqlite::commit;
use dalsegno_format::seal::PayloadCipher;
use dalsegno_model::{
    Commit, Created, Digest, Identity, Operator as _, PodRecord, RunId, Verdict, Worker as _,
};

const TURNS: usize = 20;

const CAPABILITY: Digest = [7; 32];

/// Creates a run whose worker has attached.
pub(super) async fn attached(store: &Sqlite) -> RunId {
    let Created::Run(run) = store.create_run(&new_run()).await.unwrap() else { panic!("a prior run") };
    let identity = Identity {
        in_registry: Some(true),
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
        open_calls: Vec::new(),
        records: Vec::new(),
        inbox: Vec::new(),
        usage: Usage::default(),
        trigger: None,
        finish: None,
        park: None,
    }
}

/// The child process: commits turns, and prints a line as soon as each is acknowledged.
async fn commit_turns(folder: &Path, durability: Durability) {
    let path = folder.join("runs.db");
    Sqlite::migrate(&path).await.unwrap();
    let store = Sqlite::open(&path).await.unwrap();
    let run = attached(&store).await;
    for number in 1..=TURNS {
        let (commit, cipher) = (turn(run, number as i32), PayloadCipher::default());
        let ops = EncodedOps::plain(&commit, &cipher).unwrap();
        let prepared = PreparedCommit::new(&commit, ops, cipher).unwrap();
        let committed = store
            .submit(durability, "committing a boundary", |conn, now| {
                Box::pin(async move { commit::commit(conn, now, &prepared).await })
            })
            .await;
        assert!(matches!(committed, Ok(Some(dalsegno_model::Committed::Ok(_)))), "{committed:?}");
        print_line(&format!("ack {number} -"));
    }
}

/// Returns the verdict on commits of this durability; `None` in the child process.
async fn verdict(test: &str, durability: Durability) -> Option<Result<usize, String>> {
    if let Some(folder) = folder() {
        commit_turns(&folder, durability).await;
        return None;
    }
    let folder = tempfile::tempdir().unwrap();
    Some(synced_before_each_answer(&traced(test, folder.path())))
}

#[tokio::test]
async fn a_synced_commit_is_on_the_disk_before_it_is_acknowledged() {
    const THIS: &str =
        "sqlite::tests::unsynced_commits::a_synced_commit_is_on_the_disk_before_it_is_acknowledged";
    if let Some(verdict) = verdict(THIS, Durability::Synced).await {
        assert_eq!(verdict, Ok(TURNS));
    }
}

#[tokio::test]
async fn an_unsynced_commit_is_detected() {
    const THIS: &str = "sqlite::tests::unsynced_commits::an_unsynced_commit_is_detected";
    if let Some(verdict) = verdict(THIS, Durability::Unsynced).await {
        assert!(verdict.as_ref().is_err_and(|why| why.contains("no sync")), "{verdict:?}");
    }
}
