//! The verbs of a person on a store whose runs are encrypted.
#![allow(clippy::unwrap_used, reason = "a case that cannot go on has failed")]

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use dalsegno_protocol::{Boundary, RawValue, Usage};
use dalsegno_store::keys::{KeyProvider, MountedKeys};
use dalsegno_store::{
    Commit, Committed, Created, Deadlines, Identity, NewFinish, NewRun, OnPrior, PodRecord, RunOutcome,
    Store, Verdict, migrate, open_beside,
};
use tempfile::TempDir;
use uuid::Uuid;

const RUN: &str = "default/agent";

/// A store in a folder, and keys beside it.
struct Place(TempDir);

impl Place {
    fn new() -> Self {
        let place = Self(tempfile::tempdir().unwrap());
        std::fs::create_dir(place.path("keys")).unwrap();
        place.key("k1", "YSBrZXkgb2YgdGhlc2UgdGVzdHMsIDMyIGJ5dGVzISE=");
        place
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).display().to_string()
    }

    fn key(&self, id: &str, text: &str) {
        std::fs::write(Path::new(&self.path("keys")).join(id), text).unwrap();
    }

    fn url(&self) -> String {
        format!("sqlite://{}", self.path("runs.db"))
    }

    /// Beside whoever holds the lock: the programs of the other cases inherit it until they run.
    async fn store(&self) -> Arc<dyn Store> {
        let keys = MountedKeys::open(Path::new(&self.path("keys"))).unwrap();
        migrate(&self.url()).await.unwrap();
        open_beside(&self.url(), Some(Arc::new(keys) as Arc<dyn KeyProvider>)).await.unwrap()
    }

    /// Carries out a verb: whether it succeeded, and all that it told.
    fn dalsegno(&self, verb: &[&str], keys: bool) -> (bool, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_dalsegno"));
        command.args(verb).env_clear().env("DALSEGNO_DATABASE_URL", self.url()).env("USER", "ada");
        if keys {
            command.env("DALSEGNO_ENCRYPTION_KEYS", self.path("keys"));
        }
        let output = command.output().unwrap();
        let told = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap()).concat();
        (output.status.success(), told)
    }
}

