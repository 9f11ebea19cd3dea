//! Encryption at rest, on both databases: what stands there, what opens it, and what nobody opens any more.
#![allow(clippy::unwrap_used, reason = "a case that cannot go on has failed")]

#[path = "../support/both.rs"]
mod both;
#[path = "../support/keys.rs"]
mod keys;
#[path = "../support/pg.rs"]
mod pg;
#[allow(dead_code)]
#[path = "../conformance/world.rs"]
mod world;

mod at_rest;
mod expiry;
mod formats;
mod keep_last;
mod late;
mod rotation;
mod shredding;
mod switched_on;

use std::sync::Arc;

use both::on_both;
use dalsegno_protocol::{Payload, PlannedCall, Policy, RecordOp};
use dalsegno_store::proof::bundle::Export;
use dalsegno_store::proof::{Anchors, Problem, Signer, Summary, check_store};
use dalsegno_store::{Base, Commit, RecordBatch, RunId, Store, Written, fold, header, migrate, open_beside};
use jiff::Timestamp;
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection, SqliteConnection};
use tempfile::TempDir;
use uuid::Uuid;
use world::{Worker, World, json, ok, random};

/// What a worker writes, in every place where it can.
const CANARY: &str = "canary of the worker";

/// A database, and a folder with keys.
pub struct Face {
    url: String,
    keys: TempDir,
    _dir: TempDir,
}

impl Face {
    async fn file() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let url = format!("sqlite://{}", dir.path().join("runs.db").display());
        migrate(&url).await.unwrap();
        Self { url, keys: keys::folder(), _dir: dir }
    }

    async fn postgres() -> Self {
        Self { url: pg::database().await, keys: keys::folder(), _dir: tempfile::tempdir().unwrap() }
    }

    /// The store with the keys that are there now: another process, which has looked nothing up.
    async fn sealed(&self) -> World {
        World::new(open_beside(&self.url, keys::shared(&self.keys)).await.unwrap(), ()).sealed()
    }

    /// The store as a process without keys has it.
    async fn plain(&self) -> World {
        World::new(open_beside(&self.url, None).await.unwrap(), ())
    }

    /// Edits rows; at least one must be hit.
    async fn edit(&self, sql: &str) {
        let sql = AssertSqlSafe(sql.to_owned());
        let hit = if self.is_postgres() {
            PgConnection::connect(&self.url).await.unwrap().execute(sql).await.unwrap().rows_affected()
        } else {
            SqliteConnection::connect(&self.url).await.unwrap().execute(sql).await.unwrap().rows_affected()
        };
        assert!(hit > 0);
    }

    /// What the database tells: a text.
    async fn ask(&self, sql: &str) -> String {
        let sql = AssertSqlSafe(sql.to_owned());
        if self.is_postgres() {
            let mut conn = PgConnection::connect(&self.url).await.unwrap();
            sqlx::query_scalar(sql).fetch_one(&mut conn).await.unwrap()
        } else {
            let mut conn = SqliteConnection::connect(&self.url).await.unwrap();
            sqlx::query_scalar(sql).fetch_one(&mut conn).await.unwrap()
        }
    }

    /// A session that stays open.
    async fn session(&self) -> Session {
        if self.is_postgres() {
            Session::Postgres(PgConnection::connect(&self.url).await.unwrap())
        } else {
            Session::Sqlite(SqliteConnection::connect(&self.url).await.unwrap())
        }
    }

    fn is_postgres(&self) -> bool {
        self.url.starts_with("postgres")
    }
}

/// Somebody's own connection.
enum Session {
    Postgres(PgConnection),
    Sqlite(SqliteConnection),
}

impl Session {
    async fn execute(&mut self, sql: &'static str) {
        match self {
            Self::Postgres(conn) => drop(conn.execute(sql).await.unwrap()),
            Self::Sqlite(conn) => drop(conn.execute(sql).await.unwrap()),
        }
    }
}

