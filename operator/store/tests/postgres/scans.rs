//! What runs every second or every minute reads no run in which there is nothing to do, and a page of records reads few
//! rows besides its own. The server itself explains each statement that the store sends.

use dalsegno_model::{EndedRun, PurgeScope, RecordKeysQuery, RecordQuery, RunId, Written};
use dalsegno_protocol::{Payload, RecordOp, RecordOrder};
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection};
use uuid::Uuid;

use crate::context::*;
use crate::open;
use crate::pg::Server;

/// Runs that ended long ago, and whose payloads are gone.
const EMPTIED: u32 = 4_000;

/// Runs that ended a day ago. They still have payloads, and they keep their last boundaries only.
const RECENT: u32 = 400;

/// Rows of `runs` that a statement may read if few runs have something to do.
const FEW: f64 = 50.0;

/// Keys of a space. One of them has as many entries.
const KEYS: usize = 3_000;

/// Rows of `records` that the steps of a plan may read for a page of ten: a few for each entry, and none for the other keys.
const A_PAGE: f64 = 100.0;

/// A server that plans a prepared statement five times may use a generic plan from then on.
const ROUNDS: usize = 7;

/// Makes the server log the plan of every statement, those inside functions too, with the rows that each step has read.
const EXPLAIN_ALL: [&str; 12] = [
    "-c",
    "session_preload_libraries=auto_explain",
    "-c",
    "auto_explain.log_min_duration=0",
    "-c",
    "auto_explain.log_format=json",
    "-c",
    "auto_explain.log_analyze=on",
    "-c",
    "auto_explain.log_timing=off",
    "-c",
    "auto_explain.log_nested_statements=on",
];

