//! Edits of records and their batches: no wrong record is read without an error or a reported problem.

use dalsegno_model::{Commit, Error, RunId};
use dalsegno_proof::check_run;
use dalsegno_protocol::{Payload, RecordOp};
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, SqliteConnection};

use crate::context::{TestContext, Worker, all_records, json, ok};
use crate::random::{Numbers, columns, edit, tamperings};
use crate::{Engine, Rows, on_both_databases};

on_both_databases! {
    each_kind_of_edit_is_found,
}

fn put(key: &str, value: i32) -> RecordOp {
    RecordOp::Put { space: "s".into(), key: key.into(), value: Payload::Json(json(&value.to_string())) }
}

fn append(key: &str, id: i32) -> RecordOp {
    let (space, value) = ("s".into(), Payload::Json(json(&format!("\"{id}\""))));
    RecordOp::Append { space, key: key.into(), entry_id: id.to_string(), value }
}

/// Records of four turns: some are written by a boundary, some between two boundaries, and the last after the head. One is
/// replaced, and a prefix is deleted.
async fn written(cx: &TestContext) -> Worker {
    written_with(cx, 1).await
}

/// The same records, with this value under `k1`.
async fn written_with(cx: &TestContext, first: i32) -> Worker {
    let worker = cx.worker().await;
    for turn in 1..=4 {
        let (key, value) = (format!("k{turn}"), if turn == 1 { first } else { turn });
        let operations = vec![put(&key, value), append("log", turn), put("old", turn)];
        let batch = worker.record_batch(operations);
        cx.write_records(&batch).await.unwrap();
        if turn < 4 {
            let mut records = vec![append("log", 10 * turn), put(&format!("r{turn}"), turn)];
            match turn {
                1 => records.extend([put("draft/a", 1), put("draft/b", 2)]),
                3 => records.push(RecordOp::DeletePrefix { space: "s".into(), prefix: "draft/".into() }),
                _ => {}
            }
            ok(cx.commit(&Commit { records, ..worker.result(turn) }).await.unwrap());
        }
    }
    worker
}

/// The records as they are read; `None` if they are corrupt.
async fn read(cx: &TestContext, run: RunId) -> Option<String> {
    let query = all_records();
    match cx.read_records(run, &query).await {
        Ok(page) => Some(format!("{:?}", page.records)),
        Err(Error::Corrupt { .. }) => None,
        Err(error) => panic!("{error}"),
    }
}

/// The number of problems that a check of the run finds. A row that cannot be read counts as one.
async fn problems(cx: &TestContext, run: RunId) -> usize {
    let mut reading = cx.begin_read().await.unwrap();
    match check_run(&mut *reading, run).await {
        Ok(checked) => checked.problems.len(),
        Err(Error::Corrupt { .. }) => 1,
        Err(error) => panic!("{error}"),
    }
}

async fn is_found(cx: &TestContext, run: RunId) -> bool {
    problems(cx, run).await > 0
}

async fn each_kind_of_edit_is_found(engine: &Engine) {
    let cx = &engine.cx;
    for edit in [
        // Deleted, restored, moved to another key, older than its replacement, of another turn.
        "DELETE FROM records WHERE key = 'k1'",
        "DELETE FROM records WHERE key = 'log' AND entry_id = '2'",
        "UPDATE records SET undone = NOT undone WHERE key = 'k2'",
        "UPDATE records SET key = 'k9' WHERE key = 'k1'",
        "UPDATE records SET entry_id = 'other' WHERE entry_id = '10'",
        "UPDATE records SET value = (SELECT o.value FROM records o WHERE o.run = records.run AND o.key = 'k2') WHERE key = 'k1'",
        "UPDATE records SET value = (SELECT o.value FROM records o \
         WHERE o.run = records.run AND o.key = 'old' AND o.turn = 1) WHERE key = 'old' AND turn = 4",
        "DELETE FROM records WHERE key = 'old' AND turn = 4",
        "UPDATE records SET turn = 1 WHERE key = 'k2'",
        "INSERT INTO records (run, space, key, seq, op, value, size, turn, boundary, epoch, at) \
         SELECT run, space, 'new', 1, 'put', value, size, turn, boundary, epoch, at FROM records WHERE key = 'k2'",
        // What a prefix deleted comes back.
        "DELETE FROM records WHERE key = 'draft/a' AND op = 'delete'",
        "UPDATE records SET undone = NOT undone WHERE key = 'draft/b' AND op = 'delete'",
        "UPDATE records SET key = 'draft/c' WHERE key = 'draft/b' AND op = 'delete'",
        // Edits of the batches.
        "DELETE FROM record_changes WHERE seq = 1",
        "DELETE FROM record_changes WHERE seq = 7",
        "UPDATE record_changes SET undone = NOT undone WHERE seq = 2",
        "UPDATE record_changes SET turn = turn + 1 WHERE seq = 1",
        "UPDATE record_changes SET digest = (SELECT o.digest FROM record_changes o \
         WHERE o.run = record_changes.run AND o.seq = 2) WHERE seq = 1",
        "UPDATE record_changes SET batch = (SELECT o.batch FROM record_changes o \
         WHERE o.run = record_changes.run AND o.seq = 2) WHERE seq = 1",
        "UPDATE runs SET records_digest = NULL WHERE records_digest IS NOT NULL",
    ] {
        let run = written(cx).await.run;
        assert!(!is_found(cx, run).await, "nothing is damaged yet");
        // Edit only this run's rows.
        let id = run.simple();
        let run_is = match (&engine.rows, edit.starts_with("UPDATE runs")) {
            (Rows::Sqlite(_), false) => format!("run = x'{id}'"),
            (Rows::Sqlite(_), true) => format!("id = x'{id}'"),
            (Rows::Postgres(_), false) => format!("run = '{run}'"),
            (Rows::Postgres(_), true) => format!("id = '{run}'"),
        };
        engine.edit(&format!("{edit} AND {run_is}")).await;
        // One problem per key: after it, the rest of its list is not checked.
        let most = if edit.contains(" records ") { 2 } else { usize::MAX };
        let found = problems(cx, run).await;
        assert!((1..=most).contains(&found), "{found} after {edit}");
    }
}

