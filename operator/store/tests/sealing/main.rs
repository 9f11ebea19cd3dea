//! Encryption at rest, on both databases: what is stored, what opens it, and what cannot be opened any more.
#![allow(clippy::unwrap_used, reason = "a case that cannot go on has failed")]

#[path = "../support/both_databases.rs"]
mod both_databases;
#[allow(dead_code)]
#[path = "../conformance/context.rs"]
mod context;
#[path = "../support/keys.rs"]
mod keys;
#[path = "../support/pg.rs"]
mod pg;

mod at_rest;
mod clear_text;
mod expiry;
mod formats;
mod keep_last;
mod late;
mod rotation;
mod shredding;
mod switched_on;
mod texts;

use std::sync::Arc;

use both_databases::on_both_databases;
use context::{TestContext, Worker, all_records, json, ok, random_digest};
use dalsegno_format::{fold, header};
use dalsegno_model::{
    Answered, Commit, DeltaBase, OpenWaitRequest, RecordBatch, RunId, Shred, Store, WaitAnswer, WaitAsks,
    WaitDecision, WaitOpened, Written,
};
use dalsegno_proof::bundle::{Export, ExportOf};
use dalsegno_proof::{Anchors, Problem, Signer, Summary, check_store};
use dalsegno_protocol::{OnTimeout, Payload, PlannedCall, Policy, RecordOp, WaitOutcome};
use dalsegno_store::{migrate, open_beside};
use jiff::Timestamp;
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection, SqliteConnection};
use tempfile::TempDir;
use uuid::Uuid;

/// A text that the worker writes everywhere.
const CANARY: &str = "canary of the worker";

fn shred(run: RunId, reason: &str, actor: &str) -> Shred {
    Shred { run, reason: reason.into(), actor: actor.into() }
}

/// A database and a folder with keys.
pub struct Engine {
    url: String,
    keys: TempDir,
    _dir: TempDir,
}

impl Engine {
    async fn file() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let url = format!("sqlite://{}", dir.path().join("runs.db").display());
        migrate(&url).await.unwrap();
        Self { url, keys: keys::folder(), _dir: dir }
    }

    async fn postgres() -> Self {
        Self { url: pg::database().await, keys: keys::folder(), _dir: tempfile::tempdir().unwrap() }
    }

    /// A store of another process with the current keys and empty caches.
    async fn sealed(&self) -> TestContext {
        TestContext::new(open_beside(&self.url, keys::shared(&self.keys)).await.unwrap(), ()).sealed()
    }

    /// A store of a process of the version that did not seal texts.
    async fn sealed_by_version_before(&self) -> TestContext {
        let keys = keys::FirstFormat(keys::shared(&self.keys).unwrap());
        TestContext::new(open_beside(&self.url, Some(Arc::new(keys))).await.unwrap(), ()).sealed()
    }

    /// A store of a process without keys.
    async fn plain(&self) -> TestContext {
        TestContext::new(open_beside(&self.url, None).await.unwrap(), ())
    }

    /// Edits rows. At least one row must be affected.
    async fn edit(&self, sql: &str) {
        let sql = AssertSqlSafe(sql.to_owned());
        let hit = if self.is_postgres() {
            PgConnection::connect(&self.url).await.unwrap().execute(sql).await.unwrap().rows_affected()
        } else {
            SqliteConnection::connect(&self.url).await.unwrap().execute(sql).await.unwrap().rows_affected()
        };
        assert!(hit > 0);
    }

    /// Reads one text directly from the database.
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

    /// Opens a connection that stays open.
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

/// A connection to the database.
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

/// A turn that writes the canary everywhere a worker can.
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
    worker.record_batch(vec![put("b")])
}

/// A worker that has written the canary everywhere a worker can: this number of turns, and a snapshot.
async fn worked(cx: &TestContext, turns: i32) -> Worker {
    let worker = cx.worker().await;
    work(cx, &worker, 1..=turns).await;
    worker
}

async fn work(cx: &TestContext, worker: &Worker, turns: std::ops::RangeInclusive<i32>) {
    for number in turns {
        ok(cx.commit(&turn(worker, number)).await.unwrap());
    }
    assert_eq!(cx.write_records(&batch(worker)).await.unwrap(), Written::Ok);
    let claim = cx.start_call(worker, &format!("claimed-{}", Uuid::new_v4()), Policy::Probe).await;
    cx.complete(&worker.complete(&claim)).await.unwrap();
    waits(cx, worker).await;
    cx.snapshot(worker.run).await.unwrap();
}

