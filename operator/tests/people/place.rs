//! A store, a run in it, and the program.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use dalsegno_protocol::{Boundary, RawValue, Usage};
use dalsegno_store::keys::{KeyProvider, MountedKeys};
use dalsegno_store::{
    Commit, Committed, Created, Deadlines, Identity, NewFinish, NewRun, OnPrior, PodRecord, RunId,
    RunOutcome, Store, Verdict, migrate, open_beside,
};
use sqlx::{Connection as _, Executor as _, SqliteConnection};
use tempfile::TempDir;
use uuid::Uuid;

/// The run of these cases.
pub const RUN: &str = "default/agent";

/// A store, and a folder with keys beside it.
pub struct Place {
    folder: TempDir,
    /// The store's; for SQLite a file in the folder.
    pub url: String,
}

impl Place {
    /// With SQLite.
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite://{}", folder.path().join("runs.db").display());
        Self::of(folder, url)
    }

    /// With this database.
    pub fn at(url: String) -> Self {
        Self::of(tempfile::tempdir().unwrap(), url)
    }

    fn of(folder: TempDir, url: String) -> Self {
        let place = Self { folder, url };
        std::fs::create_dir(place.path("keys")).unwrap();
        place.key("k1", "YSBrZXkgb2YgdGhlc2UgdGVzdHMsIDMyIGJ5dGVzISE=");
        place
    }

    /// A file of the folder.
    pub fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    /// Puts a key there.
    pub fn key(&self, id: &str, text: &str) {
        std::fs::write(Path::new(&self.path("keys")).join(id), text).unwrap();
    }

    /// Beside whoever holds the lock: the programs of the other cases inherit it until they run.
    pub async fn store(&self) -> Arc<dyn Store> {
        migrate(&self.url).await.unwrap();
        self.store_as_it_is().await
    }

    /// The same, of which the schema is there.
    pub async fn store_as_it_is(&self) -> Arc<dyn Store> {
        let keys = MountedKeys::open(Path::new(&self.path("keys"))).unwrap();
        open_beside(&self.url, Some(Arc::new(keys) as Arc<dyn KeyProvider>)).await.unwrap()
    }

    /// Changes SQLite's rows behind the store's back.
    pub async fn edit(&self, sql: &'static str) {
        SqliteConnection::connect(&self.url).await.unwrap().execute(sql).await.unwrap();
    }

    /// Carries out a verb: whether it succeeded, and all that it told.
    pub fn dalsegno(&self, verb: &[&str], keys: bool) -> (bool, String) {
        self.dalsegno_with(Stdio::null(), verb, keys)
    }

    /// The same, with this standard input.
    pub fn dalsegno_with(&self, input: impl Into<Stdio>, verb: &[&str], keys: bool) -> (bool, String) {
        let output = self.command(verb, keys).stdin(input).output().unwrap();
        let told = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap()).concat();
        (output.status.success(), told)
    }

    /// The verb, not begun yet.
    pub fn command(&self, verb: &[&str], keys: bool) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_dalsegno"));
        command.args(verb).env_clear().env("DALSEGNO_DATABASE_URL", &self.url).env("USER", "ada");
        if keys {
            command.env("DALSEGNO_ENCRYPTION_KEYS", self.path("keys"));
        }
        command
    }
}

/// A run of one turn; its last boundary is its finish, if it is to be over.
pub async fn run(store: &dyn Store, finished: bool) -> RunId {
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
    let commit = Commit {
        full: true,
        events: vec![RawValue::from_string(r#""an event""#.into()).unwrap()],
        finish: finished.then(finish),
        ..turn(record.id, 1, r#"{"full":true,"set":{"state":{"json":"a secret"}}}"#)
    };
    assert!(matches!(store.commit(&commit).await.unwrap(), Committed::Ok(_)));
    record.id
}

/// How it ends.
pub fn finish() -> NewFinish {
    let (outcome, reason) = (RunOutcome::Succeeded, "Done".into());
    NewFinish { outcome, reason, message: String::new(), output: None }
}

/// A turn of that run, with these channel operations.
pub fn turn(run: RunId, turn: i32, ops: &str) -> Commit {
    Commit {
        run,
        capability: [1; 32],
        turn,
        boundary: Boundary::Result,
        commit_id: Uuid::new_v4(),
        digest: [2; 32],
        ops: Some(ops.into()),
        full: false,
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
