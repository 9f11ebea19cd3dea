//! Records: what the keys hold, what is refused, and that only the run's own worker can write them.

mod boundaries;
mod pages;
mod prefixes;

use std::time::Duration;

use dalsegno_model::{Class, Commit, FinishCall, RecordBatch, RecordPage, RecordQuery, RunId, Written};
use dalsegno_protocol::{Payload, Policy, RecordOp};
use futures::future::join_all;
use tokio::time::timeout;
use uuid::Uuid;

use crate::context::*;
use crate::engines::on_every_engine;

on_every_engine! {
    a_key_holds_the_entries_of_the_table,
    an_entry_is_appended_once,
    the_same_batch_again_changes_nothing,
    the_same_id_with_other_bytes_is_a_conflict,
    concurrent_copies_of_a_batch_are_written_once,
    a_batch_that_waited_for_the_lock_sees_earlier_writes,
    refusals_have_the_precedence_of_a_commit,
    a_new_attempt_reads_the_last_ones_records,
    entries_are_sorted_by_bytes_and_filtered_by_prefix,
    pages_concatenate_to_the_whole_list,
    a_long_list_is_read_and_appended_to_in_time,
    a_page_of_records_is_limited_by_bytes,
    runs_do_not_see_each_others_records,
    a_value_is_read_back_byte_for_byte,
}

fn put(key: &str, value: &str) -> RecordOp {
    RecordOp::Put { space: "s".into(), key: key.into(), value: Payload::Json(json(value)) }
}

fn put_if_absent(key: &str, value: &str) -> RecordOp {
    RecordOp::PutIfAbsent { space: "s".into(), key: key.into(), value: Payload::Json(json(value)) }
}

fn append(key: &str, value: &str) -> RecordOp {
    let (space, entry_id) = ("s".into(), format!("entry-{value}"));
    RecordOp::Append { space, key: key.into(), entry_id, value: Payload::Json(json(value)) }
}

fn delete(key: &str) -> RecordOp {
    RecordOp::Delete { space: "s".into(), key: key.into() }
}

fn batch(worker: &Worker, operations: Vec<RecordOp>) -> RecordBatch {
    worker.record_batch(operations)
}

async fn write(cx: &TestContext, worker: &Worker, operations: Vec<RecordOp>) {
    assert_eq!(cx.write_records(&batch(worker, operations)).await.unwrap(), Written::Ok);
}

fn query(prefix: &str) -> RecordQuery {
    let (space, prefix) = ("s".into(), prefix.into());
    RecordQuery { space, prefix, limit: 1_000, bytes: 1 << 20, ..RecordQuery::default() }
}

/// `key=value` for each entry.
fn shown(page: &RecordPage) -> Vec<String> {
    let value = |payload: &Payload| match payload {
        Payload::Json(json) => json.get().to_owned(),
        Payload::Bytes { base64, .. } => base64.clone(),
    };
    page.records.iter().map(|record| format!("{}={}", record.key, value(&record.value))).collect()
}

/// The entries of the run's keys. Checks them against the audit first.
async fn held(cx: &TestContext, run: RunId) -> Vec<String> {
    cx.assert_audit_is_valid(run).await;
    shown(&cx.read_records(run, &query("")).await.unwrap())
}

