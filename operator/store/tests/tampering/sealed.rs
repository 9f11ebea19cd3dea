//! Random edits of what is sealed, each in one place: what reads it refuses it, and nothing else is read in its stead.
//!
//! Left out is what can be done unseen, by design or by what docs/reference/audit.md says is not proved:
//!
//! - a value of a record in the place of another of the same key, to which it is bound as well; so no key is written twice;
//! - rows of records, and snapshots, that are gone;
//! - a value of a record in plain for one that was sealed.
//!
//! That a call, or the key of a record, holds something else, or nothing, a check finds.

use std::path::Path;
use std::sync::Arc;

use dalsegno_protocol::{Payload, PlannedCall, Policy, RecordOp};
use dalsegno_store::proof::{Anchors, Problem, check_store};
use dalsegno_store::sqlite::Sqlite;
use dalsegno_store::{CallFilter, Commit, Error, RecordQuery, Result, RunId, open_beside, verify};
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, Row as _, SqliteConnection};
use tempfile::TempDir;

use crate::random::{Numbers, hex, tamperings};
use crate::world::{World, json, ok};
use crate::{forged, keys};

/// Where ciphertexts stand, and what names the place that each is bound to; of records the last value is the one that is read.
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

/// What stands in one.
struct Ciphertext {
    table: &'static str,
    column: &'static str,
    place: String,
    bytes: Vec<u8>,
}

/// A run with ciphertexts in every place, and those that somebody reads.
struct Subject {
    url: String,
    keys: TempDir,
    run: RunId,
    world: World,
    conn: SqliteConnection,
    ciphertexts: Vec<Ciphertext>,
}

impl Subject {
    async fn new() -> Self {
        let (dir, keys) = (tempfile::tempdir().unwrap(), keys::folder());
        let path = dir.path().join("runs.db");
        Sqlite::migrate(&path).await.unwrap();
        let store = Sqlite::open(&path).await.unwrap().sealed_by(keys::shared(&keys));
        let world = World::new(Arc::new(store), dir);
        let run = work(&world).await;
        let url = url(&path);
        let mut conn = SqliteConnection::connect(&url).await.unwrap();
        conn.execute("PRAGMA synchronous = OFF").await.unwrap();
        // Who has the file takes its rules away.
        conn.execute("DROP TRIGGER results_are_sealed").await.unwrap();
        let mut ciphertexts = Vec::new();
        for (table, column, place) in SEALED {
            let sql =
                format!("SELECT CAST({place} AS TEXT), {column} FROM {table} WHERE {column} IS NOT NULL");
            let rows = sqlx::query(AssertSqlSafe(sql)).fetch_all(&mut conn).await.unwrap();
            assert!(!rows.is_empty(), "nothing is sealed in {table}.{column}");
            ciphertexts.extend(rows.iter().map(|row| Ciphertext {
                table,
                column,
                place: row.get(0),
                bytes: row.get(1),
            }));
        }
        Self { url, keys, run, world, conn, ciphertexts }
    }

    async fn put(&mut self, at: usize, bytes: &[u8]) {
        let Ciphertext { table, column, place, .. } = &self.ciphertexts[at];
        let (_, _, named) = SEALED.iter().find(|it| (it.0, it.1) == (*table, *column)).unwrap();
        let sql = format!(
            "UPDATE {table} SET {column} = x'{}' WHERE CAST({named} AS TEXT) = '{place}'",
            hex(bytes)
        );
        let done = self.conn.execute(AssertSqlSafe(sql)).await.unwrap();
        assert_eq!(done.rows_affected(), 1);
    }

    /// What a lookup reads.
    async fn state(&self) -> Result<String> {
        self.world.state(self.run, None).await.map(|state| serde_json::to_string(&state).unwrap())
    }

    /// What a check of the store tells.
    async fn problems(&self) -> Vec<String> {
        let mut told = Vec::new();
        let mut reading = self.world.reading().await.unwrap();
        let mut tell = |problem: Problem| told.push(problem.to_string());
        check_store(&mut *reading, Anchors::default(), &mut tell).await.unwrap();
        told
    }

