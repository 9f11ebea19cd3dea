//! Records and boundaries: records written with a boundary or between two, and what a rewind hides.

use dalsegno_model::{BoundaryId, Commit, Committed, RecordBatch, Rewound, Written};
use dalsegno_protocol::Boundary;
use sha2::{Digest as _, Sha256};

use super::{append, batch, delete, held, put, write};
use crate::context::*;
use crate::engines::on_every_engine;

on_every_engine! {
    a_boundary_and_its_records_are_stored_together,
    records_and_batches_are_part_of_a_boundarys_hash,
    a_rewind_hides_records_written_after_its_boundary,
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
        assert_eq!(unkeyed.count(), 0, "a plain digest would reveal a short value");
        assert_eq!(digests.map(|digest| digest.is_some()), [true, false, true]);
    } else {
        assert_eq!(digests, plain);
    }
}

async fn a_rewind_hides_records_written_after_its_boundary(cx: &TestContext) {
    use Boundary::{Plan, Result};
    // The boundary to rewind to, and the entries that remain. In each turn, `b` is written before the plan, `p` with the
    // plan, `a` after the plan, and `r` with the result.
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
        let to = BoundaryId { turn, boundary, epoch: 1 };
        let rewind = rewind_to(1, to);
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
