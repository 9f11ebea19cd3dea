//! Keys that were replaced very often.

use std::time::{Duration, Instant};

use dalsegno_model::RecordQuery;
use dalsegno_protocol::{Payload, RecordOp};
use futures::future::join_all;

use crate::context::*;
use crate::engines::{on_every_persistent_engine, tamper};

on_every_persistent_engine! {
    what_was_replaced_costs_nothing_to_read,
    a_page_ends_in_the_middle_of_a_key,
    a_prefix_is_deleted_without_a_look_at_the_keys_after_it,
}

/// How often the key was replaced, each time in another turn.
const TIMES: i64 = 200_000;

/// Reads that take longer than this have read what was replaced. With these numbers that takes 0.2 s and more.
const QUICK: Duration = Duration::from_millis(100);

/// Asserts that a statement is quick with each of its plans: from its sixth execution on it may have another one. On a
/// busy machine many executions are slow, but not all of them.
fn assert_quick(times: &[Duration]) {
    let (first, later) = times.split_at(5);
    for plan in [first, later] {
        assert!(plan.iter().any(|time| *time < QUICK), "{times:?}");
    }
}

async fn what_was_replaced_costs_nothing_to_read(cx: &TestContext) {
    let worker = cx.worker().await;
    let put =
        |key: &str| RecordOp::Put { space: "s".into(), key: key.into(), value: Payload::Json(json("1")) };
    cx.write_records(&worker.record_batch(vec![put("a"), put("m"), put("z")])).await.unwrap();
    let series = if cx.is_sqlite() {
        format!("WITH RECURSIVE n (i) AS (SELECT 2 UNION ALL SELECT i + 1 FROM n WHERE i <= {TIMES})")
    } else {
        format!("WITH n (i) AS (SELECT * FROM generate_series(2, {TIMES} + 1))")
    };
    let columns = "run, space, key, seq, op, entry_id, value, size, turn, boundary, epoch, at, undone";
    let copy = columns.replace("seq", "i").replace("turn", "1");
    tamper(
        cx,
        &format!("INSERT INTO records ({columns}) {series} SELECT {copy} FROM records, n WHERE key = 'm'"),
    )
    .await;
    if !cx.is_sqlite() {
        tamper(cx, "ANALYZE records").await;
    }
    let query = RecordQuery { space: "s".into(), limit: 100, bytes: 1 << 20, ..RecordQuery::default() };
    let mut times = Vec::new();
    for _ in 0..10 {
        let started = Instant::now();
        let page = cx.read_records(worker.run, &query).await.unwrap();
        times.push(started.elapsed());
        assert_eq!(page.records.iter().map(|it| &*it.key).collect::<Vec<_>>(), ["a", "m", "z"]);
    }
    assert_quick(&times);
}

/// Many keys of the same boundary come after the prefix, and none of them belongs to it.
async fn a_prefix_is_deleted_without_a_look_at_the_keys_after_it(cx: &TestContext) {
    let worker = cx.worker().await;
    let put =
        |key: &str| RecordOp::Put { space: "s".into(), key: key.into(), value: Payload::Json(json("1")) };
    cx.write_records(&worker.record_batch(vec![put("m")])).await.unwrap();
    let series = if cx.is_sqlite() {
        format!("WITH RECURSIVE n (i) AS (SELECT 2 UNION ALL SELECT i + 1 FROM n WHERE i <= {TIMES})")
    } else {
        format!("WITH n (i) AS (SELECT * FROM generate_series(2, {TIMES} + 1))")
    };
    let columns = "run, space, key, seq, op, entry_id, value, size, turn, boundary, epoch, at, undone";
    let copy = columns.replace("key", "key || i");
    tamper(cx, &format!("INSERT INTO records ({columns}) {series} SELECT {copy} FROM records, n")).await;
    if !cx.is_sqlite() {
        tamper(cx, "ANALYZE records").await;
    }
    let mut times = Vec::new();
    for _ in 0..10 {
        cx.write_records(&worker.record_batch(vec![put("a/1"), put("a/2")])).await.unwrap();
        let delete = RecordOp::DeletePrefix { space: "s".into(), prefix: "a/".into() };
        let started = Instant::now();
        cx.write_records(&worker.record_batch(vec![delete])).await.unwrap();
        times.push(started.elapsed());
    }
    assert_quick(&times);
}

async fn a_page_ends_in_the_middle_of_a_key(cx: &TestContext) {
    let worker = cx.worker().await;
    let append = |key: &str, number: i32| RecordOp::Append {
        space: "s".into(),
        key: key.into(),
        entry_id: number.to_string(),
        value: Payload::Json(json(&number.to_string())),
    };
    let delete = |key: &str| RecordOp::Delete { space: "s".into(), key: key.into() };
    let mut operations = vec![append("gone", 1), append("a", 1), delete("gone")];
    for number in 1..=7 {
        operations.extend(["b", "c", "d"].map(|key| append(key, number)));
    }
    cx.write_records(&worker.record_batch(operations)).await.unwrap();
    let pages = join_all((1..=25).map(async |limit| {
        let mut query = RecordQuery { space: "s".into(), limit, bytes: 1 << 20, ..RecordQuery::default() };
        let mut read = Vec::new();
        loop {
            let page = cx.read_records(worker.run, &query).await.unwrap();
            assert!(page.records.len() <= limit as usize);
            read.extend(page.records.into_iter().map(|it| (it.key, it.entry_id)));
            match page.next {
                Some(next) => query.after = Some(next),
                None => return read,
            }
        }
    }));
    let pages = pages.await;
    assert_eq!(pages[0].len(), 22);
    assert!(pages.iter().all(|page| *page == pages[0]), "{pages:?}");
}