    /// Whether what reads this table refuses what stands there.
    async fn is_refused(&self, table: &str) -> bool {
        match table {
            "boundaries" => {
                let run = self.world.get_run(self.run).await.unwrap().unwrap();
                let survey = verify::survey(&*self.world.store, &run).await;
                refused(survey.as_ref()) || !survey.unwrap().damage.is_empty()
            }
            "snapshots" | "chunks" => !self.problems().await.is_empty(),
            "calls" => {
                let answer = self.world.calls(self.run, CallFilter::All).await;
                assert_eq!(refused(answer.as_ref()), !self.problems().await.is_empty());
                refused(answer.as_ref())
            }
            "records" => {
                let query = RecordQuery {
                    space: "s".into(),
                    prefix: String::new(),
                    after: None,
                    limit: 99,
                    bytes: 1 << 20,
                };
                refused(self.world.read_records(self.run, &query).await.as_ref())
            }
            // Another process, which does not remember it.
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

/// The same of what needs the data key: what is checked first may also be the mark of another key.
fn refused_with_its_key<T>(answer: std::result::Result<&T, &Error>) -> bool {
    matches!(answer, Err(Error::Unfit(_))) || refused(answer)
}

/// Twelve turns of which each adds two kilobytes, with events, calls and records, and a snapshot of the last.
async fn work(world: &World) -> RunId {
    let worker = world.worker().await;
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
        ok(world.commit(&commit).await.unwrap());
    }
    for id in ["pay", "ship"] {
        let claim = world.start_call(&worker, id, Policy::Probe).await;
        world.complete(&worker.complete(&claim)).await.unwrap();
    }
    assert!(world.snapshot(worker.run).await.unwrap().made);
    worker.run
}

fn put(key: &str) -> RecordOp {
    RecordOp::Put { space: "s".into(), key: key.into(), value: Payload::Json(json(r#""a value""#)) }
}

/// These bytes, bent; and how.
fn bend(numbers: &mut Numbers, ciphertexts: &[Ciphertext], at: usize) -> (Vec<u8>, String) {
    let Ciphertext { table, column, place, bytes, .. } = &ciphertexts[at];
    let mut bent = bytes.clone();
    let how = match numbers.below(6) {
        0 | 1 => {
            let bit = numbers.below(bytes.len() * 8);
            bent[bit / 8] ^= 1 << (bit % 8);
            format!("bit {bit} flipped")
        }
        2 => {
            bent.truncate(numbers.below(bytes.len()));
            format!("cut to {} bytes", bent.len())
        }
        3 => {
            let many = 1 + numbers.below(20);
            bent.extend((0..many).map(|_| numbers.below(256) as u8));
            format!("{many} bytes more")
        }
        4 => {
            bent.iter_mut().skip(1).for_each(|byte| *byte = numbers.below(256) as u8);
            "other bytes".to_owned()
        }
        _ => {
            let others: Vec<_> = ciphertexts
                .iter()
                .filter(|it| (it.table, it.column, &it.place) != (*table, *column, place))
                .collect();
            let other = others[numbers.below(others.len())];
            bent = other.bytes.clone();
            format!("that of {}.{} {}", other.table, other.column, other.place)
        }
    };
    (bent, format!("{table}.{column} {place}: {how}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_edits_of_what_is_sealed_are_all_refused() {
    let mut subject = Subject::new().await;
    let before = subject.state().await.unwrap();
    for (table, ..) in SEALED {
        assert!(!subject.is_refused(table).await, "nothing is damaged yet: {table}");
    }
    let mut numbers = Numbers::from(0x05ea_1ed0);
    for number in 0..tamperings() {
        // Each column as often as the others, however many rows it has.
        let (table, column, _) = SEALED[number % SEALED.len()];
        let rows: Vec<usize> = (0..subject.ciphertexts.len())
            .filter(|at| (subject.ciphertexts[*at].table, subject.ciphertexts[*at].column) == (table, column))
            .collect();
        let at = rows[numbers.below(rows.len())];
        let (bent, how) = bend(&mut numbers, &subject.ciphertexts, at);
        let whole = subject.ciphertexts[at].bytes.clone();
        if bent == whole {
            continue;
        }
        subject.put(at, &bent).await;
        assert!(subject.is_refused(table).await, "edit {number} was not found: {how}");
        // This process remembers a data key for a minute only: a long batch reads it again in the midst of an edit.
        let state = subject.state().await;
        let is_refused = match table {
            "data_keys" => refused_with_its_key(state.as_ref()),
            _ => refused(state.as_ref()),
        };
        assert!(is_refused || state.unwrap() == before, "another state was read: {how}");
        subject.put(at, &whole).await;
    }
    for (table, ..) in SEALED {
        assert!(!subject.is_refused(table).await, "all edits were taken back: {table}");
    }
}

/// Who has no key can make it whole, with every digest that it needs; but for the time before encryption it passes for nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_in_plain_is_not_used_beside_a_data_key() {
    let mut subject = Subject::new().await;
    let before = subject.state().await.unwrap();
    let forged = r#"{"log":{"list":[{"json":"forged"}]}}"#;
    for turn in [5, 12] {
        let boundary = subject.world.boundaries(subject.run, turn, turn).await.unwrap().remove(0);
        for sql in forged::snapshot(subject.run, &boundary, forged, false) {
            subject.conn.execute(AssertSqlSafe(sql)).await.unwrap();
        }
        assert_eq!(subject.state().await.unwrap(), before, "turn {turn}");
    }
    assert!(subject.is_refused("snapshots").await, "and who checks the store is told");
    // Nor where its own boundary, which it spares a lookup, is said to be of that time.
    let plain = "UPDATE boundaries SET ops = x'00', events = NULL WHERE turn = 12";
    subject.conn.execute(AssertSqlSafe(plain.to_owned())).await.unwrap();
    assert!(refused(subject.state().await.as_ref()));
}

/// It opens, as what was written before encryption does; but the audit tells of another, or of one that is there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_call_holds_in_plain_or_not_at_all_is_found_beside_the_audit() {
    let mut subject = Subject::new().await;
    let plain = format!("x'{}'", hex(&dalsegno_store::codec::encode(br#"{"forged":1}"#)));
    for (column, value) in
        [("arguments", &*plain), ("arguments", "NULL"), ("result", &*plain), ("result", "NULL")]
    {
        let at =
            subject.ciphertexts.iter().position(|it| (it.table, it.column) == ("calls", column)).unwrap();
        let (id, whole) = (subject.ciphertexts[at].place.clone(), subject.ciphertexts[at].bytes.clone());
        let sql = format!("UPDATE calls SET {column} = {value} WHERE id = '{id}'");
        subject.conn.execute(AssertSqlSafe(sql)).await.unwrap();
        subject.world.calls(subject.run, CallFilter::All).await.unwrap();
        let problems = subject.problems().await;
        let expected = format!("call {id:?}: its {column} is not what the audit says");
        assert!(problems.len() == 1 && problems[0].ends_with(&expected), "{problems:?}");
        subject.put(at, &whole).await;
        assert_eq!(subject.problems().await, [""; 0]);
    }
}
