//! The limit on the size of a state, and that a small state is never refused.

use dalsegno_format::size;
use dalsegno_model::{Commit, Committed, SNAPSHOT_DUE};
use dalsegno_protocol::{Channel, ChannelOps, Limits};
use uuid::Uuid;

use crate::context::*;
use crate::engines::{on_every_engine, tamper};
use crate::rewinds::done;

on_every_engine! {
    a_growing_state_is_refused_at_the_limit_until_it_is_truncated,
    a_small_state_is_never_refused,
    a_rewind_restores_the_counted_size_of_its_target,
    a_state_without_a_count_is_counted_at_the_next_growth,
    too_large_comes_after_every_other_answer,
    the_bytes_that_a_lookup_may_read_are_counted,
}

/// A commit of these channel operations.
fn ops(worker: &Worker, turn: i32, text: String) -> Commit {
    let ops: ChannelOps = serde_json::from_str(&text).unwrap();
    let (size, full) = (size::of_ops(&ops), ops.full);
    Commit { ops: Some(text.into()), full, size, ..worker.result(turn) }
}

/// This many values of one byte; each counts as 65 bytes.
fn values(count: usize) -> String {
    vec![r#"{"json":1}"#; count].join(",")
}

fn append(worker: &Worker, turn: i32, count: usize) -> Commit {
    ops(worker, turn, format!(r#"{{"append":{{"log":[{}]}}}}"#, values(count)))
}

/// A state close to the limit.
fn large(worker: &Worker, turn: i32) -> Commit {
    ops(worker, turn, format!(r#"{{"full":true,"append":{{"log":[{}]}}}}"#, values(900_000)))
}

async fn items(cx: &TestContext, worker: &Worker) -> usize {
    match &cx.state(worker.run, None).await.unwrap().unwrap()["log"] {
        Channel::List(items) => items.len(),
        Channel::Value(_) => panic!("the log is a list"),
    }
}

async fn a_growing_state_is_refused_at_the_limit_until_it_is_truncated(cx: &TestContext) {
    let worker = cx.worker().await;
    ok(cx.commit(&large(&worker, 1)).await.unwrap());
    ok(cx.commit(&append(&worker, 2, 100_000)).await.unwrap());
    let more = append(&worker, 3, 100_000);
    for _ in 0..2 {
        assert_eq!(cx.commit(&more).await.unwrap(), Committed::TooLarge, "however often it comes");
    }
    assert_eq!(items(cx, &worker).await, 1_000_000, "the state is unchanged");
    let cut = format!(r#"{{"truncate":{{"log":10}},"append":{{"log":[{}]}}}}"#, values(100_000));
    ok(cx.commit(&ops(&worker, 3, cut)).await.unwrap());
    assert_eq!(items(cx, &worker).await, 100_010);
    let counted = 64 + 3 + 100_010 * 65;
    assert_eq!(cx.sizes(worker.run).await.unwrap().state, Some(counted), "the exact count");
    ok(cx.commit(&append(&worker, 4, 1)).await.unwrap());
    assert_eq!(
        cx.sizes(worker.run).await.unwrap().state,
        Some(counted + 64 + 3 + 65),
        "the count plus the growth"
    );
}

async fn the_bytes_that_a_lookup_may_read_are_counted(cx: &TestContext) {
    let worker = cx.worker().await;
    assert_eq!(cx.sizes(worker.run).await.unwrap().tail, 0);
    // Random text, which no codec can compress.
    let text: String = (0..2_000).map(|_| Uuid::new_v4().simple().to_string()).collect();
    let events = vec![json(&format!("\"{text}\""))];
    ok(cx.commit(&Commit { events, ..worker.result(1) }).await.unwrap());
    let large = cx.sizes(worker.run).await.unwrap().tail;
    assert!(large > 32_000, "{large}");
    for turn in 2..SNAPSHOT_DUE * 2 {
        ok(cx.commit(&worker.result(turn)).await.unwrap());
    }
    assert!(cx.sizes(worker.run).await.unwrap().tail >= large);
    for turn in 0..2 {
        ok(cx.commit(&worker.result(SNAPSHOT_DUE * 2 + turn)).await.unwrap());
    }
    let small = cx.sizes(worker.run).await.unwrap().tail;
    assert!(small < large, "no lookup reads the large boundary any more");

    // No lookup reads boundaries that a rewind has undone; those before the rewind's target are read again.
    let events = vec![json(&format!("\"{text}\""))];
    ok(cx.commit(&Commit { events, ..worker.result(SNAPSHOT_DUE * 2 + 2) }).await.unwrap());
    assert!(cx.sizes(worker.run).await.unwrap().tail > small + 32_000);
    let back = async |turn| {
        let epoch = cx.run_of(&worker).await.epoch;
        let rewind = rewind_to(epoch, result_place(turn));
        done(cx.rewind(worker.run, &rewind).await.unwrap());
        cx.sizes(worker.run).await.unwrap().tail
    };
    assert!(back(SNAPSHOT_DUE * 2 + 1).await <= small);
    assert!(back(2).await >= large);
}

/// The limit counts what operations could add, which here is far more than they do add.
async fn a_small_state_is_never_refused(cx: &TestContext) {
    let worker = cx.worker().await;
    let each = Limits::STATE_BYTES / 3;
    for turn in 1..=24 {
        let text = match turn % 4 {
            0 => r#"{"set":{"note":{"json":1}}}"#,
            1 => r#"{"append":{"log":[{"json":1},{"json":2}]}}"#,
            2 => r#"{"truncate":{"log":1},"append":{"log":[{"json":1}]}}"#,
            _ => r#"{"remove":["log"],"append":{"other":[]}}"#,
        };
        let commit = ops(&worker, turn, text.into());
        ok(cx.commit(&Commit { size: each, ..commit }).await.unwrap());
    }
    let most = cx.sizes(worker.run).await.unwrap().state.unwrap();
    assert!(most as usize <= Limits::STATE_BYTES, "{most}");
}

async fn a_rewind_restores_the_counted_size_of_its_target(cx: &TestContext) {
    let worker = cx.worker().await;
    ok(cx.commit(&ops(&worker, 1, r#"{"set":{"note":{"json":1}}}"#.into())).await.unwrap());
    ok(cx.commit(&large(&worker, 2)).await.unwrap());
    cx.commit_turn(&worker, 3).await;
    let back = async |turn| {
        let run = cx.run_of(&worker).await;
        let rewind = rewind_to(run.epoch, result_place(turn));
        let run = done(cx.rewind(run.id, &rewind).await.unwrap());
        assert_eq!(cx.sizes(run.id).await.unwrap().state, None);
        cx.start_worker(&run).await
    };
    let second = back(2).await;
    assert_eq!(cx.commit(&append(&second, 3, 200_000)).await.unwrap(), Committed::TooLarge);
    let first = back(1).await;
    ok(cx.commit(&append(&first, 2, 200_000)).await.unwrap());
    assert_eq!(items(cx, &first).await, 200_000);
}

async fn a_state_without_a_count_is_counted_at_the_next_growth(cx: &TestContext) {
    if cx.url.is_none() {
        return;
    }
    let worker = cx.worker().await;
    ok(cx.commit(&append(&worker, 1, 3)).await.unwrap());
    let unknown = "UPDATE runs SET state_hash = NULL WHERE head_hash IS NOT NULL";
    assert_eq!(tamper(cx, unknown).await, 1);
    assert_eq!(cx.sizes(worker.run).await.unwrap().state, None);
    ok(cx.commit(&ops(&worker, 2, r#"{"truncate":{"log":2}}"#.into())).await.unwrap());
    assert_eq!(cx.sizes(worker.run).await.unwrap().state, None, "operations that add nothing need no count");
    ok(cx.commit(&append(&worker, 3, 1)).await.unwrap());
    assert_eq!(cx.sizes(worker.run).await.unwrap().state, Some(64 + 3 + 3 * 65));
}

async fn too_large_comes_after_every_other_answer(cx: &TestContext) {
    let worker = cx.worker().await;
    let first = worker.result(1);
    ok(cx.commit(&first).await.unwrap());
    let over = Limits::STATE_BYTES + 1;
    let duplicate = cx.commit(&Commit { size: over, ..resend(&first) }).await.unwrap();
    assert!(matches!(duplicate, Committed::Duplicate(_)), "{duplicate:?}");
    let gap = Commit { size: over, ..worker.result(3) };
    assert!(matches!(cx.commit(&gap).await.unwrap(), Committed::Conflict { .. }));
    let next = Commit { size: over, ..worker.result(2) };
    assert_eq!(
        cx.commit(&next).await.unwrap(),
        Committed::TooLarge,
        "a full state is counted by its own size"
    );
    ok(cx.commit(&Commit { size: over - 1, ..worker.result(2) }).await.unwrap());
    cx.next_worker(&worker).await;
    let late = Commit { size: over, ..worker.result(3) };
    assert!(matches!(cx.commit(&late).await.unwrap(), Committed::Fenced { .. }));
}