/// Columns that differ from the copied run's, in which nothing has moved since its last anchor.
const ENDED: &str = "'id', gen_random_uuid(), 'name', 'run-' || n, 'object_uid', kind || n, 'capability', null, \
     'anchored_audit_seq', runs.audit_seq, 'anchored_head_hash', runs.head_hash";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_periodic_statement_reads_the_runs_that_have_nothing_to_do() {
    let server = Server::start(&EXPLAIN_ALL);
    let url = server.database().await;
    let cx = open(&url).await;
    let worker = cx.worker().await;
    cx.commit_turn(&worker, 1).await;
    let mut conn = PgConnection::connect(&url).await.unwrap();
    let ended_at = (Timestamp::now() - SignedDuration::from_hours(24)).as_millisecond();
    let emptied =
        "'lifecycle', 'deleted', 'emptied', true, 'over_at', 1000, 'expired_at', 2000, 'keep_last', 3";
    copy(&mut conn, worker.run, EMPTIED, &format!("{ENDED}, {emptied}")).await;
    let recent = format!(
        "'lifecycle', 'finished', 'finish_at', {ended_at}, 'changed_at', {ended_at}, 'head_at', {ended_at}, \
         'keep_last', 3, 'compacted_keep_last', 3"
    );
    copy(&mut conn, worker.run, RECENT, &format!("{ENDED}, {recent}")).await;
    conn.execute("ANALYZE").await.unwrap();

    let with_payloads = f64::from(RECENT) + FEW;
    for (what, most) in [
        ("poll", FEW),
        ("expire", FEW),
        ("compact", FEW),
        ("revisions", FEW),
        ("anchors", FEW),
        ("purge", FEW),
        // Each run with payloads counts for its namespace.
        ("usage", with_payloads),
    ] {
        let before = server.log().len();
        for _ in 0..ROUNDS {
            ask(&cx, what).await;
        }
        let plans = plans(&server.log()[before..]);
        let read: Vec<_> = plans.iter().map(|plan| (rows_of("runs", &plan["Plan"]), plan)).collect();
        assert!(read.iter().any(|(rows, _)| rows.is_some()), "{what}: no plan reads the runs: {plans:#?}");
        for (rows, plan) in read {
            assert!(rows.unwrap_or_default() <= most, "{what} reads {rows:?} rows: {plan:#}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_of_records_reads_no_row_far_from_it() {
    let server = Server::start(&EXPLAIN_ALL);
    let url = server.database().await;
    let cx = open(&url).await;
    let worker = cx.worker().await;
    let value = || Payload::Json(json("1"));
    let keys =
        (0..KEYS).map(|n| RecordOp::Put { space: "s".into(), key: format!("key/{n:04}"), value: value() });
    let entries = (0..KEYS).map(|n| RecordOp::Append {
        space: "s".into(),
        key: "log".into(),
        entry_id: n.to_string(),
        value: value(),
    });
    let operations: Vec<_> = keys.chain(entries).collect();
    for thousand in operations.chunks(1_000) {
        let batch = worker.record_batch(thousand.to_vec());
        assert_eq!(cx.write_records(&batch).await.unwrap(), Written::Ok);
    }
    for analyzed in [false, true] {
        if analyzed {
            PgConnection::connect(&url).await.unwrap().execute("ANALYZE").await.unwrap();
        }
        let before = server.log().len();
        for _ in 0..ROUNDS {
            read_pages(&cx, worker.run).await;
        }
        let plans = plans(&server.log()[before..]);
        let read: Vec<_> = plans.iter().map(|plan| (rows_of("records", &plan["Plan"]), plan)).collect();
        assert!(
            read.iter().filter(|(rows, _)| rows.is_some()).count() >= ROUNDS * 13,
            "a plan for each read"
        );
        for (rows, plan) in read {
            assert!(rows.unwrap_or_default() <= A_PAGE, "{rows:?} rows, analyzed: {analyzed}: {plan:#}");
        }
    }
}

/// Reads pages of ten in each way, in the middle of the space.
async fn read_pages(cx: &TestContext, run: RunId) {
    for (prefix, after) in [("key/", ("key/1500", 1)), ("key/15", ("key/1510", 1)), ("", ("log", 1_500))] {
        for order in [RecordOrder::Asc, RecordOrder::Desc] {
            let after = Some((after.0.to_owned(), after.1));
            let (space, prefix) = ("s".into(), prefix.into());
            let query = RecordQuery { space, prefix, order, after, limit: 10, bytes: 1 << 20 };
            assert_eq!(cx.read_records(run, &query).await.unwrap().records.len(), 10, "{query:?}");
            // No key comes after the long one.
            let count = if query.prefix.is_empty() && order == RecordOrder::Asc { 0 } else { 10 };
            assert_eq!(cx.read_record_keys(run, &query).await.unwrap().keys.len(), count, "{query:?}");
        }
    }
    let keys = ["key/0001", "log", "key/2999"].map(String::from).to_vec();
    let query = RecordKeysQuery { space: "s".into(), keys, after: 0, limit: 10, bytes: 1 << 20 };
    assert_eq!(cx.read_records_of(run, &query).await.unwrap().records.len(), 10);
}

async fn ask(cx: &TestContext, what: &str) {
    let first = RunId::nil();
    match what {
        "poll" => {
            cx.record_gateway_heartbeat().await.unwrap();
            let since = Timestamp::now() - SignedDuration::from_secs(3);
            assert_eq!(cx.poll_deadlines(since.into()).await.unwrap().active, 1);
        }
        "expire" => assert!(cx.runs_to_expire(first).await.unwrap().is_empty()),
        "compact" => assert!(cx.runs_to_compact(first).await.unwrap().is_empty()),
        "revisions" => assert_eq!(cx.delete_unused_revisions(500).await.unwrap(), 0),
        "anchors" => assert_eq!(cx.heads_to_anchor(first).await.unwrap().heads.len(), 1),
        "purge" => {
            let scope = PurgeScope { before: Timestamp::UNIX_EPOCH, namespace: None };
            let after = EndedRun { ended_at: i64::MIN, run: first };
            assert!(cx.runs_to_purge(&scope, after).await.unwrap().is_empty());
        }
        "usage" => assert_eq!(cx.namespace_usage(20).await.unwrap().len(), 1),
        other => panic!("{other}"),
    }
}

/// Copies a run. `columns`: the columns that differ, as arguments of `jsonb_build_object`.
async fn copy(conn: &mut PgConnection, run: Uuid, count: u32, columns: &str) {
    let stored = "SELECT string_agg(quote_ident(attname), ', ') FROM pg_attribute \
                  WHERE attrelid = 'runs'::regclass AND attnum > 0 AND NOT attisdropped AND attgenerated = ''";
    let names: String = sqlx::query_scalar(stored).fetch_one(&mut *conn).await.unwrap();
    let copy = format!(
        "INSERT INTO runs ({names}) SELECT {names} FROM ( \
             SELECT copy.* FROM runs, generate_series(1, {count}) AS n, (SELECT '{count}-' AS kind) AS kind, \
                 LATERAL jsonb_populate_record(runs, jsonb_build_object({columns})) AS copy \
             WHERE runs.id = '{run}') AS copies"
    );
    conn.execute(AssertSqlSafe(copy)).await.unwrap();
}

/// The plans in a part of the server's log: JSON after a line that ends with `plan:`, indented by a tab.
fn plans(log: &str) -> Vec<Value> {
    let after_heading = log.split("plan:\n").skip(1);
    let json =
        |text: &str| text.lines().map_while(|line| line.strip_prefix('\t')).collect::<Vec<_>>().join("\n");
    after_heading.map(|text| serde_json::from_str(&json(text)).unwrap()).collect()
}

/// Rows of a table that the steps of a plan have read, those that a filter removed included. `None`: no step reads it.
fn rows_of(table: &str, node: &Value) -> Option<f64> {
    let number = |name: &str| node[name].as_f64().unwrap_or_default();
    let own = (node["Relation Name"] == table && node["Node Type"] != "ModifyTable").then(|| {
        let removed = number("Rows Removed by Filter") + number("Rows Removed by Index Recheck");
        (number("Actual Rows") + removed) * number("Actual Loops")
    });
    let below = node["Plans"].as_array().into_iter().flatten().filter_map(|plan| rows_of(table, plan));
    own.into_iter().chain(below).reduce(|one, other| one + other)
}