/// A turn that writes the canary wherever a worker can.
fn turn(worker: &Worker, turn: i32) -> Commit {
    let text = format!(r#"{{"append":{{"log":[{{"json":"{CANARY} {turn}"}}]}}}}"#);
    Commit {
        ops: Some(text.into_bytes()),
        full: false,
        events: vec![json(&format!(r#""{CANARY} {turn}""#))],
        calls: vec![PlannedCall {
            id: format!("call-{turn}"),
            policy: Policy::RetrySameKey,
            key: format!("key-{turn}"),
            arguments: Some(json(&format!(r#""{CANARY}""#))),
        }],
        records: vec![put("k")],
        ..worker.result(turn)
    }
}

fn put(key: &str) -> RecordOp {
    RecordOp::Put {
        space: "s".into(),
        key: key.into(),
        value: Payload::Json(json(&format!(r#""{CANARY}""#))),
    }
}

fn batch(worker: &Worker) -> RecordBatch {
    let Worker { run, capability, .. } = *worker;
    RecordBatch { run, capability, batch_id: Uuid::new_v4(), digest: random(), operations: vec![put("b")] }
}

/// A worker that has written a canary wherever it can: turns up to this one, and a snapshot.
async fn worked(world: &World, turns: i32) -> Worker {
    let worker = world.worker().await;
    work(world, &worker, 1..=turns).await;
    worker
}

async fn work(world: &World, worker: &Worker, turns: std::ops::RangeInclusive<i32>) {
    for number in turns {
        ok(world.commit(&turn(worker, number)).await.unwrap());
    }
    assert_eq!(world.write_records(&batch(worker)).await.unwrap(), Written::Ok);
    let claim = world.start_call(worker, &format!("claimed-{}", Uuid::new_v4()), Policy::Probe).await;
    world.complete(&worker.complete(&claim)).await.unwrap();
    world.snapshot(worker.run).await.unwrap();
}

/// Turns of a client that sends its whole state, each kept as a patch of the one before; and snapshots as they are due.
async fn patched(world: &World, worker: &Worker, turns: std::ops::RangeInclusive<i32>) {
    let filling = format!("{CANARY}, much the same in each turn ").repeat(40);
    let mut base = None;
    for turn in turns {
        let ops = format!(r#"{{"full":true,"set":{{"a":{{"json":"{filling}{turn}"}}}}}}"#);
        let commit = Commit { ops: Some(ops.clone().into()), base, ..worker.result(turn) };
        let head = ok(world.commit(&commit).await.unwrap()).head.unwrap();
        let state = Arc::new(fold::text(&fold::fold([&*ops]).unwrap()).unwrap());
        base = Some(Base { content_hash: header::parse(&head.content_hash).unwrap(), state });
        world.snapshot(worker.run).await.unwrap();
    }
}

/// Everything that a run's payloads can be asked for.
async fn read_all(world: &World, run: RunId) -> dalsegno_store::Result<String> {
    use dalsegno_store::{CallFilter, EventQuery, RecordQuery};
    let state = world.state(run, None).await?;
    let rows = world.boundaries(run, 1, i32::MAX).await?;
    let events = world.events(run, EventQuery { from: 1, limit: 100, bytes: 1 << 20 }).await?;
    let calls = world.calls(run, CallFilter::All).await?;
    let query =
        RecordQuery { space: "s".into(), prefix: String::new(), after: None, limit: 99, bytes: 1 << 20 };
    let records = world.read_records(run, &query).await?;
    let rows: Vec<_> = rows.into_iter().map(|row| row.ops.unwrap_or_default()).collect();
    Ok(format!("{state:?} {rows:?} {:?} {calls:?} {:?}", events.events, records.records))
}

async fn check(world: &World) -> (Summary, Vec<Problem>) {
    let mut told = Vec::new();
    let mut reading = world.reading().await.unwrap();
    let checked = check_store(&mut *reading, Anchors::default(), &mut |problem| told.push(problem)).await;
    (checked.unwrap(), told)
}

async fn bundle(world: &World, run: RunId) -> Vec<u8> {
    written(export(world, run).await.unwrap()).await
}

/// A bundle that is begun.
async fn export(world: &World, run: RunId) -> dalsegno_store::Result<Export> {
    let store: &dyn Store = &*world.store;
    let signer = Arc::new(Signer::load(store, None).await.unwrap());
    let reading = store.reading().await.unwrap();
    let begun = Export::begin(reading, Uuid::nil(), run, Timestamp::UNIX_EPOCH, signer).await;
    begun.map(Option::unwrap)
}

/// The rest of a bundle.
async fn written(mut export: Export) -> Vec<u8> {
    let mut bytes = Vec::new();
    while let Some(lines) = export.next().await.unwrap() {
        bytes.extend(lines);
    }
    bytes
}
