//! Records: what the keys hold, what is refused, and that only the run's own worker can write them.

use std::time::Duration;

use dalsegno_protocol::{Boundary, Payload, Policy, RecordOp};
use dalsegno_store::{
    Class, Commit, Committed, FinishCall, Place, RecordBatch, RecordPage, RecordQuery, Rewind, Rewound,
    RunId, Written,
};
use futures::future::join_all;
use sha2::{Digest as _, Sha256};
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
    a_boundary_and_its_records_are_stored_together,
    records_and_batches_are_part_of_a_boundarys_hash,
    a_rewind_hides_records_written_after_its_boundary,
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
    let Worker { run, capability, .. } = *worker;
    RecordBatch { run, capability, batch_id: Uuid::new_v4(), digest: random_digest(), operations }
}

async fn write(cx: &TestContext, worker: &Worker, operations: Vec<RecordOp>) {
    assert_eq!(cx.write_records(&batch(worker, operations)).await.unwrap(), Written::Ok);
}

fn query(prefix: &str) -> RecordQuery {
    RecordQuery { space: "s".into(), prefix: prefix.into(), after: None, limit: 1_000, bytes: 1 << 20 }
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
    assert_eq!(held(cx, worker.run).await, ["k=2"], "an old batch sent again brings nothing back");
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
    assert_eq!(cx.write_records(&written).await.unwrap(), Written::Fenced, "also what stands");
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

async fn a_boundary_and_its_records_are_stored_together(cx: &TestContext) {
    let worker = cx.worker().await;
    let commit = Commit { records: vec![put("k", "1"), append("l", "1")], ..worker.result(1) };
    let first = ok(cx.commit(&commit).await.unwrap());
    assert_eq!(cx.commit(&commit).await.unwrap(), duplicate(&first));
    assert_eq!(held(cx, worker.run).await, ["k=1", "l=1"]);

    let conflict = Commit { records: vec![put("k", "9")], ..worker.result(3) };
    let answer = cx.commit(&conflict).await.unwrap();
    assert_eq!(answer, Committed::Conflict { head: Some((1, Boundary::Result)) });
    let next = cx.next_worker(&worker).await;
    let fenced = Commit { records: vec![put("k", "8")], ..worker.result(2) };
    assert_eq!(cx.commit(&fenced).await.unwrap(), Committed::Fenced { committed: false });
    assert_eq!(held(cx, worker.run).await, ["k=1", "l=1"], "refused as a whole");

    let last = Commit { records: vec![delete("k")], finish: Some(succeeded()), ..next.result(2) };
    ok(cx.commit(&last).await.unwrap());
    assert_eq!(held(cx, worker.run).await, ["l=1"]);
}

async fn records_and_batches_are_part_of_a_boundarys_hash(cx: &TestContext) {
    let worker = cx.worker().await;
    write(cx, &worker, vec![put("k", "1")]).await;
    write(cx, &worker, vec![put("k", "2")]).await;
    ok(cx.commit(&Commit { records: vec![put("k", "3")], ..worker.result(1) }).await.unwrap());
    cx.commit_turn(&worker, 2).await;
    write(cx, &worker, vec![put("k", "4")]).await;
    cx.commit_turn(&worker, 3).await;
    cx.assert_linked(&worker).await;
    let rows = cx.boundaries(worker.run, 1, 3).await.unwrap();
    let digests: [_; 3] = std::array::from_fn(|at| rows[at].records_digest);
    // `framed` is `f(x)` in `header.rs`.
    let framed = |fields: &[&[u8]]| -> Vec<u8> {
        fields.iter().flat_map(|field| [&(field.len() as u32).to_be_bytes(), *field].concat()).collect()
    };
    let batch = |value: &str| {
        let value = Sha256::digest(format!(r#"{{"json":{value}}}"#));
        Sha256::digest(framed(&[b"put", b"s", b"k", b"", &value]))
    };
    let first = Sha256::digest(framed(&[b"", &batch("1")]));
    let second = Sha256::digest(framed(&[&first, &batch("2")]));
    let third = Sha256::digest(framed(&[&second, &batch("3")]));
    let fourth = Sha256::digest(framed(&[b"", &batch("4")]));
    let plain = [Some(third.into()), None, Some(fourth.into())];
    if cx.sealed {
        let unkeyed = digests.iter().zip(&plain).filter(|(kept, plain)| kept.is_some() && kept == plain);
        assert_eq!(unkeyed.count(), 0, "a plain digest would tell what a short value is");
        assert_eq!(digests.map(|digest| digest.is_some()), [true, false, true]);
    } else {
        assert_eq!(digests, plain);
    }
}

async fn a_rewind_hides_records_written_after_its_boundary(cx: &TestContext) {
    use Boundary::{Plan, Result};
    // The boundary to rewind to, and the entries that remain. In each turn, `b` is written before the plan, `p` with the plan,
    // `a` after the plan, and `r` with the result.
    let cases: [(i32, Boundary, &[&str]); 4] = [
        (1, Plan, &["b1", "p1"]),
        (1, Result, &["b1", "p1", "a1", "r1"]),
        (2, Plan, &["b1", "p1", "a1", "r1", "b2", "p2"]),
        (2, Result, &["b1", "p1", "a1", "r1", "b2", "p2", "a2", "r2"]),
    ];
    let entry =
        |name: &str, turn: i32| vec![append("l", &format!("\"{name}{turn}\"")), put("k", &turn.to_string())];
    for (turn, boundary, expected) in cases {
        let worker = cx.worker().await;
        let mut last = None;
        for turn in 1..=3 {
            write(cx, &worker, entry("b", turn)).await;
            ok(cx.commit(&Commit { records: entry("p", turn), ..worker.plan(turn) }).await.unwrap());
            let batch = batch(&worker, entry("a", turn));
            assert_eq!(cx.write_records(&batch).await.unwrap(), Written::Ok);
            ok(cx.commit(&Commit { records: entry("r", turn), ..worker.result(turn) }).await.unwrap());
            last = Some(batch);
        }
        write(cx, &worker, entry("b", 4)).await;
        let to = Place { turn, boundary, epoch: 1 };
        let rewind = Rewind { epoch: 1, to, reason: "to be tried again".into(), actor: "ada".into() };
        let Rewound::Done(run) = cx.rewind(worker.run, &rewind).await.unwrap() else {
            panic!("the rewind is refused");
        };
        let lists: Vec<_> = expected.iter().map(|entry| format!("l=\"{entry}\"")).collect();
        let all = [vec![format!("k={turn}")], lists.clone()].concat();
        assert_eq!(held(cx, worker.run).await, all, "back to {turn}, {boundary:?}");

        // A hidden batch is no duplicate, and hidden records are in no later hash.
        let next = cx.start_worker(&run).await;
        let again = RecordBatch { capability: next.capability, ..last.unwrap() };
        assert_eq!(cx.write_records(&again).await.unwrap(), Written::Ok);
        let all = [vec!["k=3".to_owned()], lists, vec!["l=\"a3\"".to_owned()]].concat();
        assert_eq!(held(cx, worker.run).await, all);
        let after = if boundary == Plan { next.result(turn) } else { next.result(turn + 1) };
        ok(cx.commit(&after).await.unwrap());
        cx.assert_linked(&next).await;
        assert!(cx.run_of(&next).await.head.is_some());
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
