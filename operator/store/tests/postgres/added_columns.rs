//! A migration of a newer program adds columns while this program serves. PostgreSQL refuses a prepared statement whose
//! result has changed.

use dalsegno_model::{CallFilter, Commit, EndedRun, EventQuery, PurgeScope, RunId};
use dalsegno_protocol::{Payload, Policy, RecordOp};
use jiff::Timestamp;
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection};

use crate::context::*;
use crate::fresh;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn open_connections_survive_columns_that_a_migration_adds() {
    let (cx, url) = fresh().await;
    let worker = cx.worker().await;
    for round in 0..3 {
        use_everything(&cx, &worker, round).await;
    }
    let mut conn = PgConnection::connect(&url).await.unwrap();
    let tables = "SELECT tablename::text FROM pg_tables WHERE schemaname = 'public' AND tablename <> '_sqlx_migrations'";
    let tables: Vec<String> = sqlx::query_scalar(tables).fetch_all(&mut conn).await.unwrap();
    assert!(tables.len() > 15, "{tables:?}");
    for table in tables {
        let add = format!("ALTER TABLE {table} ADD COLUMN added_later integer NOT NULL DEFAULT 1");
        conn.execute(AssertSqlSafe(add)).await.unwrap();
    }
    use_everything(&cx, &worker, 3).await;
}

/// Calls each statement with a result once. No call may fail.
async fn use_everything(cx: &TestContext, worker: &Worker, round: i32) {
    let run = worker.run;
    let (plan, result) = (worker.plan(round + 1), worker.result(round + 1));
    let calls = vec![planned(&format!("planned-{round}"), Policy::RetrySameKey)];
    let put = RecordOp::Put { space: "s".into(), key: "k".into(), value: Payload::Json(json("1")) };
    ok(cx.commit(&Commit { calls, records: vec![put.clone()], ..plan }).await.unwrap());
    let claim = cx.start_call(worker, &format!("claimed-{round}"), Policy::RetrySameKey).await;
    cx.write_records(&worker.record_batch(vec![put])).await.unwrap();
    cx.complete(&worker.complete(&claim)).await.unwrap();
    ok(cx.commit(&Commit { events: vec![json("1")], ..result }).await.unwrap());
    cx.settle(&person_settles(run, &format!("planned-{round}"))).await.unwrap();
    cx.heartbeats(&[(run, worker.capability)]).await.unwrap();
    cx.is_current(run, &worker.capability).await.unwrap();

    let record = cx.get_run(run).await.unwrap().unwrap();
    cx.find(&record.namespace, &record.name).await.unwrap();
    cx.run_of(worker).await;
    cx.attempt(run, 1).await.unwrap();
    cx.state(run, None).await.unwrap();
    cx.boundary(run, dalsegno_model::BoundaryQuery::Turn(1)).await.unwrap();
    cx.boundaries(run, 1, 9).await.unwrap();
    cx.check_boundaries(run, None).await.unwrap();
    cx.sizes(run).await.unwrap();
    let all = [CallFilter::All, CallFilter::Pending, CallFilter::Unsettled, CallFilter::OpenTurn];
    for which in all.into_iter().chain([CallFilter::TouchedSince(1)]) {
        cx.calls(run, which).await.unwrap();
    }
    cx.read_records(run, &all_records()).await.unwrap();
    cx.events(run, EventQuery { from: 1, limit: 9, bytes: 1 << 20 }).await.unwrap();
    cx.first_event(run, 1).await.unwrap();
    cx.store.audit(run).await.unwrap();
    cx.count_unsealed(run).await.unwrap();
    cx.assert_audit_is_valid(run).await;

    let first = RunId::nil();
    cx.record_gateway_heartbeat().await.unwrap();
    cx.poll_deadlines(Timestamp::UNIX_EPOCH.into()).await.unwrap();
    cx.runs_to_expire(first).await.unwrap();
    cx.expire(run, 9).await.unwrap();
    cx.runs_to_compact(first).await.unwrap();
    cx.compact(run, 9).await.unwrap();
    cx.delete_unused_revisions(9).await.unwrap();
    cx.namespace_usage(9).await.unwrap();
    cx.heads_to_anchor(first).await.unwrap();
    let scope = PurgeScope { before: Timestamp::now(), namespace: None };
    cx.runs_to_purge(&scope, EndedRun { ended_at: i64::MIN, run: first }).await.unwrap();
    cx.forget_purges(first).await.unwrap();
    cx.adopt_namespace("nobody", "nowhere").await.unwrap();
}