/// Opens an approval, which a person answers. The request and the answer hold the canary.
async fn waits(cx: &TestContext, worker: &Worker) {
    let request = OpenWaitRequest {
        run: worker.run,
        capability: worker.capability,
        id: format!("wait-{}", Uuid::new_v4()),
        digest: random_digest(),
        body: json(&format!(r#"{{"title":"{CANARY}"}}"#)),
        asks: WaitAsks::Approval { salt: [1; 16], proposal_hash: [2; 32] },
        deadline_ms: None,
        on_timeout: OnTimeout::Answer,
    };
    let WaitOpened::Wait(wait) = cx.open_wait(&request).await.unwrap() else { panic!("it may be opened") };
    let decision = WaitDecision { by: "ada".into(), reason: Some(CANARY.into()), changes: None };
    let answer =
        WaitAnswer { id: request.id, epoch: wait.facts.epoch, outcome: WaitOutcome::Approved, decision };
    assert!(matches!(cx.answer_wait(worker.run, &answer).await.unwrap(), Answered::Ok(_)));
}

/// Turns of a client that sends its full state, each stored as a patch of the one before, with snapshots when they are due.
async fn patched(cx: &TestContext, worker: &Worker, turns: std::ops::RangeInclusive<i32>) {
    let filling = format!("{CANARY}, much the same in each turn ").repeat(40);
    let mut base = None;
    for turn in turns {
        let ops = format!(r#"{{"full":true,"set":{{"a":{{"json":"{filling}{turn}"}}}}}}"#);
        let commit = Commit { ops: Some(ops.clone().into()), base, ..worker.result(turn) };
        let head = ok(cx.commit(&commit).await.unwrap()).head.unwrap();
        let state = Arc::new(fold::text(&fold::fold([&*ops]).unwrap()).unwrap());
        base = Some(DeltaBase { content_hash: header::parse(&head.content_hash).unwrap(), state });
        cx.snapshot(worker.run).await.unwrap();
    }
}

/// Reads all payloads of a run.
async fn read_all(cx: &TestContext, run: RunId) -> dalsegno_model::Result<String> {
    use dalsegno_model::{CallFilter, EventQuery};
    let state = cx.state(run, None).await?;
    let rows = cx.boundaries(run, 1, i32::MAX).await?;
    let events = cx.events(run, EventQuery { from: 1, limit: 100, bytes: 1 << 20 }).await?;
    let calls = cx.calls(run, CallFilter::All).await?;
    let query = all_records();
    let records = cx.read_records(run, &query).await?;
    let mut waits = String::new();
    for wait in cx.waits(run).await? {
        waits += &format!("{:?}", cx.proposal(run, &wait.facts.id, wait.facts.epoch).await?);
    }
    let rows: Vec<_> = rows.into_iter().map(|row| row.ops.unwrap_or_default()).collect();
    Ok(format!("{state:?} {rows:?} {:?} {calls:?} {:?} {waits}", events.events, records.records))
}

async fn check(cx: &TestContext) -> (Summary, Vec<Problem>) {
    let mut problems = Vec::new();
    let mut reading = cx.begin_read().await.unwrap();
    let checked = check_store(&mut *reading, Anchors::default(), &mut |problem| problems.push(problem)).await;
    (checked.unwrap(), problems)
}

async fn bundle(cx: &TestContext, run: RunId) -> Vec<u8> {
    written(export(cx, run).await.unwrap()).await
}

/// The bytes as hexadecimal digits.
fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A started export.
async fn export(cx: &TestContext, run: RunId) -> dalsegno_model::Result<Export> {
    let store: &dyn Store = &*cx.store;
    let signer = Arc::new(Signer::load(store, None).await.unwrap());
    let reading = store.begin_read().await.unwrap();
    let of = ExportOf { store: Uuid::nil(), run, at: Timestamp::UNIX_EPOCH };
    let begun = Export::begin(reading, of, signer).await;
    begun.map(Option::unwrap)
}

/// The remaining lines of an export.
async fn written(mut export: Export) -> Vec<u8> {
    let mut bytes = Vec::new();
    while let Some(lines) = export.next().await.unwrap() {
        bytes.extend(lines);
    }
    bytes
}
