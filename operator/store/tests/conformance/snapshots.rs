//! Snapshots make a lookup cheaper and never change its answer.

use std::sync::Arc;

use dalsegno_model::{Commit, Error, Retention, Rewound, SNAPSHOT_DUE, Snapshotted};
use dalsegno_protocol::Boundary;
use futures::future::join_all;

use crate::context::*;
use crate::engines::{count, on_every_engine, on_every_persistent_engine, tamper};

on_every_engine! {
    a_snapshot_is_made_only_when_it_is_due,
    a_run_has_snapshots_as_often_as_its_own_setting_says,
    a_state_is_the_same_with_and_without_snapshots,
    json_is_read_back_byte_for_byte_from_a_snapshot,
    concurrent_snapshotters_make_one_snapshot,
    a_plain_full_state_needs_no_snapshot,
    a_run_without_a_boundary_gets_no_snapshot,
    a_snapshot_of_an_undone_branch_is_not_used_on_the_new_one,
}

on_every_persistent_engine! {
    a_lookup_reads_only_the_snapshot_and_what_follows,
    a_lookup_at_turn_1000_costs_the_same_as_at_turn_10,
    a_damaged_snapshot_is_not_used,
    a_missing_chunk_is_detected,
    a_damaged_chunk_is_detected_and_repaired_by_the_next_snapshot,
    a_snapshot_of_another_boundary_is_not_used,
    a_run_with_only_damaged_snapshots_is_read_from_its_beginning,
    a_snapshot_does_not_change_the_run,
    snapshots_of_a_growing_list_share_its_chunks,
}

