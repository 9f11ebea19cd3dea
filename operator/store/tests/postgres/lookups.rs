//! The cost of a lookup: the same late in a run as at its beginning.

use dalsegno_model::{Commit, RecordQuery, Written};
use dalsegno_protocol::{Payload, RecordOp};
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection};

use crate::context::*;
use crate::pg::Server;
use crate::{fresh, open};

const TURNS: i32 = 300;
const LOOKUPS: i64 = 20;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lookup_reads_few_rows_in_a_long_run() {
    let (cx, url) = fresh().await;
    let worker = cx.worker().await;
    for turn in 1..=TURNS {
        let ops = Some(format!(r#"{{"append":{{"log":[{{"json":{turn}}}]}}}}"#).into_bytes());
        ok(cx.commit(&Commit { ops, full: false, ..worker.result(turn) }).await.unwrap());
        if turn % 10 == 0 {
            assert!(cx.snapshot(worker.run).await.unwrap().made, "turn {turn}");
        }
    }
    look_up(&cx, &worker).await;
    let before = rows_read(&url, "'boundaries', 'snapshots'").await;
    look_up(&cx, &worker).await;
    let read = rows_read(&url, "'boundaries', 'snapshots'").await - before;
    assert!((1..=LOOKUPS * 20).contains(&read), "{LOOKUPS} lookups read {read} rows");
}

/// Planning the walk takes longer than executing it. A server plans a prepared statement anew five times, and then uses a
/// generic plan unless a plan for the given values looks cheaper.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lookup_is_planned_once() {
    let server = Server::start(&["-c", "track_activity_query_size=16kB"]);
    let url = server.database().await;
    let cx = open(&url).await;
    let worker = cx.worker().await;
    ok(cx.commit(&worker.result(1)).await.unwrap());
    assert!(cx.state(worker.run, None).await.unwrap().is_some());

    let mut conn = PgConnection::connect(&url).await.unwrap();
    let requested_by = "SELECT query FROM pg_stat_activity WHERE query LIKE 'WITH RECURSIVE run AS%'";
    let walk: String = sqlx::query_scalar(requested_by).fetch_one(&mut conn).await.unwrap();
    let types = "uuid, integer, integer, boolean, bytea[], integer, smallint, bigint, boolean";
    conn.execute(AssertSqlSafe(format!("PREPARE walk ({types}) AS {walk}"))).await.unwrap();
    let run = worker.run;
    let look_up =
        format!("EXECUTE walk ('{run}', 2147483647, 2147483646, true, '{{}}', NULL, NULL, NULL, false)");
    for _ in 0..10 {
        assert_eq!(conn.fetch_all(AssertSqlSafe(look_up.clone())).await.unwrap().len(), 1);
    }
    let planned = "SELECT generic_plans FROM pg_prepared_statements WHERE name = 'walk'";
    let kept: i64 = sqlx::query_scalar(planned).fetch_one(&mut conn).await.unwrap();
    assert_eq!(kept, 5);
}

/// Without statistics, a server would compare each version with all later ones if the query allowed it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_with_many_versions_is_read_in_time() {
    let (_, url) = fresh().await;
    let cx = open(&url).await;
    let worker = cx.worker().await;
    let run = worker.run;
    let write = async |operation| write(&cx, &worker, operation).await;
    let (space, key) = ("s".to_owned(), "latest".to_owned());
    write(RecordOp::Put { space: space.clone(), key: key.clone(), value: Payload::Json(json("1")) }).await;
    let versions = "INSERT INTO records SELECT run, space, key, seq + n, op, entry_id, value, size, turn, boundary, epoch, at \
         FROM records, generate_series(1, 30000) AS n";
    PgConnection::connect(&url).await.unwrap().execute(versions).await.unwrap();

    let query = RecordQuery { space: "s".into(), limit: 10, bytes: 1 << 20, ..RecordQuery::default() };
    let page = cx.read_records(run, &query).await.unwrap();
    assert_eq!((page.records.len(), page.next), (1, None));
    write(RecordOp::Delete { space, key }).await;
    assert!(cx.read_records(run, &query).await.unwrap().records.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_put_to_a_key_with_many_versions_reads_few_rows() {
    let (cx, url) = fresh().await;
    let worker = cx.worker().await;
    let put =
        |key: &str| RecordOp::Put { space: "s".into(), key: key.into(), value: Payload::Json(json("1")) };
    write(&cx, &worker, put("latest")).await;
    let versions = "INSERT INTO records SELECT run, space, key, seq + n, op, entry_id, value, size, turn - n, boundary, epoch, at \
         FROM records, generate_series(1, 30000) AS n";
    let mut conn = PgConnection::connect(&url).await.unwrap();
    conn.execute(versions).await.unwrap();
    // Statistics that say that one key has nearly all rows.
    conn.execute("ANALYZE records").await.unwrap();
    sleep_ms(1_100).await;
    let before = rows_read(&url, "'records'").await;
    for round in 0..LOOKUPS {
        write(&cx, &worker, put(if round % 2 == 0 { "latest" } else { "other" })).await;
        sleep_ms(60).await;
    }
    sleep_ms(1_100).await;
    write(&cx, &worker, put("other")).await;
    let read = rows_read(&url, "'records'").await - before;
    assert!((1..=LOOKUPS * 20).contains(&read), "{LOOKUPS} puts read {read} rows");
}

async fn write(cx: &TestContext, worker: &Worker, operation: RecordOp) {
    let Worker { run: _, capability: _, .. } = *worker;
    let batch = worker.record_batch(vec![operation]);
    assert_eq!(cx.write_records(&batch).await.unwrap(), Written::Ok);
}

/// Repeats lookups for more than a second: the server updates a connection's statistics once per second.
async fn look_up(cx: &TestContext, worker: &Worker) {
    for _ in 0..LOOKUPS {
        assert!(cx.state(worker.run, None).await.unwrap().is_some());
        sleep_ms(60).await;
    }
}

async fn rows_read(url: &str, tables: &str) -> i64 {
    let mut conn = PgConnection::connect(url).await.unwrap();
    sqlx::query_scalar(AssertSqlSafe(format!(
        "SELECT sum(seq_tup_read + coalesce(idx_tup_fetch, 0))::bigint FROM pg_stat_user_tables \
         WHERE relname IN ({tables})"
    )))
    .fetch_one(&mut conn)
    .await
    .unwrap()
}
