//! Random edits of one column of one row: each is found, except in columns that nothing depends on.

use std::fmt::Write as _;

use dalsegno_model::{Claim, Claimed, Complete, Error, EventQuery, RunId, RunRecord};
use dalsegno_proof::verify;
use dalsegno_proof::{Anchors, check_store};
use dalsegno_protocol::{CompleteOutcome, Policy, Usage};
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, Row as _, SqliteConnection};

use crate::context::{TestContext, ok, planned, result_place, rewind_to};
use crate::edits::run;
use crate::{Engine, Rows};

/// A random generator with a fixed seed.
pub struct Numbers(u64);

impl From<u64> for Numbers {
    fn from(seed: u64) -> Self {
        Self(seed)
    }
}

impl Numbers {
    pub fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit as u64) as usize
    }
}

/// Every state of the run, and its boundaries; `Err` if they cannot be read.
async fn read(cx: &TestContext, run: RunId, turns: i32) -> Vec<Result<String, ()>> {
    let mut all = Vec::new();
    for turn in std::iter::once(None).chain((1..=turns).map(Some)) {
        all.push(seen(cx.state(run, turn).await));
    }
    all.push(seen(cx.boundaries(run, 1, turns).await));
    all
}

async fn events(cx: &TestContext, run: RunId) -> Result<String, ()> {
    seen(cx.events(run, EventQuery { from: 1, limit: 99, bytes: 9_999 }).await)
}

fn seen<T: std::fmt::Debug>(answer: Result<T, Error>) -> Result<String, ()> {
    match answer {
        Ok(answer) => Ok(format!("{answer:?}")),
        Err(Error::Corrupt { .. }) => Err(()),
        Err(error) => panic!("{error}"),
    }
}

/// Whether a scan finds damage. A row that cannot be read counts as damage.
async fn is_found(cx: &TestContext, run: &RunRecord) -> bool {
    match verify::scan(&*cx.store, run).await {
        Ok(findings) => !findings.damage.is_empty(),
        Err(Error::Corrupt { .. }) => true,
        Err(error) => panic!("{error}"),
    }
}

/// Whether a check of the whole store finds a problem. A row that cannot be read counts as one.
async fn has_problem(cx: &TestContext) -> bool {
    let mut problems = 0;
    let mut reading = cx.begin_read().await.unwrap();
    match check_store(&mut *reading, Anchors::default(), &mut |_| problems += 1).await {
        Ok(_) => problems > 0,
        Err(Error::Corrupt { .. }) => true,
        Err(error) => panic!("{error}"),
    }
}

