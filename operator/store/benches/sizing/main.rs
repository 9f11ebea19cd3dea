//! What a turn and a run take on disk, in each table, and what retention and a purge give back.
//!
//! It measures bytes and no time, so the machine need not be idle. docs/reference/sizing.md shows its tables.

#![allow(clippy::unwrap_used, reason = "a bench may fail")]

#[allow(dead_code, reason = "tests use the rest")]
#[path = "../../tests/conformance/context.rs"]
mod context;
#[allow(dead_code, reason = "other benches use the rest")]
#[path = "../../../gateway/benches/figures.rs"]
mod figures;
#[path = "../../tests/support/keys.rs"]
mod keys;
#[allow(dead_code, reason = "other benches use the rest")]
#[path = "../../../gateway/benches/boundary/payload.rs"]
mod payload;
#[allow(dead_code, reason = "tests use the rest")]
#[path = "../../tests/support/pg.rs"]
mod pg;
mod tables;

use std::sync::Arc;

use context::{TestContext, Worker, json, ok, planned};
use dalsegno_model::{Commit, Purge, PurgeStep, Retention, RunId, Store, Written};
use dalsegno_proof::{Anchor, Signer};
use dalsegno_protocol::{Payload, Policy, RecordOp};
use dalsegno_store::{migrate, open};
use figures::print_table;
use jiff::Timestamp;
use tables::{Sizes, give_back, sizes};
use tempfile::TempDir;

/// Runs whose turns are measured, and the turns of each.
const RUNS: usize = 5;
const TURNS: i32 = 100;

/// Runs without turns, for the bytes of a run itself.
const EMPTY_RUNS: usize = 300;

/// Turns between two snapshots, as a gateway requests them.
const SNAPSHOT_EVERY: i32 = 10;

/// Boundaries that a run keeps, in the scenario with `keepLast`.
const KEEP_LAST: i32 = 20;

/// What a worker does in each turn.
#[derive(Clone, Copy, Default)]
struct Scenario {
    /// New data that each turn sends, in KiB.
    kib: usize,
    /// The turn has a plan and one tool call with a result of 1 KiB.
    has_call: bool,
    /// The turn writes one record of 1 KiB.
    has_record: bool,
    is_encrypted: bool,
    keep_last: Option<i32>,
}

const SCENARIOS: [(&str, Scenario); 7] = [
    ("1 KiB", Scenario { kib: 1, ..PLAIN }),
    ("16 KiB", Scenario { kib: 16, ..PLAIN }),
    ("64 KiB", Scenario { kib: 64, ..PLAIN }),
    ("16 KiB, a tool call", Scenario { kib: 16, has_call: true, ..PLAIN }),
    ("16 KiB, a record", Scenario { kib: 16, has_record: true, ..PLAIN }),
    ("16 KiB, encrypted", Scenario { kib: 16, is_encrypted: true, ..PLAIN }),
    ("16 KiB, `keepLast: 20`", Scenario { kib: 16, keep_last: Some(KEEP_LAST), ..PLAIN }),
];

const PLAIN: Scenario =
    Scenario { kib: 0, has_call: false, has_record: false, is_encrypted: false, keep_last: None };

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let server = pg::Server::start(&[]);
    let (mut turns, mut left, mut runs) = (Vec::new(), Vec::new(), Vec::new());
    for engine in ["PostgreSQL", "SQLite"] {
        for (name, scenario) in SCENARIOS {
            let (turn, rest) = measure_turns(&Database::new(engine, &server).await, scenario).await;
            turns.push(turn_row(engine, name, &turn));
            left.push(
                [engine.to_owned(), name.to_owned()]
                    .into_iter()
                    .chain(rest)
                    .collect::<Vec<_>>()
                    .try_into()
                    .unwrap(),
            );
        }
        for is_encrypted in [false, true] {
            runs.push(measure_runs(engine, &Database::new(engine, &server).await, is_encrypted).await);
        }
    }
    let head = [
        "store",
        "new data per turn",
        "boundaries",
        "snapshots",
        "calls",
        "records",
        "audit",
        "all",
        "of it indexes",
        "log",
    ];
    print_table("Bytes per turn", head, &turns);
    let head = ["store", "new data per turn", "kept by `keepLast`", "after retention"];
    print_table("Bytes per turn, and what is left of them", head, &left);
    let head = ["store", "encrypted", "runs", "attempts", "audit", "data keys", "all", "after a purge"];
    print_table("Bytes per run, without its turns", head, &runs);
}

