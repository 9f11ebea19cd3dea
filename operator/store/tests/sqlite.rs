//! What is specific to SQLite: the file, its lock, its readers. The cases of every engine are in `conformance`.
#![allow(clippy::unwrap_used, reason = "a case that cannot go on has failed")]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use dalsegno_model::{
    Attached, Commit, Committed, Created, Deadlines, Error, Identity, LookUp, NewRun, OnPrior, Operator as _,
    PodRecord, Read as _, RequestedBy, RunId, RunRecord, Store, Verdict, Worker as _,
};
use dalsegno_protocol::{Boundary, Usage};
use dalsegno_store::sqlite::Sqlite;
use dalsegno_store::{migrate, open, open_beside, open_read_only};
use sqlx::{Connection as _, Executor as _, SqliteConnection};
use tempfile::TempDir;
use uuid::Uuid;

/// A migrated database in a new directory.
async fn database() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("runs.db");
    Sqlite::migrate(&path).await.unwrap();
    (dir, path)
}

/// A run with an attached worker.
async fn working_run(store: &dyn Store) -> RunId {
    let id = Uuid::now_v7();
    let new = NewRun {
        id,
        tenant: "tenant".into(),
        namespace: "agents".into(),
        name: "run".into(),
        object_uid: "object".into(),
        reset_generation: 0,
        rewind_generation: 0,
        is_fork: false,
        is_external: false,
        deadlines: Deadlines { heartbeat_ms: 1_000, start_ms: 1_000, progress_ms: 1_000, suspend_ms: 1_000 },
        on_prior: OnPrior::Hold,
    };
    assert!(matches!(store.create_run(&new).await.unwrap(), Created::Run(_)));
    let accepted = Identity {
        in_registry: Some(true),
        image_digest: "sha256:1".into(),
        agent_version: "v1".into(),
        verdict: Verdict::Accepted,
        remark: String::new(),
    };
    let pod =
        PodRecord { uid: "pod".into(), name: "run-1".into(), revision: "r".into(), identity: Some(accepted) };
    store.record_pod(id, 1, &pod).await.unwrap();
    assert!(matches!(store.attach(id, "pod", &[7; 32]).await.unwrap(), Attached::Ok(_)));
    id
}