async fn a_key_holds_the_entries_of_the_table(cx: &TestContext) {
    // Batches, in order; the entries after them.
    let cases: &[(&[&[RecordOp]], &[&str])] = &[
        (&[&[put("k", "1")]], &["k=1"]),
        (&[&[put("k", "1")], &[put("k", "2")]], &["k=2"]),
        (&[&[put("k", "1"), put("k", "2")]], &["k=2"]),
        (&[&[put_if_absent("k", "1")], &[put_if_absent("k", "2")]], &["k=1"]),
        (&[&[append("k", "1")], &[put_if_absent("k", "2")]], &["k=1"]),
        (&[&[append("k", "1"), append("k", "2")], &[append("k", "3")]], &["k=1", "k=2", "k=3"]),
        (&[&[put("k", "1")], &[append("k", "2")]], &["k=1", "k=2"]),
        (&[&[append("k", "1"), append("k", "2")], &[put("k", "3")]], &["k=3"]),
        (&[&[put("k", "1")], &[delete("k")]], &[]),
        (&[&[delete("k")]], &[]),
        (&[&[append("k", "1")], &[delete("k")], &[append("k", "2")]], &["k=2"]),
        (&[&[put("k", "1")], &[delete("k"), put_if_absent("k", "2")]], &["k=2"]),
        (&[&[put("k", "1")], &[delete("k")], &[put_if_absent("k", "2")]], &["k=2"]),
        (&[&[append("k", "1")], &[delete("k"), append("k", "1")]], &["k=1"]),
        (&[&[put("k", "1"), put("l", "1")], &[delete("k"), append("l", "2")]], &["l=1", "l=2"]),
    ];
    for (batches, expected) in cases {
        // Once within one turn, and once with a turn between two batches.
        for between in [false, true] {
            let worker = cx.worker().await;
            for (turn, operations) in (1..).zip(*batches) {
                write(cx, &worker, operations.to_vec()).await;
                if between {
                    cx.commit_turn(&worker, turn).await;
                }
            }
            assert_eq!(held(cx, worker.run).await, *expected, "{batches:?}, turns between: {between}");
        }
    }
}

async fn an_entry_is_appended_once(cx: &TestContext) {
    let worker = cx.worker().await;
    write(cx, &worker, vec![append("k", "1"), append("k", "1"), append("l", "1")]).await;
    cx.commit_turn(&worker, 1).await;
    write(cx, &worker, vec![append("k", "2"), append("k", "1")]).await;
    assert_eq!(held(cx, worker.run).await, ["k=1", "k=2", "l=1"]);
}

async fn the_same_batch_again_changes_nothing(cx: &TestContext) {
    let worker = cx.worker().await;
    let first = batch(&worker, vec![put("k", "1"), append("l", "1")]);
    assert_eq!(cx.write_records(&first).await.unwrap(), Written::Ok);
    write(cx, &worker, vec![put("k", "2"), delete("l")]).await;
    cx.commit_turn(&worker, 1).await;
    for _ in 0..3 {
        assert_eq!(cx.write_records(&first).await.unwrap(), Written::Duplicate);
    }
    assert_eq!(held(cx, worker.run).await, ["k=2"], "a repeated old batch restores nothing");
}

async fn the_same_id_with_other_bytes_is_a_conflict(cx: &TestContext) {
    let worker = cx.worker().await;
    let first = batch(&worker, vec![put("k", "1")]);
    assert_eq!(cx.write_records(&first).await.unwrap(), Written::Ok);
    let other = RecordBatch { digest: random_digest(), operations: vec![put("k", "2")], ..first };
    assert_eq!(cx.write_records(&other).await.unwrap(), Written::Conflict);
    assert_eq!(held(cx, worker.run).await, ["k=1"]);
}

async fn concurrent_copies_of_a_batch_are_written_once(cx: &TestContext) {
    let worker = cx.worker().await;
    for round in 0..20 {
        let batch = batch(&worker, vec![append("k", &round.to_string())]);
        let answers = join_all((0..3).map(|_| cx.write_records(&batch))).await;
        let answers: Vec<_> = answers.into_iter().map(Result::unwrap).collect();
        assert_eq!(answers.iter().filter(|answer| **answer == Written::Ok).count(), 1, "{answers:?}");
        assert_eq!(answers.iter().filter(|answer| **answer == Written::Duplicate).count(), 2, "{answers:?}");
    }
    assert_eq!(held(cx, worker.run).await.len(), 20);
}

async fn a_batch_that_waited_for_the_lock_sees_earlier_writes(cx: &TestContext) {
    let worker = cx.worker().await;
    for turn in 1..=20 {
        let key = format!("k{turn:02}");
        let plan = Commit { records: vec![put_if_absent(&key, "0")], ..worker.plan(turn) };
        let batches = [1, 2].map(|n| batch(&worker, vec![put_if_absent(&key, &n.to_string())]));
        let (left, committed, right) =
            tokio::join!(cx.write_records(&batches[0]), cx.commit(&plan), cx.write_records(&batches[1]));
        assert_eq!((left.unwrap(), right.unwrap()), (Written::Ok, Written::Ok));
        ok(committed.unwrap());
        cx.commit_turn(&worker, turn).await;
    }
    assert_eq!(held(cx, worker.run).await.len(), 20, "each key was absent once");
}