/// A new database.
struct Database {
    url: String,
    keys: TempDir,
    _dir: TempDir,
}

impl Database {
    async fn new(engine: &str, server: &pg::Server) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let url = if engine == "SQLite" {
            let url = format!("sqlite://{}", dir.path().join("runs.db").display());
            migrate(&url).await.unwrap();
            url
        } else {
            server.database().await
        };
        Self { url, keys: keys::folder(), _dir: dir }
    }

    async fn store(&self, is_encrypted: bool) -> TestContext {
        let keys = if is_encrypted { keys::shared(&self.keys) } else { None };
        TestContext::new(open(&self.url, keys).await.unwrap(), ())
    }

    async fn sizes(&self) -> Sizes {
        sizes(&self.url).await
    }

    /// The sizes without the pages that deleted rows have left.
    async fn sizes_of_rows(&self) -> Sizes {
        give_back(&self.url).await;
        self.sizes().await
    }
}

/// The bytes of a turn in each table; and in all, as text: kept by `keepLast`, and left after retention.
async fn measure_turns(database: &Database, scenario: Scenario) -> (Sizes, [String; 2]) {
    let cx = database.store(scenario.is_encrypted).await;
    let mut workers = Vec::new();
    for _ in 0..RUNS {
        let worker = cx.worker().await;
        let retention = Retention { keep_last: scenario.keep_last, ..Retention::default() };
        cx.set_retention(worker.run, &retention).await.unwrap();
        workers.push(worker);
    }
    let before = database.sizes().await;
    for turn in 1..=TURNS {
        for worker in &workers {
            take_turn(&cx, worker, turn, scenario).await;
        }
    }
    let stored = &database.sizes().await - &before;
    let per_turn = |sizes: &Sizes| number((sizes.total() - before.total()) / turns());
    let mut kept = String::new();
    for worker in &workers {
        while cx.compact(worker.run, 500).await.unwrap().run.is_some() {}
    }
    if scenario.keep_last.is_some() {
        kept = per_turn(&database.sizes_of_rows().await);
    }
    expire(&cx, &workers).await;
    let expired = per_turn(&database.sizes_of_rows().await);
    let per_turn = stored.tables.iter().map(|(table, bytes)| {
        let bytes = tables::Bytes { rows: bytes.rows / turns(), indexes: bytes.indexes / turns() };
        (table.clone(), bytes)
    });
    let per_turn = Sizes { tables: per_turn.collect(), log: stored.log / turns() };
    (per_turn, [kept, expired])
}

fn turns() -> i64 {
    RUNS as i64 * i64::from(TURNS)
}

