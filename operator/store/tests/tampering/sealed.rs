//! Random edits of sealed payloads: every reader refuses the edited payload and returns no other in its place.
//!
//! Some edits go unnoticed by design, or because docs/reference/audit.md does not promise to prove them. They are left out:
//!
//! - a record's value replaced by another value of the same key (both are bound to that key), so no key is written twice;
//! - deleted rows of records, and deleted snapshots;
//! - a plain value of a record in place of a sealed one.
//!
//! A check of the store finds changed or missing call payloads and record keys.

use std::path::Path;
use std::sync::Arc;

use dalsegno_model::{CallFilter, Commit, Error, Result, RunId};
use dalsegno_proof::verify;
use dalsegno_proof::{Anchors, Problem, check_store};
use dalsegno_protocol::{Payload, PlannedCall, Policy, RecordOp};
use dalsegno_store::open_beside;
use dalsegno_store::sqlite::Sqlite;
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, Row as _, SqliteConnection};
use tempfile::TempDir;

use crate::context::{TestContext, all_records, json, ok};
use crate::random::{Numbers, hex, tamperings};
use crate::{forged, keys};

/// The sealed columns, and what identifies the row that each ciphertext is bound to.
const SEALED: &[(&str, &str, &str)] = &[
    ("boundaries", "ops", "turn"),
    ("boundaries", "events", "turn"),
    ("snapshots", "document", "hex(content_hash)"),
    ("chunks", "payload", "hex(hash)"),
    ("calls", "arguments", "id"),
    ("calls", "result", "id"),
    ("records", "value", "key"),
    ("data_keys", "wrapped", "hex(run)"),
];

/// One ciphertext and its place.
struct Ciphertext {
    table: &'static str,
    column: &'static str,
    boundary_id: String,
    bytes: Vec<u8>,
}

/// A run with a ciphertext in every sealed column, and the list of those that are read.
struct Subject {
    url: String,
    keys: TempDir,
    run: RunId,
    cx: TestContext,
    conn: SqliteConnection,
    ciphertexts: Vec<Ciphertext>,
}

impl Subject {
    async fn new() -> Self {
        let (dir, keys) = (tempfile::tempdir().unwrap(), keys::folder());
        let path = dir.path().join("runs.db");
        Sqlite::migrate(&path).await.unwrap();
        let store = Sqlite::open(&path).await.unwrap().sealed_by(keys::shared(&keys));
        let cx = TestContext::new(Arc::new(store), dir);
        let run = work(&cx).await;
        let url = url(&path);
        let mut conn = SqliteConnection::connect(&url).await.unwrap();
        conn.execute("PRAGMA synchronous = OFF").await.unwrap();
        // An attacker with the file can drop its triggers.
        conn.execute("DROP TRIGGER results_are_sealed").await.unwrap();
        let mut ciphertexts = Vec::new();
        for (table, column, boundary_id) in SEALED {
            let sql = format!(
                "SELECT CAST({boundary_id} AS TEXT), {column} FROM {table} WHERE {column} IS NOT NULL"
            );
            let rows = sqlx::query(AssertSqlSafe(sql)).fetch_all(&mut conn).await.unwrap();
            assert!(!rows.is_empty(), "nothing is sealed in {table}.{column}");
            ciphertexts.extend(rows.iter().map(|row| Ciphertext {
                table,
                column,
                boundary_id: row.get(0),
                bytes: row.get(1),
            }));
        }
        Self { url, keys, run, cx, conn, ciphertexts }
    }

    async fn put(&mut self, at: usize, bytes: &[u8]) {
        let Ciphertext { table, column, boundary_id, .. } = &self.ciphertexts[at];
        let (_, _, named) = SEALED.iter().find(|it| (it.0, it.1) == (*table, *column)).unwrap();
        let sql = format!(
            "UPDATE {table} SET {column} = x'{}' WHERE CAST({named} AS TEXT) = '{boundary_id}'",
            hex(bytes)
        );
        let done = self.conn.execute(AssertSqlSafe(sql)).await.unwrap();
        assert_eq!(done.rows_affected(), 1);
    }

    /// The state as a lookup reads it.
    async fn state(&self) -> Result<String> {
        self.cx.state(self.run, None).await.map(|state| serde_json::to_string(&state).unwrap())
    }