/// A run of one turn; its last boundary is its finish, if it is to be over.
async fn run(store: &dyn Store, finished: bool) {
    let new = NewRun {
        id: Uuid::now_v7(),
        tenant: "uid-default".into(),
        namespace: "default".into(),
        name: "agent".into(),
        object_uid: Uuid::new_v4().to_string(),
        reset_generation: 0,
        deadlines: Deadlines { heartbeat_ms: 15_000, start_ms: 600_000, progress_ms: 1_800_000 },
        on_prior: OnPrior::Ignore,
    };
    let Created::Run(record) = store.create_run(&new).await.unwrap() else {
        panic!("what was there is ignored");
    };
    let identity = Identity {
        image_digest: format!("sha256:{}", "1".repeat(64)),
        agent_version: "1".into(),
        verdict: Verdict::Accepted,
        remark: String::new(),
    };
    let pod = PodRecord {
        uid: record.id.to_string(),
        name: "agent-1".into(),
        revision: "1".into(),
        identity: Some(identity),
    };
    store.record_pod(record.id, 1, &pod).await.unwrap();
    store.attach(record.id, &pod.uid, &[1; 32]).await.unwrap();
    let finish = NewFinish {
        outcome: RunOutcome::Succeeded,
        reason: "Done".into(),
        message: String::new(),
        output: None,
    };
    let commit = Commit {
        run: record.id,
        capability: [1; 32],
        turn: 1,
        boundary: Boundary::Result,
        commit_id: Uuid::new_v4(),
        digest: [2; 32],
        ops: Some(br#"{"full":true,"set":{"state":{"json":"a secret"}}}"#.to_vec()),
        full: true,
        base: None,
        events: vec![RawValue::from_string(r#""an event""#.into()).unwrap()],
        calls: Vec::new(),
        records: Vec::new(),
        usage: Usage::default(),
        trigger: None,
        finish: finished.then_some(finish),
    };
    assert!(matches!(store.commit(&commit).await.unwrap(), Committed::Ok(_)));
}

#[tokio::test]
async fn an_encrypted_run_is_shown_with_its_keys_and_without_them_a_person_learns_what_to_do() {
    let place = Place::new();
    run(&*place.store().await, false).await;
    let (shown, text) = place.dalsegno(&["show", RUN, "--turn", "1"], true);
    assert!(shown && text.contains("a secret") && text.contains("an event"), "{text}");
    for verb in [&["show", RUN][..], &["verify", RUN], &["audit", "verify"], &["export", RUN]] {
        let (done, text) = place.dalsegno(verb, false);
        assert!(!done && text.contains("--encryption-keys"), "{verb:?}: {text}");
    }
    let (done, text) = place.dalsegno(&["show", RUN, "--encryption-keys", "/nowhere"], false);
    assert!(!done && text.contains("/nowhere"), "{text}");
    let bytes = std::fs::read(place.path("runs.db")).unwrap();
    assert!(!bytes.windows(8).any(|bytes| bytes == b"a secret"));
}

#[tokio::test]
async fn keys_are_rotated_and_the_old_one_can_go() {
    let place = Place::new();
    run(&*place.store().await, false).await;
    place.key("k2", "QW5vdGhlciBrZXkgb2YgdGhlc2UgdGVzdHMsIGhlcmU=");
    let (done, text) = place.dalsegno(&["keys", "rewrap"], true);
    assert!(!done && text.contains("\"current\""), "{text}");
    place.key("current", "k2");
    let (done, text) = place.dalsegno(&["keys", "rewrap"], true);
    assert!(done && text.contains("another one did before: 1"), "{text}");
    std::fs::remove_file(Path::new(&place.path("keys")).join("k1")).unwrap();
    let (done, text) = place.dalsegno(&["verify", RUN], true);
    assert!(done && text.contains("0 problems"), "{text}");
    let (done, text) = place.dalsegno(&["keys", "rewrap"], false);
    assert!(!done && text.contains("--encryption-keys"), "{text}");
}

#[tokio::test]
async fn a_run_is_shredded_once_it_is_over_and_everybody_says_so() {
    let place = Place::new();
    let store = place.store().await;
    run(&*store, false).await;
    let shred = ["keys", "shred", RUN, "--reason", "its user asked for it"];
    let (done, text) = place.dalsegno(&shred, true);
    assert!(!done && text.contains("the run lives"), "{text}");
    run(&*store, true).await;
    drop(store);
    let bundle = place.path("before.jsonl");
    assert!(place.dalsegno(&["export", RUN, "--output", &bundle], true).0);
    let (done, text) = place.dalsegno(&shred, true);
    assert!(done && text.contains("a backup of the database"), "{text}");

    let (shown, text) = place.dalsegno(&["show", RUN], true);
    assert!(shown && !text.contains("an event"), "{text}");
    let (shown, text) = place.dalsegno(&["show", RUN, "--turn", "1"], true);
    assert!(!shown && text.contains("shredded"), "{text}");
    for verb in [&["verify", RUN][..], &["audit", "verify"]] {
        let (done, text) = place.dalsegno(verb, true);
        assert!(done && text.contains("shredded"), "{verb:?}: {text}");
    }
    let after = place.path("after.jsonl");
    assert!(place.dalsegno(&["export", RUN, "--output", &after], true).0);
    let (done, text) = place.dalsegno(&["verify", &after], false);
    assert!(done && text.contains("was shredded before it was exported"), "{text}");
    let (done, text) = place.dalsegno(&["verify", &bundle, "--turn", "1"], false);
    assert!(done && text.contains("a secret"), "a bundle from before holds the contents: {text}");
}