/// Eight turns, one of them with the full state, a rewind to turn 5, and two more turns.
async fn subject(cx: &TestContext) -> RunRecord {
    let before = run(cx, "one", 8, &[3]).await;
    let rewind = rewind_to(before.epoch, result_place(5));
    cx.rewind(before.id, &rewind).await.unwrap();
    let worker = cx.start_worker(&cx.run_by_uid(&before.object_uid).await).await;
    let plan = dalsegno_model::Commit { ops: None, full: false, ..worker.plan(6) };
    cx.commit(&plan).await.unwrap();
    for turn in 6..=7 {
        let delta = format!(r#"{{"append":{{"log":[{{"json":{turn}}}]}}}}"#);
        let commit = dalsegno_model::Commit { ops: Some(delta.into()), full: false, ..worker.result(turn) };
        cx.commit(&commit).await.unwrap();
    }
    cx.run_of(&worker).await
}

/// The bytes as hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

/// Boolean columns.
const FLAGS: [&str; 5] = ["is_full", "finish", "undone", "dropped", "key_refused"];

/// Columns that nothing depends on: the run's own row and its audit say how it ended and that nothing was dropped.
const HARMLESS: [&str; 2] = ["finish", "dropped"];

/// One random edit of this column, as SQL.
pub fn edit(numbers: &mut Numbers, kind: &str, column: &str, old: Option<&[u8]>) -> String {
    match (kind, old) {
        _ if FLAGS.contains(&column) => format!("{column} = NOT {column}"),
        _ if column == "state" => {
            format!("state = '{}'", ["planned", "started", "completed", "failed"][numbers.below(4)])
        }
        _ if column == "policy" => {
            format!("policy = '{}'", ["retrySameKey", "probe", "ask", "readOnly"][numbers.below(4)])
        }
        ("INTEGER", _) => match numbers.below(4) {
            0 => format!("{column} = {column} + 1"),
            1 => format!("{column} = {column} - 1"),
            2 => format!("{column} = NOT {column}"),
            _ => format!("{column} = {}", numbers.below(9)),
        },
        ("BLOB", Some(bytes)) if !bytes.is_empty() => {
            let mut bytes = bytes.to_vec();
            match numbers.below(4) {
                0 => bytes.truncate(numbers.below(bytes.len())),
                1 => bytes.push(numbers.below(256) as u8),
                2 => return format!("{column} = NULL"),
                _ => {
                    let bit = numbers.below(bytes.len() * 8);
                    bytes[bit / 8] ^= 1 << (bit % 8);
                }
            }
            format!("{column} = x'{}'", hex(&bytes))
        }
        ("BLOB", _) => format!("{column} = run"),
        _ => format!("{column} = 'X{}'", numbers.below(9)),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_edits_are_found() {
    let engine = Engine::file().await;
    let cx = &engine.cx;
    let run = subject(cx).await;
    let Rows::Sqlite(path) = &engine.rows else { unreachable!() };
    let mut conn = SqliteConnection::connect(&format!("sqlite://{}", path.display())).await.unwrap();
    for statement in ["PRAGMA synchronous = OFF", "CREATE TABLE backup AS SELECT * FROM boundaries"] {
        conn.execute(statement).await.unwrap();
    }
    let columns = columns(&mut conn, "boundaries").await;
    let rows = run_rows(&mut conn).await as usize;
    assert_eq!(rows, 11);
    assert!(!is_found(cx, &run).await && !has_problem(cx).await, "nothing is damaged yet");
    let before = read(cx, run.id, 7).await;
    let events_before = events(cx, run.id).await;
    assert!(before.iter().chain([&events_before]).all(Result::is_ok));

    let mut numbers = Numbers::from(0x0dd_ba11);
    let mut edits = 0;
    while edits < tamperings() {
        let (column, kind) = &columns[numbers.below(columns.len())];
        let row = numbers.below(rows);
        let target =
            format!("(SELECT rowid FROM boundaries ORDER BY turn, boundary, epoch LIMIT 1 OFFSET {row})");
        let deletes = numbers.below(40) == 0;
        let sql = if deletes {
            format!("DELETE FROM boundaries WHERE rowid = {target}")
        } else {
            let old = value(&mut conn, "boundaries", column, &target).await;
            let edit = edit(&mut numbers, kind, column, old.as_deref());
            format!("UPDATE boundaries SET {edit} WHERE rowid = {target}")
        };
        // Skip edits that the table refuses or that change nothing.
        if conn.execute(AssertSqlSafe(sql.clone())).await.is_err() || is_unchanged(&mut conn).await {
            continue;
        }
        edits += 1;
        let harms = deletes || !HARMLESS.contains(&column.as_str());
        assert_eq!(has_problem(cx).await, harms, "{sql}");
        // No boundary follows the last undone one: only the audit shows that it existed.
        assert_eq!(is_found(cx, &run).await, harms && !(deletes && row + 1 == rows), "{sql}");
        let after = read(cx, run.id, 7).await;
        for (after, before) in after.iter().zip(&before) {
            assert!(after == before || harms && after.is_err(), "a wrong value was read: {sql}");
        }
        let after = events(cx, run.id).await;
        assert!(harms || after == events_before, "other events were read: {sql}");
        conn.execute("DELETE FROM boundaries").await.unwrap();
        conn.execute("INSERT INTO boundaries SELECT * FROM backup").await.unwrap();
    }
    assert!(!is_found(cx, &run).await && !has_problem(cx).await, "all edits were taken back");
}

/// Columns of a call that nothing depends on, or that the audit does not record: the times of claim, end and usage, the
/// claim id, who settled the call and why (the audit row `settled` has it), and the counted bytes.
const UNRECORDED: [&str; 10] = [
    "ordinal",
    "created_at",
    "started_at",
    "ended_at",
    "claim_id",
    "settled_by",
    "reason",
    "arguments_bytes",
    "result_bytes",
    "spent_at",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_edits_of_calls_are_found() {
    let engine = Engine::file().await;
    let cx = &engine.cx;
    calls(cx).await;
    let Rows::Sqlite(path) = &engine.rows else { unreachable!() };
    let mut conn = SqliteConnection::connect(&format!("sqlite://{}", path.display())).await.unwrap();
    for statement in ["PRAGMA synchronous = OFF", "CREATE TABLE backup AS SELECT * FROM calls"] {
        conn.execute(statement).await.unwrap();
    }
    let columns = columns(&mut conn, "calls").await;
    assert!(UNRECORDED.iter().all(|unrecorded| columns.iter().any(|(column, _)| column == unrecorded)));
    assert!(!has_problem(cx).await, "nothing is damaged yet");
    let mut numbers = Numbers::from(0xca11);
    let mut edits = 0;
    while edits < tamperings() {
        let (column, kind) = &columns[numbers.below(columns.len())];
        let target =
            format!("(SELECT rowid FROM calls ORDER BY ordinal LIMIT 1 OFFSET {})", numbers.below(5));
        let deletes = numbers.below(40) == 0;
        let sql = if deletes {
            format!("DELETE FROM calls WHERE rowid = {target}")
        } else {
            let old = value(&mut conn, "calls", column, &target).await;
            let edit = edit(&mut numbers, kind, column, old.as_deref());
            format!("UPDATE calls SET {edit} WHERE rowid = {target}")
        };
        // Without a last touched turn, the call's own turn counts.
        let columns = if column == "touched_turn" { "id, coalesce(touched_turn, turn)" } else { "*" };
        let changed = AssertSqlSafe(format!(
            "SELECT EXISTS (SELECT {columns} FROM backup EXCEPT SELECT {columns} FROM calls)"
        ));
        if conn.execute(AssertSqlSafe(sql.clone())).await.is_err()
            || !sqlx::query_scalar::<_, bool>(changed).fetch_one(&mut conn).await.unwrap()
        {
            put_back(&mut conn).await;
            continue;
        }
        edits += 1;
        let is_recorded = deletes || !UNRECORDED.contains(&column.as_str());
        let is_found = has_problem(cx).await;
        // Bytes that are not an id cannot be read.
        assert!(is_found == is_recorded || is_found && column == "claim_id", "{sql}");
        put_back(&mut conn).await;
    }
    assert!(!has_problem(cx).await, "all edits were taken back");
}

async fn put_back(conn: &mut SqliteConnection) {
    conn.execute("DELETE FROM calls").await.unwrap();
    conn.execute("INSERT INTO calls SELECT * FROM backup").await.unwrap();
}

/// Five calls: planned, started, refused, failed, completed.
async fn calls(cx: &TestContext) {
    let worker = cx.worker().await;
    let plan = dalsegno_model::Commit { calls: vec![planned("planned", Policy::Probe)], ..worker.plan(1) };
    ok(cx.commit(&plan).await.unwrap());
    for (id, outcome) in [
        ("started", None),
        ("refused", Some(CompleteOutcome::KeyRefused)),
        ("failed", Some(CompleteOutcome::Failed)),
        ("completed", Some(CompleteOutcome::Completed)),
    ] {
        let claim = Claim { tool: Some("bank.pay".into()), ..worker.claim(id, Policy::Ask) };
        assert!(matches!(cx.claim(&claim).await.unwrap(), Claimed::Go(_)));
        if let Some(outcome) = outcome {
            let usage = Usage { tokens_in: 1, tokens_out: 2, tool_calls: 3, cost_micro_usd: 4 };
            cx.complete(&Complete { outcome, usage, ..worker.complete(&claim) }).await.unwrap();
        }
    }
}

/// Names and types of a table's columns except `run`.
pub async fn columns(conn: &mut SqliteConnection, table: &str) -> Vec<(String, String)> {
    let sql = "SELECT name, type FROM pragma_table_info(?) WHERE name <> 'run'";
    let rows = sqlx::query(sql).bind(table).fetch_all(conn).await.unwrap();
    rows.iter().map(|row| (row.get(0), row.get(1))).collect()
}

/// The column of a row, as bytes.
async fn value(conn: &mut SqliteConnection, table: &str, column: &str, row: &str) -> Option<Vec<u8>> {
    let sql = format!("SELECT CAST({column} AS BLOB) FROM {table} WHERE rowid = {row}");
    sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(conn).await.unwrap()
}

/// Whether the boundaries equal the backup.
async fn is_unchanged(conn: &mut SqliteConnection) -> bool {
    let changed = "SELECT EXISTS (SELECT * FROM backup EXCEPT SELECT * FROM boundaries)";
    !sqlx::query_scalar::<_, bool>(changed).fetch_one(conn).await.unwrap()
}

async fn run_rows(conn: &mut SqliteConnection) -> i64 {
    sqlx::query_scalar("SELECT count(*) FROM boundaries").fetch_one(conn).await.unwrap()
}

/// The number of random edits; `make tamper` sets a larger one.
pub fn tamperings() -> usize {
    std::env::var("DALSEGNO_TAMPERINGS").map_or(1_000, |number| number.parse().unwrap())
}