    /// The problems that a check of the store reports.
    async fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let mut reading = self.cx.begin_read().await.unwrap();
        let mut report = |problem: Problem| problems.push(problem.to_string());
        check_store(&mut *reading, Anchors::default(), &mut report).await.unwrap();
        problems
    }

    /// Whether a reader of this table refuses its content.
    async fn is_refused(&self, table: &str) -> bool {
        match table {
            "boundaries" => {
                let run = self.cx.get_run(self.run).await.unwrap().unwrap();
                let report = verify::scan(&*self.cx.store, &run).await;
                refused(report.as_ref()) || !report.unwrap().damage.is_empty()
            }
            "snapshots" | "chunks" => !self.problems().await.is_empty(),
            "calls" => {
                let answer = self.cx.calls(self.run, CallFilter::All).await;
                assert_eq!(refused(answer.as_ref()), !self.problems().await.is_empty());
                refused(answer.as_ref())
            }
            "records" => {
                let query = all_records();
                refused(self.cx.read_records(self.run, &query).await.as_ref())
            }
            // Open another process's store, which has no cached data key.
            "data_keys" => {
                let store = open_beside(&self.url, keys::shared(&self.keys)).await.unwrap();
                refused_with_its_key(store.state(self.run, None).await.as_ref())
            }
            other => unreachable!("nothing is sealed in {other}"),
        }
    }
}

fn url(path: &Path) -> String {
    format!("sqlite://{}", path.display())
}

fn refused<T>(answer: std::result::Result<&T, &Error>) -> bool {
    match answer {
        Ok(_) => false,
        Err(Error::Corrupt { .. }) => true,
        Err(error) => panic!("{error}"),
    }
}

/// The same for content that needs the data key. A damaged wrapped key may also look like one of another wrapping key.
fn refused_with_its_key<T>(answer: std::result::Result<&T, &Error>) -> bool {
    matches!(answer, Err(Error::Unusable(_))) || refused(answer)
}

