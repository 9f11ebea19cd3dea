//! Prefixes of keys that are deleted at once.

use std::collections::BTreeMap;

use dalsegno_model::{BoundaryId, Class, Commit, Committed, RecordQuery, Rewound, Written};
use dalsegno_protocol::{Boundary, Limits, Payload, RecordOp};

use super::{append, delete, held, put, put_if_absent, query, write};
use crate::context::*;
use crate::engines::{on_every_engine, on_every_persistent_engine};

on_every_engine! {
    all_keys_with_the_prefix_are_empty_afterwards,
    the_order_within_a_batch_decides,
    a_prefix_is_deleted_with_a_boundary_or_not_at_all,
    a_rewind_brings_the_keys_back,
    any_batches_leave_what_a_map_would_hold,
}

on_every_persistent_engine! {
    a_long_thread_is_deleted,
    more_keys_than_the_limit_are_refused,
}

fn delete_prefix(prefix: &str) -> RecordOp {
    RecordOp::DeletePrefix { space: "s".into(), prefix: prefix.into() }
}

async fn all_keys_with_the_prefix_are_empty_afterwards(cx: &TestContext) {
    // Once within one turn, and once with a turn between the batches.
    for between in [false, true] {
        let worker = cx.worker().await;
        let keys = ["a", "a/", "a/1", "a/1/x", "a/é", "a/\u{10ffff}", "a0", "b", "%", "_/1"];
        write(cx, &worker, keys.iter().map(|key| put(key, "1")).collect()).await;
        write(cx, &worker, vec![append("a/1", "2"), append("a/list", "1"), put("a/2", "1"), delete("a/2")])
            .await;
        let elsewhere =
            RecordOp::Put { space: "t".into(), key: "a/1".into(), value: Payload::Json(json("1")) };
        write(cx, &worker, vec![elsewhere]).await;
        if between {
            cx.commit_turn(&worker, 1).await;
        }
        write(cx, &worker, vec![delete_prefix("a/")]).await;
        assert_eq!(held(cx, worker.run).await, ["%=1", "_/1=1", "a=1", "a0=1", "b=1"], "between: {between}");
        // Nothing is left to delete.
        write(cx, &worker, vec![delete_prefix("a/"), delete_prefix("nothing")]).await;
        assert_eq!(held(cx, worker.run).await.len(), 5);
        let other = dalsegno_model::RecordQuery { space: "t".into(), ..all_records() };
        assert_eq!(cx.read_records(worker.run, &other).await.unwrap().records.len(), 1);
        // What is written later is new: the entry of an earlier id too.
        write(cx, &worker, vec![append("a/list", "1"), put_if_absent("a/1", "7")]).await;
        assert_eq!(held(cx, worker.run).await[3..5], ["a/1=7", "a/list=1"]);
        cx.commit_turn(&worker, if between { 2 } else { 1 }).await;
        cx.assert_linked(&worker).await;
    }
}

async fn the_order_within_a_batch_decides(cx: &TestContext) {
    let cases: &[(&[RecordOp], &[&str])] = &[
        (&[put("a/1", "1"), delete_prefix("a/"), put("a/2", "2")], &["a/2=2", "b=0"]),
        (&[delete_prefix("a/"), put_if_absent("a/0", "1"), append("a/0", "2")], &["a/0=1", "a/0=2", "b=0"]),
        (&[append("a/0", "5"), delete_prefix("a/0"), append("a/0", "5")], &["a/0=5", "b=0"]),
        (&[delete_prefix("a/"), delete("a/0"), put("b", "1")], &["b=1"]),
        (&[delete_prefix("a"), delete_prefix("b"), put("c", "1")], &["c=1"]),
        (&[delete("b"), delete_prefix("a/x"), put_if_absent("b", "1")], &["a/0=0", "b=1"]),
    ];
    for (batch, expected) in cases {
        for between in [false, true] {
            let worker = cx.worker().await;
            write(cx, &worker, vec![put("a/0", "0"), put("b", "0")]).await;
            if between {
                cx.commit_turn(&worker, 1).await;
            }
            write(cx, &worker, batch.to_vec()).await;
            assert_eq!(held(cx, worker.run).await, *expected, "{batch:?}, a turn between: {between}");
        }
    }
}

async fn a_prefix_is_deleted_with_a_boundary_or_not_at_all(cx: &TestContext) {
    let worker = cx.worker().await;
    write(cx, &worker, vec![put("a/1", "1"), put("b", "1")]).await;
    let refused = Commit { records: vec![delete_prefix("a/")], ..worker.result(2) };
    cx.commit(&refused).await.unwrap();
    assert_eq!(held(cx, worker.run).await, ["a/1=1", "b=1"]);
    let records = vec![delete_prefix("a/"), put("a/2", "2")];
    ok(cx.commit(&Commit { records, ..worker.result(1) }).await.unwrap());
    assert_eq!(held(cx, worker.run).await, ["a/2=2", "b=1"]);
    cx.assert_linked(&worker).await;
}

async fn a_rewind_brings_the_keys_back(cx: &TestContext) {
    let worker = cx.worker().await;
    write(cx, &worker, vec![put("a/1", "1"), append("a/2", "1"), append("a/2", "2")]).await;
    cx.commit_turn(&worker, 1).await;
    write(cx, &worker, vec![put("a/1", "2"), put("a/3", "1"), delete_prefix("a/")]).await;
    cx.commit_turn(&worker, 2).await;
    assert_eq!(held(cx, worker.run).await, [""; 0]);
    let to = BoundaryId { turn: 1, boundary: Boundary::Result, epoch: 1 };
    let Rewound::Done(run) = cx.rewind(worker.run, &rewind_to(1, to)).await.unwrap() else { panic!() };
    assert_eq!(held(cx, worker.run).await, ["a/1=1", "a/2=1", "a/2=2"]);
    let next = cx.start_worker(&run).await;
    write(cx, &next, vec![delete_prefix("a/2")]).await;
    cx.commit_turn(&next, 2).await;
    assert_eq!(held(cx, worker.run).await, ["a/1=1"]);
    cx.assert_linked(&next).await;
}

