//! A store with a run, and the program.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use dalsegno_model::{
    Commit, Committed, Created, Deadlines, Identity, NewFinish, NewRun, OnPrior, PodRecord, RunId,
    RunOutcome, Store, Verdict,
};
use dalsegno_protocol::{Boundary, RawValue, Usage};
use dalsegno_store::keys::{KeyProvider, MountedKeys};
use dalsegno_store::{migrate, open_beside};
use sqlx::{Connection as _, Executor as _, SqliteConnection};
use tempfile::TempDir;
use uuid::Uuid;

/// Name of the run.
pub const RUN: &str = "default/agent";

/// A store, and a folder with encryption keys.
pub struct TestContext {
    folder: TempDir,
    /// URL of the database. For SQLite it is a file in the folder.
    pub url: String,
}

impl TestContext {
    /// With a SQLite database.
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
        let context = Self { folder, url };
        std::fs::create_dir(context.path("keys")).unwrap();
        context.key("k1", "YSBrZXkgb2YgdGhlc2UgdGVzdHMsIDMyIGJ5dGVzISE=");
        context
    }

    /// Path of a file in the folder.
    pub fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    /// Writes an encryption key.
    pub fn key(&self, id: &str, text: &str) {
        std::fs::write(Path::new(&self.path("keys")).join(id), text).unwrap();
    }

    /// Migrates and opens the store, next to a process that may hold its lock: child processes of other tests inherit the
    /// lock until they execute the program.
    pub async fn store(&self) -> Arc<dyn Store> {
        migrate(&self.url).await.unwrap();
        self.migrated_store().await
    }

    /// Opens the store without a migration.
    pub async fn migrated_store(&self) -> Arc<dyn Store> {
        let keys = MountedKeys::open(Path::new(&self.path("keys"))).unwrap();
        open_beside(&self.url, Some(Arc::new(keys) as Arc<dyn KeyProvider>)).await.unwrap()
    }

    /// Changes rows of SQLite directly.
    pub async fn execute(&self, sql: &'static str) {
        SqliteConnection::connect(&self.url).await.unwrap().execute(sql).await.unwrap();
    }

    /// Runs a command. Returns whether it succeeded, and its output on both streams.
    pub fn run(&self, args: &[&str], keys: bool) -> (bool, String) {
        self.run_with_input(Stdio::null(), args, keys)
    }

    /// The same, with this standard input.
    pub fn run_with_input(&self, input: impl Into<Stdio>, args: &[&str], keys: bool) -> (bool, String) {
        let output = self.command(args, keys).stdin(input).output().unwrap();
        let text = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap()).concat();
        (output.status.success(), text)
    }

    /// The command, not started yet. `keys`: pass the encryption keys.
    pub fn command(&self, args: &[&str], keys: bool) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_dalsegno"));
        command.args(args).env_clear().env("DALSEGNO_DATABASE_URL", &self.url).env("USER", "ada");
        if keys {
            command.env("DALSEGNO_ENCRYPTION_KEYS", self.path("keys"));
        }
        command
    }
}

/// Creates a run of one turn, which may finish it.
pub async fn create_run(store: &dyn Store, finished: bool) -> RunId {
    let new = NewRun {
        id: Uuid::now_v7(),
        tenant: "uid-default".into(),
        namespace: "default".into(),
        name: "agent".into(),
        object_uid: Uuid::new_v4().to_string(),
        reset_generation: 0,
        rewind_generation: 0,
        is_fork: false,
        is_external: false,
        deadlines: Deadlines {
            heartbeat_ms: 15_000,
            start_ms: 600_000,
            progress_ms: 1_800_000,
            suspend_ms: 300_000,
        },
        on_prior: OnPrior::Ignore,
    };
    let Created::Run(record) = store.create_run(&new).await.unwrap() else {
        panic!("an earlier run is ignored");
    };
    let identity = Identity {
        in_registry: Some(true),
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

/// The finish of a run.
pub fn finish() -> NewFinish {
    let (outcome, reason) = (RunOutcome::Succeeded, "Done".into());
    NewFinish { outcome, reason, message: String::new(), output: None }
}

/// A turn of a run, with these channel operations.
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
        open_calls: Vec::new(),
        records: Vec::new(),
        inbox: Vec::new(),
        usage: Usage::default(),
        trigger: None,
        finish: None,
        park: None,
    }
}