/// Twelve turns that each add two kilobytes, with events, calls and records, and a snapshot at the end.
async fn work(cx: &TestContext) -> RunId {
    let worker = cx.worker().await;
    for turn in 1..=12 {
        let item: String = (0..300).map(|n: i32| format!("{:x} ", n.wrapping_mul(turn * 7_919))).collect();
        let planned = PlannedCall {
            id: format!("planned-{turn}"),
            policy: Policy::RetrySameKey,
            key: format!("key-{turn}"),
            arguments: Some(json(&format!(r#"{{"turn":{turn}}}"#))),
        };
        let commit = Commit {
            ops: Some(format!(r#"{{"append":{{"log":[{{"json":"{item}"}}]}}}}"#).into_bytes()),
            full: false,
            events: vec![json(&turn.to_string())],
            calls: vec![planned],
            records: vec![put(&format!("k{turn}"))],
            ..worker.result(turn)
        };
        ok(cx.commit(&commit).await.unwrap());
    }
    for id in ["pay", "ship"] {
        let claim = cx.start_call(&worker, id, Policy::Probe).await;
        cx.complete(&worker.complete(&claim)).await.unwrap();
    }
    assert!(cx.snapshot(worker.run).await.unwrap().made);
    worker.run
}

fn put(key: &str) -> RecordOp {
    RecordOp::Put { space: "s".into(), key: key.into(), value: Payload::Json(json(r#""a value""#)) }
}

/// The edited ciphertext, and a description of the edit.
fn edit_bytes(numbers: &mut Numbers, ciphertexts: &[Ciphertext], at: usize) -> (Vec<u8>, String) {
    let Ciphertext { table, column, boundary_id, bytes, .. } = &ciphertexts[at];
    let mut edited = bytes.clone();
    let how = match numbers.below(6) {
        0 | 1 => {
            let bit = numbers.below(bytes.len() * 8);
            edited[bit / 8] ^= 1 << (bit % 8);
            format!("bit {bit} flipped")
        }
        2 => {
            edited.truncate(numbers.below(bytes.len()));
            format!("cut to {} bytes", edited.len())
        }
        3 => {
            let many = 1 + numbers.below(20);
            edited.extend((0..many).map(|_| numbers.below(256) as u8));
            format!("{many} bytes more")
        }
        4 => {
            edited.iter_mut().skip(1).for_each(|byte| *byte = numbers.below(256) as u8);
            "other bytes".to_owned()
        }
        _ => {
            let others: Vec<_> = ciphertexts
                .iter()
                .filter(|it| (it.table, it.column, &it.boundary_id) != (*table, *column, boundary_id))
                .collect();
            let other = others[numbers.below(others.len())];
            edited = other.bytes.clone();
            format!("that of {}.{} {}", other.table, other.column, other.boundary_id)
        }
    };
    (edited, format!("{table}.{column} {boundary_id}: {how}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_edits_of_sealed_payloads_are_all_refused() {
    let mut subject = Subject::new().await;
    let before = subject.state().await.unwrap();
    for (table, ..) in SEALED {
        assert!(!subject.is_refused(table).await, "nothing is damaged yet: {table}");
    }
    let mut numbers = Numbers::from(0x05ea_1ed0);
    for number in 0..tamperings() {
        // Edit each column equally often, however many rows it has.
        let (table, column, _) = SEALED[number % SEALED.len()];
        let rows: Vec<usize> = (0..subject.ciphertexts.len())
            .filter(|at| (subject.ciphertexts[*at].table, subject.ciphertexts[*at].column) == (table, column))
            .collect();
        let at = rows[numbers.below(rows.len())];
        let (edited, how) = edit_bytes(&mut numbers, &subject.ciphertexts, at);
        let original = subject.ciphertexts[at].bytes.clone();
        if edited == original {
            continue;
        }
        subject.put(at, &edited).await;
        assert!(subject.is_refused(table).await, "edit {number} was not found: {how}");
        // A process caches a data key for one minute only, so a long test may read it during an edit.
        let state = subject.state().await;
        let is_refused = match table {
            "data_keys" => refused_with_its_key(state.as_ref()),
            _ => refused(state.as_ref()),
        };
        assert!(is_refused || state.unwrap() == before, "another state was read: {how}");
        subject.put(at, &original).await;
    }
    for (table, ..) in SEALED {
        assert!(!subject.is_refused(table).await, "all edits were taken back: {table}");
    }
}

/// Anybody can forge a plain snapshot without a key. In a run with a data key, it is only used if it dates from before
/// encryption.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plain_snapshot_of_a_run_with_a_data_key_is_not_used() {
    let mut subject = Subject::new().await;
    let before = subject.state().await.unwrap();
    let forged = r#"{"log":{"list":[{"json":"forged"}]}}"#;
    for turn in [5, 12] {
        let boundary = subject.cx.boundaries(subject.run, turn, turn).await.unwrap().remove(0);
        for sql in forged::snapshot(subject.run, &boundary, forged, false) {
            subject.conn.execute(AssertSqlSafe(sql)).await.unwrap();
        }
        assert_eq!(subject.state().await.unwrap(), before, "turn {turn}");
    }
    assert!(subject.is_refused("snapshots").await, "a check of the store reports it");
    // It is also refused if its own boundary is forged as plain. A lookup does not read that boundary.
    let plain = "UPDATE boundaries SET ops = x'00', events = NULL WHERE turn = 12";
    subject.conn.execute(AssertSqlSafe(plain.to_owned())).await.unwrap();
    assert!(refused(subject.state().await.as_ref()));
}

/// A plain payload opens like one from before encryption, but the audit has another digest, or has one where it is missing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plain_or_missing_call_payload_is_found_by_the_audit() {
    let mut subject = Subject::new().await;
    let plain = format!("x'{}'", hex(&dalsegno_format::codec::encode(br#"{"forged":1}"#)));
    for (column, value) in
        [("arguments", &*plain), ("arguments", "NULL"), ("result", &*plain), ("result", "NULL")]
    {
        let at =
            subject.ciphertexts.iter().position(|it| (it.table, it.column) == ("calls", column)).unwrap();
        let (id, original) =
            (subject.ciphertexts[at].boundary_id.clone(), subject.ciphertexts[at].bytes.clone());
        let sql = format!("UPDATE calls SET {column} = {value} WHERE id = '{id}'");
        subject.conn.execute(AssertSqlSafe(sql)).await.unwrap();
        subject.cx.calls(subject.run, CallFilter::All).await.unwrap();
        let problems = subject.problems().await;
        let expected = format!("call {id:?}: its {column} is not what the audit says");
        assert!(problems.len() == 1 && problems[0].ends_with(&expected), "{problems:?}");
        subject.put(at, &original).await;
        assert_eq!(subject.problems().await, [""; 0]);
    }
}
