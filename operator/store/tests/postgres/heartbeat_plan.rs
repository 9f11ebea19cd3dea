//! The cost of a batch of heartbeats.

use serde_json::Value;
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection};
use uuid::Uuid;

use crate::context::*;
use crate::fresh;
use dalsegno_model::HeartbeatAnswer;

/// Most heartbeats of one batch.
const WORKERS: i64 = 4_096;

/// Rows that one heartbeat may take through the whole plan: each step of the plan handles its row once.
const ROWS_PER_HEARTBEAT: f64 = 40.0;

/// From its sixth execution on a prepared statement may have a generic plan, which expects ten rows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_cost_of_heartbeats_grows_with_their_number_after_ten_executions_too() {
    let (cx, url) = fresh().await;
    let worker = cx.worker().await;
    let mut conn = PgConnection::connect(&url).await.unwrap();
    copy_run(&mut conn, worker.run).await;
    let sql = include_str!("../../src/postgres/heartbeats.sql");
    conn.execute(AssertSqlSafe(format!("PREPARE heartbeats (uuid[], bytea[]) AS {sql}"))).await.unwrap();
    let mut rows = Vec::new();
    for analyzed in [false, true] {
        if analyzed {
            conn.execute("ANALYZE runs").await.unwrap();
        }
        for plan in ["force_custom_plan", "force_generic_plan", "auto"] {
            conn.execute(AssertSqlSafe(format!("SET plan_cache_mode = {plan}"))).await.unwrap();
            for _ in 0..if plan == "auto" { 10 } else { 1 } {
                rows.push(rows_of(&mut conn).await);
            }
        }
    }
    let most = ROWS_PER_HEARTBEAT * WORKERS as f64;
    assert!(rows.iter().all(|rows| *rows <= most), "{rows:?}");
    assert!(rows.iter().all(|rows| *rows >= WORKERS as f64), "all are renewed: {rows:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_is_named_twice_in_a_batch_is_judged_for_each_worker() {
    let (cx, _) = fresh().await;
    let worker = cx.worker().await;
    let batch =
        [(worker.run, random_digest()), (worker.run, worker.capability), (Uuid::new_v4(), worker.capability)];
    let answers = cx.heartbeats(&batch).await.unwrap();
    let [HeartbeatAnswer::Fenced, HeartbeatAnswer::Ok(_), HeartbeatAnswer::Fenced] = answers[..] else {
        panic!("{answers:?}")
    };
    assert!(cx.run_of(&worker).await.attempt.lease_renewed_at.is_some());
}

/// Makes many runs like this one.
async fn copy_run(conn: &mut PgConnection, run: Uuid) {
    let copy = format!(
        "INSERT INTO runs SELECT copy.* FROM runs, generate_series(2, {WORKERS}) AS n, \
             LATERAL jsonb_populate_record(runs, jsonb_build_object( \
                 'id', gen_random_uuid(), 'name', 'run-' || n, 'object_uid', 'uid-' || n, \
                 'capability', '\\x' || encode(sha256(n::text::bytea), 'hex'))) AS copy \
         WHERE runs.id = '{run}'"
    );
    conn.execute(AssertSqlSafe(copy)).await.unwrap();
}

/// Rows that all steps of the plan read or discarded in one execution.
async fn rows_of(conn: &mut PgConnection) -> f64 {
    let literal = |column: &str| format!("SELECT quote_literal(array_agg({column})) FROM runs");
    let runs: String = sqlx::query_scalar(AssertSqlSafe(literal("id"))).fetch_one(&mut *conn).await.unwrap();
    let capabilities: String =
        sqlx::query_scalar(AssertSqlSafe(literal("capability"))).fetch_one(&mut *conn).await.unwrap();
    let explain = format!(
        "EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) EXECUTE heartbeats ({runs}::uuid[], {capabilities}::bytea[])"
    );
    let row = sqlx::raw_sql(AssertSqlSafe(explain)).fetch_one(conn).await.unwrap();
    let plan: Value = sqlx::Row::get(&row, 0);
    handled(&plan[0]["Plan"])
}

fn handled(node: &Value) -> f64 {
    let number = |name: &str| node[name].as_f64().unwrap_or_default();
    let own =
        number("Actual Rows") + number("Rows Removed by Join Filter") + number("Rows Removed by Filter");
    let below = node["Plans"].as_array().into_iter().flatten().map(handled).sum::<f64>();
    own * number("Actual Loops") + below
}