/// An attacker may edit a record and its batch consistently; the boundary's hash still shows it.
#[tokio::test]
async fn a_batch_missing_from_the_boundarys_hash_is_found() {
    let engine = Engine::file().await;
    let cx = &engine.cx;
    let (run, other) = (written(cx).await.run, written_with(cx, 7).await.run);
    let of = |run: RunId| format!("run = x'{}'", run.simple());
    let (mine, theirs) = (of(run), format!("o.{}", of(other)));
    engine.edit(&format!(
        "UPDATE records SET value = (SELECT value FROM records o WHERE {theirs} AND key = 'k1') WHERE {mine} AND key = 'k1'; \
         UPDATE record_changes SET (digest, batch) = \
         (SELECT digest, batch FROM record_changes o WHERE {theirs} AND seq = 1) WHERE {mine} AND seq = 1"
    ))
    .await;
    let mut reading = cx.begin_read().await.unwrap();
    let found = check_run(&mut *reading, run).await.unwrap().problems;
    let shown: Vec<_> = found.iter().map(ToString::to_string).collect();
    let edited = "records of turn 1 (result): they are not the batches in its hash";
    assert_eq!(shown, [format!("run {run}, {edited}")]);
}

/// Columns that nothing depends on: how a record was written, its size, and when.
const UNRECORDED: [&str; 3] = ["op", "size", "at"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_edits_of_records_are_found() {
    let engine = Engine::file().await;
    let cx = &engine.cx;
    let run = written(cx).await.run;
    let Rows::Sqlite(path) = &engine.rows else { unreachable!() };
    let mut conn = SqliteConnection::connect(&format!("sqlite://{}", path.display())).await.unwrap();
    conn.execute("PRAGMA synchronous = OFF").await.unwrap();
    let tables = [("records", "space, key, seq", 22), ("record_changes", "seq", 7)];
    let mut all = Vec::new();
    for (table, key, rows) in tables {
        conn.execute(AssertSqlSafe(format!("CREATE TABLE backup_of_{table} AS SELECT * FROM {table}")))
            .await
            .unwrap();
        let count: i64 = sqlx::query_scalar(AssertSqlSafe(format!("SELECT count(*) FROM {table}")))
            .fetch_one(&mut conn)
            .await
            .unwrap();
        assert_eq!(count, rows, "{table}");
        let columns = columns(&mut conn, table).await;
        all.extend(columns.into_iter().map(|column| (table, key, rows as usize, column)));
    }
    let before = read(cx, run).await;
    assert!(before.is_some() && !is_found(cx, run).await, "nothing is damaged yet");
    let mut numbers = Numbers::from(0x5ec0_4ded);
    let (mut edits, mut found) = (0, 0);
    while edits < tamperings() {
        let (table, key, rows, (column, kind)) = &all[numbers.below(all.len())];
        let row = numbers.below(*rows);
        let target = format!("({key}) = (SELECT {key} FROM {table} ORDER BY {key} LIMIT 1 OFFSET {row})");
        let deletes = numbers.below(40) == 0;
        let sql = if deletes {
            format!("DELETE FROM {table} WHERE {target}")
        } else {
            let old = format!("SELECT CAST({column} AS BLOB) FROM {table} WHERE {target}");
            let old: Option<Vec<u8>> =
                sqlx::query_scalar(AssertSqlSafe(old)).fetch_one(&mut conn).await.unwrap();
            let edit = edit(&mut numbers, kind, column, old.as_deref());
            format!("UPDATE {table} SET {edit} WHERE {target}")
        };
        let changed = format!("SELECT EXISTS (SELECT * FROM backup_of_{table} EXCEPT SELECT * FROM {table})");
        // Skip edits that the table refuses or that change nothing.
        if conn.execute(AssertSqlSafe(sql.clone())).await.is_err()
            || !sqlx::query_scalar::<_, bool>(AssertSqlSafe(changed)).fetch_one(&mut conn).await.unwrap()
        {
            continue;
        }
        edits += 1;
        let (is_found, after) = (is_found(cx, run).await, read(cx, run).await);
        assert!(is_found || after == before, "a wrong value was read without a problem: {sql}");
        // Replaced records and sequence numbers are not read.
        let is_held = deletes || !UNRECORDED.contains(&column.as_str()) && column != "seq";
        let says = *table == "record_changes" && is_held;
        assert!(is_found || !says, "{sql}");
        found += usize::from(is_found);
        conn.execute(AssertSqlSafe(format!("DELETE FROM {table}"))).await.unwrap();
        conn.execute(AssertSqlSafe(format!("INSERT INTO {table} SELECT * FROM backup_of_{table}")))
            .await
            .unwrap();
    }
    assert!(found > edits / 2, "{found} of {edits}");
    assert!(!is_found(cx, run).await && read(cx, run).await == before, "all edits were taken back");
}
