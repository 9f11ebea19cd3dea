//! The cost of an anchor: it depends on the runs that have moved, not on those that ever were.

use dalsegno_model::anchor::{AnchorRow, NewAnchor};
use dalsegno_model::{HeadsToAnchor, RunId};
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection};

use crate::context::*;
use crate::{fresh, open};

const TICKS: i64 = 20;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tick_reads_the_same_rows_beside_1_000_and_30_000_ended_runs() {
    let (cx, url) = fresh().await;
    let mut live = Vec::new();
    for _ in 0..3 {
        live.push(cx.run().await);
    }
    anchor(&cx).await;
    let (mut read, mut granted) = (Vec::new(), 0);
    for ended in [1_000, 29_000] {
        copy_run(&url, live[0].id, ended).await;
        while !anchor(&cx).await.is_empty() {}
        sleep_ms(1_100).await;
        anchor(&cx).await;
        let before = rows_read(&url).await;
        for _ in 0..TICKS {
            cx.reset_budget(live[1].id, granted, granted + 1).await.unwrap();
            granted += 1;
            assert_eq!(anchor(&cx).await, [live[1].id]);
            sleep_ms(60).await;
        }
        sleep_ms(1_100).await;
        anchor(&cx).await;
        read.push(rows_read(&url).await - before);
    }
    let most = TICKS * 20;
    assert!(read.iter().all(|rows| (1..=most).contains(rows)), "{TICKS} ticks read {read:?} rows of runs");
}

/// An update between two anchors leaves all indexes as they are.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_to_a_run_that_has_moved_already_is_a_hot_update() {
    let (cx, url) = fresh().await;
    let worker = cx.worker().await;
    let mut turn = 0;
    let mut updates = Vec::new();
    for anchors in [0, 10] {
        let before = hot_updates(&url).await;
        for round in 0..20 {
            turn += 1;
            ok(cx.commit(&worker.result(turn)).await.unwrap());
            if round % 2 == 0 && round / 2 < anchors {
                anchor(&cx).await;
            }
        }
        sleep_ms(1_100).await;
        ok(cx.commit(&worker.result(turn + 1)).await.unwrap());
        turn += 1;
        let after = hot_updates(&url).await;
        updates.push((after.0 - before.0, after.1 - before.1));
    }
    let [(without, hot), (with, with_hot)] = *updates else { panic!("{updates:?}") };
    // Now and then a page is full and could not be pruned, and an update goes to another page. If a column that each
    // commit changes were in an index, no update would be HOT.
    assert!(without >= 20 && without - hot <= 5, "{without} updates, {hot} of them HOT");
    // Each of the ten anchors costs two that are not: it resets the mark, and the next commit sets it.
    assert!(with >= 30 && with - with_hot <= 25, "{with} updates, {with_hot} of them HOT");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_anchor_waits_for_no_locked_run_and_anchors_it_again() {
    let (cx, url) = fresh().await;
    let (locked, other) = (cx.run().await, cx.run().await);
    let mut conn = PgConnection::connect(&url).await.unwrap();
    let mut transaction = conn.begin().await.unwrap();
    let lock = format!("SELECT FROM runs WHERE id = '{}' FOR UPDATE", locked.id);
    transaction.execute(AssertSqlSafe(lock)).await.unwrap();
    // One that waited would wait for the end of the transaction below, and fail.
    let named = anchor(&cx).await;
    let mut all = [locked.id, other.id];
    all.sort();
    assert_eq!(named, all);
    transaction.rollback().await.unwrap();
    assert_eq!(anchor(&cx).await, [locked.id]);
    assert!(anchor(&cx).await.is_empty());
    drop(open(&url).await);
}

/// Anchors what has moved, without a signature. Returns the runs.
async fn anchor(cx: &TestContext) -> Vec<RunId> {
    let moved = cx.store.heads_to_anchor(RunId::nil()).await.unwrap();
    let HeadsToAnchor { last, heads, .. } = moved;
    let seq = last.map_or(0, |last| last.seq) + 1;
    let runs = heads.iter().map(|leaf| leaf.run).collect();
    if !heads.is_empty() {
        let leaves = heads.len() as u32;
        let row = AnchorRow {
            seq,
            parent_hash: [0; 32],
            root: [0; 32],
            leaves,
            public_key: [0; 32],
            line: String::new(),
        };
        assert!(cx.store.put_anchor(&NewAnchor { row, heads }).await.unwrap());
    }
    runs
}

/// Adds ended runs: copies of this one.
async fn copy_run(url: &str, run: RunId, copies: i64) {
    let mut conn = PgConnection::connect(url).await.unwrap();
    let sql = format!(
        "CREATE TEMPORARY TABLE copies AS SELECT * FROM runs WHERE id = '{run}'; \
         ALTER TABLE copies DROP COLUMN has_moved; \
         UPDATE copies SET lifecycle = 'finished', finish_at = 0, anchored_audit_seq = NULL;"
    );
    conn.execute(sqlx::raw_sql(AssertSqlSafe(sql))).await.unwrap();
    let columns: String = sqlx::query_scalar(
        "SELECT string_agg(attname, ', ' ORDER BY attnum) FROM pg_attribute \
         WHERE attrelid = 'copies'::regclass AND attnum > 0 AND NOT attisdropped \
           AND attname NOT IN ('id', 'object_uid', 'name')",
    )
    .fetch_one(&mut conn)
    .await
    .unwrap();
    let sql = format!(
        "INSERT INTO runs (id, object_uid, name, {columns}) \
         SELECT gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), {columns} \
         FROM copies, generate_series(1, {copies})"
    );
    conn.execute(AssertSqlSafe(sql)).await.unwrap();
    conn.execute("ANALYZE runs").await.unwrap();
}

async fn rows_read(url: &str) -> i64 {
    let sql = "SELECT (seq_tup_read + coalesce(idx_tup_fetch, 0))::bigint FROM pg_stat_user_tables \
               WHERE relname = 'runs'";
    sqlx::query_scalar(sql).fetch_one(&mut PgConnection::connect(url).await.unwrap()).await.unwrap()
}

async fn hot_updates(url: &str) -> (i64, i64) {
    let sql = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'runs'";
    sqlx::query_as(sql).fetch_one(&mut PgConnection::connect(url).await.unwrap()).await.unwrap()
}