async fn refusals_have_the_precedence_of_a_commit(cx: &TestContext) {
    let worker = cx.worker().await;
    let batch = |worker| batch(worker, vec![put("k", "1")]);
    let unknown = RecordBatch { run: Uuid::now_v7(), ..batch(&worker) };
    assert_eq!(cx.write_records(&unknown).await.unwrap(), Written::NotFound);

    let written = batch(&worker);
    assert_eq!(cx.write_records(&written).await.unwrap(), Written::Ok);
    cx.start_call(&worker, "pay", Policy::RetrySameKey).await;
    let next = cx.next_worker(&worker).await;
    assert_eq!(cx.write_records(&written).await.unwrap(), Written::Fenced, "also for a stored batch");
    assert_eq!(cx.write_records(&batch(&worker)).await.unwrap(), Written::Fenced);

    assert_eq!(cx.write_records(&batch(&next)).await.unwrap(), Written::UnsettledCalls);
    let its_own = RecordBatch { capability: next.capability, ..written };
    assert_eq!(cx.write_records(&its_own).await.unwrap(), Written::Duplicate, "before unsettled calls");
    cx.settle(&next.settle("pay")).await.unwrap();

    let finish: FinishCall = next.finish();
    ok(cx.finish(&finish).await.unwrap());
    assert_eq!(cx.write_records(&its_own).await.unwrap(), Written::Duplicate, "before the end");
    assert_eq!(cx.write_records(&batch(&next)).await.unwrap(), Written::Finished);
    let other = RecordBatch { digest: random_digest(), ..its_own };
    assert_eq!(cx.write_records(&other).await.unwrap(), Written::Finished, "before a conflict");
    assert_eq!(held(cx, worker.run).await, ["k=1"]);
}

async fn a_new_attempt_reads_the_last_ones_records(cx: &TestContext) {
    let worker = cx.worker().await;
    cx.commit_turn(&worker, 1).await;
    write(cx, &worker, vec![append("k", "1")]).await;
    let next = cx.next_worker(&worker).await;
    write(cx, &next, vec![append("k", "1"), append("k", "2")]).await;
    let page = cx.read_records(next.run, &query("")).await.unwrap();
    assert_eq!(shown(&page), ["k=1", "k=2"]);
    assert_eq!(page.records.iter().map(|record| record.turn).collect::<Vec<_>>(), [2, 2]);
    assert_eq!(page.records[0].entry_id.as_deref(), Some("entry-1"));
    assert_eq!(cx.end_and_reserve(&next, Class::Disruption).await.counters.disruptions, 2);
}

async fn entries_are_sorted_by_bytes_and_filtered_by_prefix(cx: &TestContext) {
    let worker = cx.worker().await;
    let keys = ["é", "a/2", "B", "a", "a/10", "a0", "\u{10ffff}", "_", "a/1"];
    write(cx, &worker, keys.iter().map(|key| put(key, "1")).collect()).await;
    let other = RecordOp::Put { space: "t".into(), key: "a/3".into(), value: Payload::Json(json("1")) };
    write(cx, &worker, vec![other]).await;
    let mut ordered = keys;
    ordered.sort();
    assert_eq!(held(cx, worker.run).await, ordered.map(|key| format!("{key}=1")));
    for (prefix, expected) in [
        ("a/", vec!["a/1=1", "a/10=1", "a/2=1"]),
        ("a/1", vec!["a/1=1", "a/10=1"]),
        ("é", vec!["é=1"]),
        ("\u{10ffff}", vec!["\u{10ffff}=1"]),
        ("A", vec![]),
        ("%", vec![]),
    ] {
        let page = cx.read_records(worker.run, &query(prefix)).await.unwrap();
        assert_eq!(shown(&page), expected, "{prefix:?}");
    }
}