async fn take_turn(cx: &TestContext, worker: &Worker, turn: i32, scenario: Scenario) {
    let Scenario { kib, has_call, has_record, .. } = scenario;
    let round = usize::try_from(turn).unwrap() * 1_000 + usize::from(worker.run.as_bytes()[15]);
    if has_call {
        let id = format!("call-{turn}");
        let plan = Commit {
            ops: None,
            full: false,
            calls: vec![planned(&id, Policy::RetrySameKey)],
            ..worker.plan(turn)
        };
        ok(cx.commit(&plan).await.unwrap());
        let claim = cx.start_call(worker, &id, Policy::RetrySameKey).await;
        let result = Some(json(&payload::state(1 << 10, round)));
        cx.complete(&dalsegno_model::Complete { result, ..worker.complete(&claim) }).await.unwrap();
    }
    if has_record {
        let value = Payload::Json(json(&payload::state(1 << 10, round)));
        let put = RecordOp::Put { space: "notes".into(), key: format!("note-{turn}"), value };
        assert_eq!(cx.write_records(&worker.record_batch(vec![put])).await.unwrap(), Written::Ok);
    }
    let ops = format!(r#"{{"set":{{"state":{{"json":{}}}}}}}"#, payload::state(kib << 10, round));
    let size = ops.len();
    ok(cx.commit(&Commit { ops: Some(ops.into()), full: false, size, ..worker.result(turn) }).await.unwrap());
    if turn % SNAPSHOT_EVERY == 0 {
        cx.snapshot(worker.run).await.unwrap();
    }
}

/// Ends the runs, and drops their payloads as retention does.
async fn expire(cx: &TestContext, workers: &[Worker]) {
    for worker in workers {
        cx.finish(&worker.finish()).await.unwrap();
        cx.mark_deleted(&worker.object_uid).await.unwrap();
        cx.set_retention(worker.run, &Retention { days: 0, ..Retention::default() }).await.unwrap();
    }
    while cx.drop_expired(500).await.unwrap().run.is_some() {}
}

async fn purge(cx: &TestContext, workers: &[Worker]) {
    let purge = |run| Purge { run, before: Timestamp::MAX, actor: "bench".into(), reason: "measured".into() };
    for worker in workers {
        assert_eq!(cx.purge(&purge(worker.run), 2_000).await.unwrap(), PurgeStep::Recorded);
    }
    anchor(cx).await;
    for worker in workers {
        while !matches!(
            cx.purge(&purge(worker.run), 2_000).await.unwrap(),
            PurgeStep::Deleted { done: true, .. }
        ) {}
    }
}

/// Makes an anchor of all runs that have moved.
async fn anchor(cx: &TestContext) {
    let store: &Arc<dyn Store> = &cx.store;
    let signer = Signer::load(&**store, None).await.unwrap();
    let moved = cx.heads_to_anchor(RunId::nil()).await.unwrap();
    let anchor = Anchor::next(&moved, cx.id().await.unwrap(), Timestamp::now(), &signer).unwrap();
    assert!(cx.put_anchor(anchor.stored()).await.unwrap());
}

fn turn_row(engine: &str, name: &str, turn: &Sizes) -> [String; 10] {
    [
        engine.to_owned(),
        name.to_owned(),
        number(turn.of(&["boundaries"])),
        number(turn.of(&["snapshots", "chunks"])),
        number(turn.of(&["calls"])),
        number(turn.of(&["records", "record_batches", "record_changes"])),
        number(turn.of(&["audit"])),
        number(turn.total()),
        number(turn.indexes()),
        if turn.log == 0 { String::new() } else { number(turn.log) },
    ]
}

/// The bytes of a run with one attempt and a finish, and no turn.
async fn measure_runs(engine: &str, database: &Database, is_encrypted: bool) -> [String; 8] {
    let cx = database.store(is_encrypted).await;
    let before = database.sizes().await;
    let mut workers = Vec::new();
    for _ in 0..EMPTY_RUNS {
        let worker = cx.worker().await;
        cx.finish(&worker.finish()).await.unwrap();
        workers.push(worker);
    }
    let runs = &database.sizes().await - &before;
    let count = EMPTY_RUNS as i64;
    let of = |tables: &[&str]| number(runs.of(tables) / count);
    for worker in &workers {
        cx.mark_deleted(&worker.object_uid).await.unwrap();
        cx.set_retention(worker.run, &Retention { days: 0, ..Retention::default() }).await.unwrap();
    }
    while cx.drop_expired(500).await.unwrap().run.is_some() {}
    purge(&cx, &workers).await;
    let left = &database.sizes_of_rows().await - &before;
    [
        engine.to_owned(),
        if is_encrypted { "yes" } else { "no" }.to_owned(),
        of(&["runs"]),
        of(&["attempts"]),
        of(&["audit"]),
        of(&["data_keys"]),
        number(runs.total() / count),
        number(left.total() / count),
    ]
}

/// A number with commas between thousands.
fn number(bytes: i64) -> String {
    let digits = bytes.abs().to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    if bytes < 0 { format!("−{text}") } else { text }
}