/// Random batches, with turns and attempts between them, against a map.
async fn any_batches_leave_what_a_map_would_hold(cx: &TestContext) {
    let mut random = 0x2545_f491_4f6c_dd1d_u64;
    let mut below = |most: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % most
    };
    let prefixes = ["a", "a/", "a/1", "b", "b/2", "\u{10ffff}"];
    let mut worker = cx.worker().await;
    let (mut expected, mut turn) = (BTreeMap::<String, Vec<String>>::new(), 1);
    for _ in 0..60 {
        let mut batch = Vec::new();
        for _ in 0..=below(5) {
            let key = format!("{}{}", prefixes[below(6) as usize], ["", "/1", "x"][below(3) as usize]);
            let value = below(4).to_string();
            batch.push(match below(6) {
                0 => {
                    expected.insert(key.clone(), vec![value.clone()]);
                    put(&key, &value)
                }
                1 => {
                    expected.entry(key.clone()).or_insert_with(|| vec![value.clone()]);
                    put_if_absent(&key, &value)
                }
                2 => {
                    expected.remove(&key);
                    delete(&key)
                }
                3 => {
                    let prefix = prefixes[below(6) as usize];
                    expected.retain(|key, _| !key.starts_with(prefix));
                    delete_prefix(prefix)
                }
                _ => {
                    let (entry, list) = (format!("entry {value}"), expected.entry(key.clone()).or_default());
                    if !list.contains(&entry) {
                        list.push(entry);
                    }
                    append(&key, &value)
                }
            });
        }
        if below(3) == 0 {
            ok(cx.commit(&Commit { records: batch, ..worker.result(turn) }).await.unwrap());
            turn += 1;
        } else {
            write(cx, &worker, batch).await;
        }
        if below(8) == 0 {
            let run = cx.end_and_reserve(&worker, Class::Disruption).await;
            worker = cx.start_worker(&run).await;
        }
        let flat = expected.iter().flat_map(|(key, list)| list.iter().map(move |it| (key, it)));
        let flat: Vec<_> =
            flat.map(|(key, it)| format!("{key}={}", it.trim_start_matches("entry "))).collect();
        assert_eq!(held(cx, worker.run).await, flat);
    }
}

/// A thread of ten thousand keys, all of them of an earlier turn: each leaves a row that a rewind can hide.
async fn a_long_thread_is_deleted(cx: &TestContext) {
    let worker = cx.worker().await;
    for thousand in 0..10 {
        write(cx, &worker, (0..1_000).map(|n| put(&format!("thread/{thousand}{n:03}"), "1")).collect()).await;
    }
    write(cx, &worker, vec![put("other", "1")]).await;
    cx.commit_turn(&worker, 1).await;
    write(cx, &worker, vec![delete_prefix("thread/")]).await;
    assert_eq!(held(cx, worker.run).await, ["other=1"]);
}

/// The limit counts keys that hold something, of all prefixes of a batch together. A refusal writes nothing.
async fn more_keys_than_the_limit_are_refused(cx: &TestContext) {
    let worker = cx.worker().await;
    let most = Limits::PREFIX_KEYS as usize;
    write(cx, &worker, vec![put("gone/1", "1"), put("gone/2", "1"), put("other", "1"), put("z/1", "1")])
        .await;
    write(cx, &worker, vec![delete_prefix("gone/")]).await;
    cx.commit_turn(&worker, 1).await;
    for thousand in 0..most / 1_000 {
        write(cx, &worker, (0..1_000).map(|n| put(&format!("a/{thousand:02}{n:03}"), "1")).collect()).await;
    }
    // All but one are of an earlier boundary.
    ok(cx.commit(&worker.plan(2)).await.unwrap());
    write(cx, &worker, vec![put("a/more", "1")]).await;

    let everything = RecordQuery { limit: 20_000, ..query("") };
    let before = cx.read_record_keys(worker.run, &everything).await.unwrap();
    assert_eq!(before.keys.len(), most + 3);
    let too_many =
        [vec![delete_prefix("a/")], vec![put("new", "1"), delete_prefix("z/"), delete_prefix("a/")]];
    for operations in &too_many {
        let batch = worker.record_batch(operations.clone());
        assert_eq!(cx.write_records(&batch).await.unwrap(), Written::TooManyKeys);
        let boundary = Commit { records: operations.clone(), ..worker.result(2) };
        assert_eq!(cx.commit(&boundary).await.unwrap(), Committed::TooManyKeys);
    }
    let after = cx.read_record_keys(worker.run, &everything).await.unwrap();
    assert_eq!(after.keys, before.keys);

    // The keys that hold nothing do not count.
    write(cx, &worker, vec![delete("a/more"), delete_prefix("gone/")]).await;
    let two = worker.record_batch(vec![delete_prefix("z/"), delete_prefix("a/")]);
    assert_eq!(cx.write_records(&two).await.unwrap(), Written::TooManyKeys);
    let records = vec![delete_prefix("a/"), delete_prefix("gone/"), put("a/new", "1")];
    ok(cx.commit(&Commit { records, ..worker.result(2) }).await.unwrap());
    assert_eq!(held(cx, worker.run).await, ["a/new=1", "other=1", "z/1=1"]);
    cx.assert_linked(&worker).await;
}