async fn pages_concatenate_to_the_whole_list(cx: &TestContext) {
    let worker = cx.worker().await;
    let mut operations: Vec<_> = (0..7).map(|n| append("k", &n.to_string())).collect();
    operations.extend((0..5).map(|n| put(&format!("l{n}"), "1")));
    write(cx, &worker, operations).await;
    let whole = held(cx, worker.run).await;
    assert_eq!(whole.len(), 12);
    for limit in [1, 2, 3, 4, 5, 11, 12, 13] {
        let (mut joined, mut pages, mut after) = (Vec::new(), 0, None);
        loop {
            let query = RecordQuery { after: after.take(), limit, ..query("") };
            let page = cx.read_records(worker.run, &query).await.unwrap();
            assert!(page.records.len() <= limit as usize);
            joined.extend(shown(&page));
            pages += 1;
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        assert_eq!(joined, whole, "limit {limit}");
        assert_eq!(pages, 12_u32.div_ceil(limit), "limit {limit}: no page is empty");
    }
}

/// A session's log under one key. An earlier version compared each entry with all others and needed minutes for a call; a
/// gateway waits seconds.
async fn a_long_list_is_read_and_appended_to_in_time(cx: &TestContext) {
    const DEADLINE: Duration = Duration::from_secs(60);
    let worker = cx.worker().await;
    let unlike = || (0..64).map(|_| Uuid::new_v4().simple().to_string()).collect::<String>();
    let entry = |n: usize| {
        let (space, key, entry_id) = ("s".into(), "log".into(), n.to_string());
        RecordOp::Append { space, key, entry_id, value: Payload::Json(json(&format!("\"{}\"", unlike()))) }
    };
    for thousand in 0..10 {
        let operations = (0..1_000).map(|n| entry(thousand * 1_000 + n)).collect();
        let written = timeout(DEADLINE, write(cx, &worker, operations)).await;
        written.expect("a batch in time");
    }
    let (mut entries, mut after) = (Vec::new(), None);
    loop {
        let query = RecordQuery { after: after.take(), bytes: 8 << 20, ..query("l") };
        let page = timeout(DEADLINE, cx.read_records(worker.run, &query)).await.expect("a page in time");
        let page = page.unwrap();
        entries.extend(page.records.into_iter().filter_map(|record| record.entry_id));
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(entries.len(), 10_000);
}

async fn a_page_of_records_is_limited_by_bytes(cx: &TestContext) {
    let worker = cx.worker().await;
    // Compression makes these values tiny; the limit counts the plain bytes.
    let value = format!("\"{}\"", "x".repeat(1_000));
    write(cx, &worker, (0..6).map(|n| put(&format!("k{n}"), &value)).collect()).await;
    for (bytes, entries) in [(1, 1), (1_500, 2), (2_500, 3), (100_000, 6)] {
        let page = cx.read_records(worker.run, &RecordQuery { bytes, ..query("") }).await.unwrap();
        assert_eq!(page.records.len(), entries, "{bytes} bytes");
        assert_eq!(page.next.is_some(), entries < 6);
    }
}

async fn runs_do_not_see_each_others_records(cx: &TestContext) {
    let (left, right) = (cx.worker().await, cx.worker().await);
    write(cx, &left, vec![put("k", "1"), append("l", "1")]).await;
    let shared = RecordBatch { run: right.run, ..batch(&left, vec![put("k", "9")]) };
    assert_eq!(cx.write_records(&shared).await.unwrap(), Written::Fenced);
    assert_eq!(held(cx, right.run).await, [""; 0]);
    write(cx, &right, vec![put_if_absent("k", "2"), append("l", "1"), delete("l")]).await;
    assert_eq!(held(cx, left.run).await, ["k=1", "l=1"]);
    assert_eq!(held(cx, right.run).await, ["k=2"]);
    assert_eq!(held(cx, Uuid::now_v7()).await, [""; 0]);
}

async fn a_value_is_read_back_byte_for_byte(cx: &TestContext) {
    let worker = cx.worker().await;
    let values = ["12345678901234567890.10", r#"{"z":1,  "a":[ 1e400 ]}"#, r#""\ud800 \u0000""#, "null"];
    for (turn, value) in (1..).zip(values) {
        write(cx, &worker, vec![put("k", value)]).await;
        assert_eq!(held(cx, worker.run).await, [format!("k={value}")]);
        cx.commit_turn(&worker, turn).await;
    }
    let image = Payload::Bytes { media_type: "image/png".into(), base64: "iVBORw0KGgo=".into() };
    let put = RecordOp::Put { space: "s".into(), key: "k".into(), value: image };
    write(cx, &worker, vec![put]).await;
    assert_eq!(held(cx, worker.run).await, ["k=iVBORw0KGgo="]);
}