/// A commit of these channel operations as the result of a turn.
async fn change(cx: &TestContext, worker: &Worker, turn: i32, text: &str) {
    let commit = Commit {
        ops: Some(text.into()),
        full: text.contains(r#""full":true"#),
        ..worker.commit(turn, Boundary::Result)
    };
    ok(cx.commit(&commit).await.unwrap());
}

/// Commits turns; each appends its number to the list `log`.
async fn grow(cx: &TestContext, worker: &Worker, turns: std::ops::RangeInclusive<i32>) {
    for turn in turns {
        change(cx, worker, turn, &format!(r#"{{"append":{{"log":[{{"json":{turn}}}]}}}}"#)).await;
    }
}

async fn state(cx: &TestContext, worker: &Worker, turn: Option<i32>) -> String {
    serde_json::to_string(&cx.state(worker.run, turn).await.unwrap().unwrap()).unwrap()
}

fn grown(turns: i32) -> String {
    let items: Vec<_> = (1..=turns).map(|turn| format!(r#"{{"json":{turn}}}"#)).collect();
    format!(r#"{{"log":{{"list":[{}]}}}}"#, items.join(","))
}

async fn snapshot(cx: &TestContext, worker: &Worker) -> Snapshotted {
    cx.snapshot(worker.run).await.unwrap()
}

/// A run of 25 turns with snapshots at turns 10 and 20.
async fn snapshotted(cx: &TestContext) -> Worker {
    let worker = cx.worker().await;
    for turns in [1..=10, 11..=20] {
        grow(cx, &worker, turns).await;
        assert!(snapshot(cx, &worker).await.made);
    }
    grow(cx, &worker, 21..=25).await;
    worker
}

async fn a_snapshot_is_made_only_when_it_is_due(cx: &TestContext) {
    let worker = cx.worker().await;
    for turn in 1..SNAPSHOT_DUE {
        grow(cx, &worker, turn..=turn).await;
        assert_eq!(
            snapshot(cx, &worker).await,
            Snapshotted { made: false, turn, lag: turn, due: SNAPSHOT_DUE }
        );
    }
    grow(cx, &worker, 10..=10).await;
    assert_eq!(snapshot(cx, &worker).await, Snapshotted { made: true, turn: 10, lag: 0, due: SNAPSHOT_DUE });
    assert_eq!(snapshot(cx, &worker).await, Snapshotted { made: false, turn: 10, lag: 0, due: SNAPSHOT_DUE });
    grow(cx, &worker, 11..=19).await;
    assert_eq!(snapshot(cx, &worker).await, Snapshotted { made: false, turn: 19, lag: 9, due: SNAPSHOT_DUE });
    for plan in [20, 21] {
        let bare = Commit { ops: None, full: false, ..worker.plan(plan) };
        ok(cx.commit(&bare).await.unwrap());
        assert_eq!(snapshot(cx, &worker).await.made, plan == 20, "plans are boundaries too");
        grow(cx, &worker, plan..=plan).await;
    }
}

async fn a_run_has_snapshots_as_often_as_its_own_setting_says(cx: &TestContext) {
    let (worker, other) = (cx.worker().await, cx.worker().await);
    let every = |snapshot_every| Retention { snapshot_every, ..Retention::default() };
    let set = cx.set_retention(worker.run, &every(Some(3))).await.unwrap();
    assert_eq!((set.retention.snapshot_every, set.retention.snapshot_due()), (Some(3), 3));
    grow(cx, &worker, 1..=2).await;
    assert_eq!(snapshot(cx, &worker).await, Snapshotted { made: false, turn: 2, lag: 2, due: 3 });
    for turns in [3..=3, 4..=6] {
        let turn = *turns.end();
        grow(cx, &worker, turns).await;
        assert_eq!(snapshot(cx, &worker).await, Snapshotted { made: true, turn, lag: 0, due: 3 });
    }
    cx.set_retention(worker.run, &every(Some(50))).await.unwrap();
    grow(cx, &worker, 7..=16).await;
    assert_eq!(snapshot(cx, &worker).await, Snapshotted { made: false, turn: 16, lag: 10, due: 50 });
    cx.set_retention(worker.run, &every(None)).await.unwrap();
    assert!(snapshot(cx, &worker).await.made, "the built-in value is 10");
    assert_eq!(state(cx, &worker, None).await, grown(16));
    grow(cx, &other, 1..=3).await;
    assert!(!snapshot(cx, &other).await.made, "another run has its own setting");
}

async fn a_state_is_the_same_with_and_without_snapshots(cx: &TestContext) {
    let worker = snapshotted(cx).await;
    for turn in 1..=25 {
        assert_eq!(state(cx, &worker, Some(turn)).await, grown(turn), "turn {turn}");
    }
    let next = cx.next_worker(&worker).await;
    assert_eq!(state(cx, &next, None).await, grown(25));
    cx.assert_linked(&next).await;
}

async fn json_is_read_back_byte_for_byte_from_a_snapshot(cx: &TestContext) {
    let worker = cx.worker().await;
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let texts =
        [r#"{"z":1,  "a":[ 1e400, 12345678901234567890123456789.10 ]}"#, r#""\ud800 \u00e9 é""#, &deep];
    for (text, turn) in texts.iter().cycle().zip(1..=11) {
        change(cx, &worker, turn, &format!(r#"{{"append":{{"l":[{{"json":{text}}}]}}}}"#)).await;
    }
    let bytes = r#"{"set":{"b":{"bytes":{"mediaType":"image/png","base64":"iVBORw0KGgo="}}}}"#;
    change(cx, &worker, 12, bytes).await;
    let before = state(cx, &worker, None).await;
    assert!(texts.iter().all(|text| before.contains(text)));
    assert!(snapshot(cx, &worker).await.made);
    assert_eq!(state(cx, &worker, None).await, before);
}

async fn concurrent_snapshotters_make_one_snapshot(cx: &TestContext) {
    let worker = cx.worker().await;
    for round in 0..5 {
        grow(cx, &worker, round * 10 + 1..=round * 10 + 10).await;
        let snapshotters = (0..4).map(|_| {
            let (store, run) = (Arc::clone(&cx.store), worker.run);
            tokio::spawn(async move { store.snapshot(run).await.unwrap() })
        });
        let made =
            join_all(snapshotters).await.into_iter().filter(|done| done.as_ref().unwrap().made).count();
        assert!(made >= 1, "round {round}");
        assert_eq!(
            snapshot(cx, &worker).await,
            Snapshotted { made: false, turn: round * 10 + 10, lag: 0, due: SNAPSHOT_DUE }
        );
    }
    assert_eq!(state(cx, &worker, None).await, grown(50));
}

async fn a_plain_full_state_needs_no_snapshot(cx: &TestContext) {
    let worker = cx.worker().await;
    for turn in 1..=20 {
        cx.commit_turn(&worker, turn).await;
        assert_eq!(snapshot(cx, &worker).await, Snapshotted { made: false, turn, lag: 0, due: SNAPSHOT_DUE });
    }
}

async fn a_run_without_a_boundary_gets_no_snapshot(cx: &TestContext) {
    let worker = cx.worker().await;
    assert_eq!(snapshot(cx, &worker).await, Snapshotted { made: false, turn: 0, lag: 0, due: SNAPSHOT_DUE });
}

/// After the rewind, the new branch reaches and passes the turn of the old branch's snapshot, with other content.
async fn a_snapshot_of_an_undone_branch_is_not_used_on_the_new_one(cx: &TestContext) {
    let worker = snapshotted(cx).await;
    let before = cx.run_of(&worker).await;
    let rewind = rewind_to(before.epoch, result_place(12));
    assert!(matches!(cx.rewind(worker.run, &rewind).await.unwrap(), Rewound::Done(_)));
    let worker = cx.start_worker(&cx.run_of(&worker).await).await;
    assert_eq!(state(cx, &worker, None).await, grown(12), "the snapshot of turn 10 belongs to both branches");
    let rewritten =
        |turns| grown(12).replace("]}}", &format!("{}]}}}}", r#",{"json":"rewritten"}"#.repeat(turns)));
    for turn in 13..=24 {
        change(cx, &worker, turn, r#"{"append":{"log":[{"json":"rewritten"}]}}"#).await;
        assert_eq!(state(cx, &worker, None).await, rewritten(turn as usize - 12), "turn {turn}");
    }
    assert_eq!(snapshot(cx, &worker).await, Snapshotted { made: true, turn: 24, lag: 0, due: SNAPSHOT_DUE });
    for turn in 13..=24 {
        assert_eq!(state(cx, &worker, Some(turn)).await, rewritten(turn as usize - 12), "turn {turn}");
    }
    cx.assert_linked(&worker).await;
}

async fn a_lookup_reads_only_the_snapshot_and_what_follows(cx: &TestContext) {
    let worker = snapshotted(cx).await;
    // Payloads that are not read may be dropped: retention drops payloads and keeps headers.
    tamper(cx, "UPDATE boundaries SET ops = NULL WHERE turn <= 20").await;
    assert_eq!(state(cx, &worker, None).await, grown(25));
    assert_eq!(state(cx, &worker, Some(20)).await, grown(20));
    assert_eq!(state(cx, &worker, Some(10)).await, grown(10));
    assert!(matches!(cx.state(worker.run, Some(15)).await, Err(Error::Corrupt { .. })));
}

async fn a_lookup_at_turn_1000_costs_the_same_as_at_turn_10(cx: &TestContext) {
    let worker = cx.worker().await;
    let mut last = Snapshotted { made: false, turn: 0, lag: 0, due: SNAPSHOT_DUE };
    for turn in 1..=1_000 {
        // The state has the same size in every turn.
        let text = format!(r#"{{"truncate":{{"log":3}},"append":{{"log":[{{"json":{turn}}}]}}}}"#);
        change(cx, &worker, turn, &text).await;
        if turn % 10 == 0 {
            last = snapshot(cx, &worker).await;
            assert!(last.made, "turn {turn}");
        }
    }
    assert_eq!(last, Snapshotted { made: true, turn: 1_000, lag: 0, due: SNAPSHOT_DUE });
    assert_eq!(tamper(cx, "DELETE FROM boundaries WHERE turn < 1000").await, 999, "a lookup reads one row");
    assert!(state(cx, &worker, None).await.ends_with(r#"{"json":1000}]}}"#));
    let chunks = count(cx, "SELECT count(*) FROM chunks").await;
    assert_eq!(chunks, 100, "one chunk per snapshot of a small state");
}

async fn a_damaged_snapshot_is_not_used(cx: &TestContext) {
    for damage in [
        "UPDATE snapshots SET document = digest WHERE turn = 20",
        "UPDATE snapshots SET digest = content_hash WHERE turn = 20",
        "DELETE FROM snapshots WHERE turn = 20",
    ] {
        let worker = snapshotted(cx).await;
        let of_run = format!("{damage} AND content_hash IN ({})", hashes_of(cx, &worker).await);
        assert_eq!(tamper(cx, &of_run).await, 1, "{damage}");
        assert_eq!(state(cx, &worker, None).await, grown(25), "{damage}");
        assert_eq!(
            snapshot(cx, &worker).await,
            Snapshotted { made: true, turn: 25, lag: 0, due: SNAPSHOT_DUE },
            "{damage}"
        );
        assert_eq!(state(cx, &worker, None).await, grown(25), "{damage}");
    }
}

/// The content hashes of the worker's run as a list in the database's SQL.
async fn hashes_of(cx: &TestContext, worker: &Worker) -> String {
    let sqlite = cx.is_sqlite();
    let rows = cx.boundaries(worker.run, 1, i32::MAX).await.unwrap();
    let hashes = rows.iter().map(|row| {
        let digits: String = row.content_hash.iter().map(|byte| format!("{byte:02x}")).collect();
        if sqlite { format!("x'{digits}'") } else { format!("'\\x{digits}'::bytea") }
    });
    hashes.collect::<Vec<_>>().join(", ")
}

async fn a_missing_chunk_is_detected(cx: &TestContext) {
    let worker = snapshotted(cx).await;
    assert!(tamper(cx, "DELETE FROM chunks").await > 0);
    assert_eq!(state(cx, &worker, None).await, grown(25), "all boundaries are intact");
    assert_eq!(state(cx, &worker, Some(10)).await, grown(10));
    tamper(cx, "UPDATE boundaries SET ops = NULL WHERE turn = 3").await;
    assert!(
        matches!(cx.state(worker.run, None).await, Err(Error::Corrupt { .. })),
        "snapshots and boundaries are both damaged"
    );
}

async fn a_damaged_chunk_is_detected_and_repaired_by_the_next_snapshot(cx: &TestContext) {
    let worker = cx.worker().await;
    grow(cx, &worker, 1..=10).await;
    assert!(snapshot(cx, &worker).await.made);
    assert!(tamper(cx, "UPDATE chunks SET payload = hash").await > 0);
    assert_eq!(state(cx, &worker, None).await, grown(10));
    assert!(snapshot(cx, &worker).await.made, "of the same boundary, with the same chunk");
    tamper(cx, "UPDATE boundaries SET ops = NULL").await;
    assert_eq!(state(cx, &worker, None).await, grown(10), "the snapshot alone");
}

async fn a_snapshot_of_another_boundary_is_not_used(cx: &TestContext) {
    let worker = snapshotted(cx).await;
    tamper(cx, "DELETE FROM snapshots WHERE turn = 20").await;
    let of_25 = hashes_of(cx, &worker).await;
    let of_25 = of_25.rsplit(", ").next().unwrap();
    assert_eq!(tamper(cx, &format!("UPDATE snapshots SET content_hash = {of_25}")).await, 1);
    assert_eq!(state(cx, &worker, None).await, grown(25));
}

async fn a_run_with_only_damaged_snapshots_is_read_from_its_beginning(cx: &TestContext) {
    let worker = cx.worker().await;
    for round in 0..8 {
        grow(cx, &worker, round * 10 + 1..=round * 10 + 10).await;
        assert!(snapshot(cx, &worker).await.made);
    }
    assert_eq!(tamper(cx, "UPDATE snapshots SET document = digest").await, 8);
    assert_eq!(state(cx, &worker, None).await, grown(80));
}

async fn a_snapshot_does_not_change_the_run(cx: &TestContext) {
    let worker = cx.worker().await;
    grow(cx, &worker, 1..=10).await;
    let before = without_times(cx.run_of(&worker).await);
    assert!(snapshot(cx, &worker).await.made);
    assert_eq!(without_times(cx.run_of(&worker).await), before);
}

async fn snapshots_of_a_growing_list_share_its_chunks(cx: &TestContext) {
    let worker = cx.worker().await;
    for turn in 1..=100 {
        let item: String = (0..2_000).map(|n: i32| format!("{:x} ", n.wrapping_mul(turn * 7_919))).collect();
        change(cx, &worker, turn, &format!(r#"{{"append":{{"log":[{{"json":"{item}"}}]}}}}"#)).await;
        if turn % 10 == 0 {
            assert!(snapshot(cx, &worker).await.made);
        }
    }
    let last = state(cx, &worker, None).await;
    let kept = count(cx, "SELECT count(*) FROM chunks").await;
    let at_once = last.len() as i64 / (16 << 10);
    assert!(kept < at_once * 2, "{kept} chunks for ten snapshots, of which the last has about {at_once}");
}