fn turn(run: RunId, turn: i32) -> Commit {
    Commit {
        run,
        capability: [7; 32],
        turn,
        boundary: Boundary::Result,
        commit_id: Uuid::now_v7(),
        digest: [1; 32],
        ops: Some(format!(r#"{{"full":true,"set":{{"state":{{"json":{turn}}}}}}}"#).into()),
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

async fn commit(store: &dyn Store, run: RunId, number: i32) {
    assert!(matches!(store.commit(&turn(run, number)).await.unwrap(), Committed::Ok(_)), "turn {number}");
}

async fn find_run(store: &dyn Store) -> RunRecord {
    match store.find_by_object("object").await.unwrap() {
        LookUp::Found(run) => *run,
        LookUp::NotFound { .. } => panic!("the run is gone"),
    }
}

fn refusal<T>(outcome: Result<T, Error>) -> String {
    match outcome {
        Err(Error::Unusable(why)) => why,
        Err(other) => panic!("{other:?}"),
        Ok(_) => panic!("not refused"),
    }
}

fn url(path: &Path) -> String {
    format!("sqlite://{}", path.display())
}

#[tokio::test]
async fn a_reopened_store_returns_the_same_rows() {
    let (_dir, path) = database().await;
    let store = Sqlite::open(&path).await.unwrap();
    let run = working_run(&store).await;
    for number in 1..=3 {
        commit(&store, run, number).await;
    }
    let before = find_run(&store).await;
    let (id, audit) = (store.id().await.unwrap(), store.audit(run).await.unwrap());
    store.close().await;

    let store = Sqlite::open(&path).await.unwrap();
    let after = find_run(&store).await;
    assert!(after.now >= before.now);
    let (now, beat, outages) = (before.now, before.beat, before.outages.clone());
    assert_eq!(RunRecord { now, beat, outages, ..after }, before);
    assert_eq!((store.id().await.unwrap(), store.audit(run).await.unwrap()), (id, audit));
    assert_eq!(store.boundaries(run, 1, 9).await.unwrap().len(), 3);
    assert!(matches!(store.commit(&turn(run, 4)).await.unwrap(), Committed::Ok(_)), "its worker continues");
}

#[tokio::test]
async fn a_restarted_process_restarts_every_clock() {
    let (_dir, path) = database().await;
    let store = Sqlite::open(&path).await.unwrap();
    working_run(&store).await;
    store.record_gateway_heartbeat().await.unwrap();
    let before = find_run(&store).await;
    store.record_gateway_heartbeat().await.unwrap();
    assert_eq!(
        find_run(&store).await.beat.since,
        before.beat.since,
        "the clocks continue while the process serves"
    );
    store.close().await;

    let store = Sqlite::open(&path).await.unwrap();
    let started = find_run(&store).await.beat;
    assert!(started.since >= before.now && started.since > before.beat.since, "{started:?}");
    assert!(started.gap_from >= before.beat.last && started.gap_from <= started.since, "{started:?}");
}

#[tokio::test]
async fn acknowledged_commits_survive_a_kill() {
    let (_dir, path) = database().await;
    let store = Sqlite::open(&path).await.unwrap();
    let run = working_run(&store).await;
    commit(&store, run, 1).await;
    // A killed process leaves what a copy of the files of an open store contains.
    let crashed = tempfile::tempdir().unwrap();
    let copy = crashed.path().join("runs.db");
    for suffix in ["", "-wal"] {
        let name = |path: &Path| format!("{}{suffix}", path.display());
        std::fs::copy(name(&path), name(&copy)).unwrap();
    }
    let recovered = Sqlite::open(&copy).await.unwrap();
    assert_eq!(find_run(&recovered).await.head, find_run(&store).await.head);
}

#[tokio::test]
async fn only_one_process_serves_at_a_time() {
    let (_dir, path) = database().await;
    let first = Sqlite::open(&path).await.unwrap();
    let why = refusal(Sqlite::open(&path).await);
    assert!(why.contains("runs.db.lock") && why.contains("another process"), "{why}");
    refusal(Sqlite::migrate(&path).await);
    first.close().await;
    Sqlite::open(&path).await.unwrap();
}

#[tokio::test]
async fn a_closed_store_is_unavailable() {
    let (_dir, path) = database().await;
    let store = Sqlite::open(&path).await.unwrap();
    store.close().await;
    store.close().await;
    let outcome = store.record_gateway_heartbeat().await;
    assert!(matches!(outcome, Err(Error::Unavailable { .. })), "{outcome:?}");
    let outcome = store.find_by_object("object").await;
    assert!(matches!(outcome, Err(Error::Unavailable { .. })), "{outcome:?}");
}

#[tokio::test]
async fn readers_work_during_and_after_a_writer() {
    let (_dir, path) = database().await;
    let writer = Sqlite::open(&path).await.unwrap();
    let run = working_run(&writer).await;
    commit(&writer, run, 1).await;
    let reader = open_read_only(&url(&path), None).await.unwrap();
    assert_eq!(find_run(&*reader).await.head.unwrap().turn, 1);
    commit(&writer, run, 2).await;
    assert_eq!(find_run(&*reader).await.head.unwrap().turn, 2, "a reader sees what was committed since");
    assert!(reader.state(run, None).await.unwrap().is_some());
    let why = refusal(reader.commit(&turn(run, 3)).await);
    assert!(why.contains("reading only"), "{why}");
    refusal(reader.record_gateway_heartbeat().await);
    writer.close().await;
    assert_eq!(find_run(&*reader).await.head.unwrap().turn, 2);
    let late = open_read_only(&url(&path), None).await.unwrap();
    assert_eq!(find_run(&*late).await.head.unwrap().turn, 2, "also without a writer");
}

#[tokio::test]
async fn a_short_write_works_while_another_process_serves() {
    let (_dir, path) = database().await;
    let serving = open(&url(&path), None).await.unwrap();
    let run = working_run(&*serving).await;
    let beside = open_beside(&url(&path), None).await.unwrap();
    let (commits, requested_by) = tokio::join!(
        async {
            for number in 1..=50 {
                commit(&*serving, run, number).await;
            }
        },
        async { beside.request_cancel(run, &RequestedBy::default()).await },
    );
    let () = commits;
    assert!(requested_by.unwrap().cancel.is_some());
    let after = find_run(&*serving).await;
    assert_eq!((after.head.unwrap().turn, after.cancel.is_some()), (50, true), "both writes are stored");
}

#[tokio::test]
async fn an_unmigrated_database_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("runs.db");
    refusal(Sqlite::open(&path).await);
    refusal(Sqlite::open_read_only(&path).await);
    assert!(!path.exists(), "a wrong path creates no database");
    SqliteConnection::connect(&format!("sqlite://{}?mode=rwc", path.display()))
        .await
        .unwrap()
        .close()
        .await
        .unwrap();
    let why = refusal(Sqlite::open(&path).await);
    assert!(why.contains("migrate"), "{why}");
    migrate(&url(&path)).await.unwrap();
    migrate(&url(&path)).await.unwrap();
    open(&url(&path), None).await.unwrap();
}

#[tokio::test]
async fn a_newer_schema_is_refused_unless_it_is_readable_since_this_version() {
    let (_dir, path) = database().await;
    let mut conn = SqliteConnection::connect(&url(&path)).await.unwrap();
    conn.execute(
        "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time) \
         VALUES (999, 'from the future', TRUE, x'00', 0)",
    )
    .await
    .unwrap();
    // The schema says that this binary can use it.
    open_read_only(&url(&path), None).await.unwrap();
    Sqlite::open(&path).await.unwrap().close().await;
    migrate(&url(&path)).await.unwrap();
    conn.execute("UPDATE store SET readable_since = 999").await.unwrap();
    conn.close().await.unwrap();
    for why in [
        refusal(Sqlite::open(&path).await),
        refusal(Sqlite::open_read_only(&path).await),
        refusal(Sqlite::migrate(&path).await),
    ] {
        assert!(why.contains("newer"), "{why}");
    }
}

#[tokio::test]
async fn a_store_of_an_earlier_development_build_is_refused() {
    let (_dir, path) = database().await;
    let mut conn = SqliteConnection::connect(&url(&path)).await.unwrap();
    conn.execute("UPDATE _sqlx_migrations SET description = 'runs'").await.unwrap();
    conn.close().await.unwrap();
    for why in [
        refusal(Sqlite::open(&path).await),
        refusal(Sqlite::open_read_only(&path).await),
        refusal(Sqlite::migrate(&path).await),
    ] {
        assert!(why.contains("an earlier development build"), "{why}");
        assert!(why.contains("start with an empty database"), "{why}");
    }
}

#[tokio::test]
async fn every_store_has_its_own_id() {
    let (_dir, path) = database().await;
    let first = Sqlite::open(&path).await.unwrap().id().await.unwrap();
    let second = Sqlite::memory().await.unwrap().id().await.unwrap();
    assert_ne!(first, second);
    assert_eq!((first.get_version_num(), second.get_version_num()), (4, 4));
}

#[tokio::test]
async fn every_read_finds_a_damaged_chain() {
    let edits = [
        "UPDATE boundaries SET ops = x'007b7d' WHERE turn = 2",
        "UPDATE boundaries SET at = at + 1 WHERE turn = 2",
        "UPDATE boundaries SET tokens_in = 1 WHERE turn = 1",
        "UPDATE boundaries SET content_hash = zeroblob(32) WHERE turn = 3",
        "UPDATE boundaries SET parent_turn = 3 WHERE turn = 3",
        "UPDATE boundaries SET ops = x'01ff' WHERE turn = 1",
        "DELETE FROM boundaries WHERE turn = 3",
        "DELETE FROM boundaries WHERE turn = 1",
        "UPDATE runs SET head_hash = zeroblob(32)",
    ];
    for edit in edits {
        let (_dir, path) = database().await;
        let store = Sqlite::open(&path).await.unwrap();
        let run = working_run(&store).await;
        for number in 1..=3 {
            let delta = format!(r#"{{"append":{{"log":[{{"json":{number}}}]}}}}"#);
            let commit = Commit { ops: Some(delta.into()), full: false, ..turn(run, number) };
            store.commit(&commit).await.unwrap();
        }
        assert!(store.state(run, None).await.unwrap().is_some());
        let mut conn = SqliteConnection::connect(&url(&path)).await.unwrap();
        conn.execute(edit).await.unwrap();
        let state = store.state(run, None).await;
        assert!(matches!(state, Err(Error::Corrupt { .. })), "{edit}: {state:?}");
        let rows = store.boundaries(run, 1, 3).await;
        assert!(matches!(rows, Err(Error::Corrupt { .. })), "{edit}: {rows:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_abandoned_call_does_not_stop_the_others() {
    let (_dir, path) = database().await;
    let store = Arc::new(Sqlite::open(&path).await.unwrap());
    let run = working_run(&*store).await;
    let mut callers = Vec::new();
    for _ in 0..100 {
        let store = Arc::clone(&store);
        callers.push(tokio::spawn(async move { store.record_gateway_heartbeat().await }));
    }
    for caller in callers.iter().step_by(2) {
        caller.abort();
    }
    commit(&*store, run, 1).await;
    for caller in callers {
        if let Ok(outcome) = caller.await {
            outcome.unwrap();
        }
    }
}

/// Makes the schema the one of the third migration.
const SCHEMA_3: &str = "DELETE FROM _sqlx_migrations WHERE version > 3; \
     DROP INDEX runs_to_compact; DROP INDEX runs_to_expire; ALTER TABLE runs DROP COLUMN compacted_keep_last; \
     ALTER TABLE attempts DROP COLUMN image_in_registry; \
     ALTER TABLE runs DROP COLUMN suspend_requested_at; ALTER TABLE runs DROP COLUMN suspend_told_at; \
     ALTER TABLE runs DROP COLUMN suspend_ms; ALTER TABLE runs DROP COLUMN park_id; \
     DROP TABLE waits; ALTER TABLE runs DROP COLUMN last_wait; ALTER TABLE runs DROP COLUMN open_waits; \
     ALTER TABLE runs DROP COLUMN open_wait_bytes; ALTER TABLE runs DROP COLUMN parked_on; \
     ALTER TABLE runs DROP COLUMN park_mode; ALTER TABLE runs DROP COLUMN parked_at; \
     ALTER TABLE runs DROP COLUMN parks_without_progress; ALTER TABLE runs DROP COLUMN wake_at; \
     DROP TABLE messages; ALTER TABLE runs DROP COLUMN inbox; ALTER TABLE runs DROP COLUMN unread; \
     ALTER TABLE runs DROP COLUMN unread_bytes; \
     ALTER TABLE runs DROP COLUMN limit_turns; ALTER TABLE runs DROP COLUMN limit_tokens; \
     ALTER TABLE runs DROP COLUMN limit_cost; ALTER TABLE runs DROP COLUMN limit_active_ms; \
     ALTER TABLE runs DROP COLUMN limit_reached_at; ALTER TABLE runs DROP COLUMN active_ms; \
     DROP TABLE outbox; ALTER TABLE runs DROP COLUMN limits_near; ALTER TABLE runs DROP COLUMN announced; \
     ALTER TABLE runs DROP COLUMN observed_rewind_generation; ALTER TABLE runs DROP COLUMN rewind_result; \
     ALTER TABLE runs DROP COLUMN fork_state; ALTER TABLE runs DROP COLUMN fork_parent; \
     ALTER TABLE runs DROP COLUMN fork_turn; ALTER TABLE runs DROP COLUMN fork_epoch; \
     ALTER TABLE runs DROP COLUMN fork_hash; ALTER TABLE runs DROP COLUMN fork_space; \
     ALTER TABLE runs DROP COLUMN fork_key; ALTER TABLE runs DROP COLUMN fork_seq; \
     ALTER TABLE boundaries DROP COLUMN forked_run; ALTER TABLE boundaries DROP COLUMN forked_turn; \
     ALTER TABLE boundaries DROP COLUMN forked_hash; ALTER TABLE runs DROP COLUMN snapshot_every; \
     ALTER TABLE runs DROP COLUMN external; \
     ALTER TABLE calls DROP COLUMN tool; DROP INDEX calls_spent; ALTER TABLE calls DROP COLUMN spent_at; \
     ALTER TABLE calls DROP COLUMN tokens_in; ALTER TABLE calls DROP COLUMN tokens_out; \
     ALTER TABLE calls DROP COLUMN tool_calls; ALTER TABLE calls DROP COLUMN cost_micro_usd; \
     CREATE INDEX runs_to_clear ON runs (id) WHERE keep_last IS NOT NULL AND expired_at IS NULL;";

#[tokio::test]
async fn a_migration_copies_the_database_first_and_loses_no_run() {
    let (dir, path) = database().await;
    let store = Sqlite::open(&path).await.unwrap();
    let run = working_run(&store).await;
    commit(&store, run, 1).await;
    store.close().await;
    let mut conn = SqliteConnection::connect(&url(&path)).await.unwrap();
    conn.execute(SCHEMA_3).await.unwrap();
    conn.close().await.unwrap();
    let copy = dir.path().join("runs.db.schema-3");
    std::fs::write(dir.path().join("runs.db.schema-2"), "of an earlier migration").unwrap();
    std::fs::write(&copy, "of the same migration, before a rollback").unwrap();
    std::fs::write(dir.path().join("runs.db.schema-3.partial"), "of a migration that was interrupted")
        .unwrap();

    Sqlite::migrate(&path).await.unwrap();
    let files = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name());
    let mut files: Vec<_> = files.map(|name| name.into_string().unwrap()).collect();
    files.retain(|name| name.contains("schema-"));
    assert_eq!(files, ["runs.db.schema-3"], "earlier copies are deleted");
    let mut before = SqliteConnection::connect(&url(&copy)).await.unwrap();
    let seen: (i64, i64) =
        sqlx::query_as("SELECT (SELECT max(version) FROM _sqlx_migrations), head_turn FROM runs")
            .fetch_one(&mut before)
            .await
            .unwrap();
    assert_eq!(seen, (3, 1));
    let store = Sqlite::open(&path).await.unwrap();
    assert_eq!(find_run(&store).await.head.unwrap().turn, 1);
    commit(&store, run, 2).await;
    store.close().await;

    // Nothing is left to migrate, and so nothing is copied.
    std::fs::remove_file(&copy).unwrap();
    Sqlite::migrate(&path).await.unwrap();
    assert!(!copy.exists());
}
