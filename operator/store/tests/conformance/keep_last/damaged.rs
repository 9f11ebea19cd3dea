//! Damaged, exchanged and obsolete rows of a run that keeps only its last boundaries.

use dalsegno_model::{Commit, Error, Rewind, Rewound};
use dalsegno_proof::verify::{self, Checkpoint};

use super::{assert_valid, compact, compacted, grow, grown, keep_last, problems, state};
use crate::context::*;
use crate::engines::{count, forge_snapshot, on_every_persistent_engine, tamper, without_keys};

on_every_persistent_engine! {
    nothing_is_dropped_if_its_state_cannot_be_rebuilt,
    a_damaged_snapshot_is_replaced_before_anything_is_dropped,
    compaction_does_not_trust_an_existing_snapshot,
    damaged_snapshots_are_skipped_back_to_the_one_of_the_dropped_boundaries,
    the_last_good_checkpoint_can_be_the_snapshot,
    an_exchanged_snapshot_is_detected,
    dropped_marks_on_a_run_that_keeps_everything_are_corrupt,
    obsolete_snapshots_and_their_chunks_are_dropped,
}

async fn nothing_is_dropped_if_its_state_cannot_be_rebuilt(cx: &TestContext) {
    let worker = cx.worker().await;
    grow(cx, &worker, 1..=30).await;
    tamper(cx, "UPDATE boundaries SET ops = NULL WHERE turn = 3").await;
    keep_last(cx, worker.run, 5).await;
    let refused = cx.compact(worker.run, 500).await;
    assert!(matches!(refused, Err(Error::Corrupt { .. })), "{refused:?}");
    assert_eq!(count(cx, "SELECT count(*) FROM boundaries WHERE ops IS NULL").await, 1);
    assert_eq!(cx.run_of(&worker).await.dropped_to, None);
}

async fn a_damaged_snapshot_is_replaced_before_anything_is_dropped(cx: &TestContext) {
    let worker = cx.worker().await;
    grow(cx, &worker, 1..=25).await;
    assert!(cx.snapshot(worker.run).await.unwrap().made);
    tamper(cx, "UPDATE chunks SET payload = hash").await;
    tamper(cx, "UPDATE snapshots SET document = digest").await;
    grow(cx, &worker, 26..=30).await;
    keep_last(cx, worker.run, 5).await;
    compact(cx, worker.run).await;
    assert_eq!(cx.run_of(&worker).await.dropped_to.unwrap().turn, 25, "at the damaged snapshot");
    assert_eq!(state(cx, worker.run, None).await, grown(30));
    assert_valid(cx, &worker).await;
}

async fn compaction_does_not_trust_an_existing_snapshot(cx: &TestContext) {
    let cx = without_keys(cx).await;
    let worker = cx.worker().await;
    grow(&cx, &worker, 1..=30).await;
    let wrong = r#"{"log":{"list":[{"json":"forged"}]}}"#;
    for turn in [10, 24] {
        forge_snapshot(&cx, worker.run, turn, wrong).await;
    }
    assert!(state(&cx, worker.run, None).await.contains("forged"), "a lookup trusts it");
    keep_last(&cx, worker.run, 5).await;
    compact(&cx, worker.run).await;
    assert_eq!(cx.run_of(&worker).await.dropped_to.unwrap().turn, 25);
    assert_eq!(state(&cx, worker.run, None).await, grown(30));
    assert_valid(&cx, &worker).await;
}

async fn damaged_snapshots_are_skipped_back_to_the_one_of_the_dropped_boundaries(cx: &TestContext) {
    let worker = compacted(cx, 20).await;
    for turn in 21..=70 {
        grow(cx, &worker, turn..=turn).await;
        cx.snapshot(worker.run).await.unwrap();
    }
    assert!(tamper(cx, "UPDATE snapshots SET document = digest WHERE turn > 15").await > 4);
    assert_eq!(state(cx, worker.run, None).await, grown(70));
    compact(cx, worker.run).await;
    assert_eq!(state(cx, worker.run, None).await, grown(70));
    assert_valid(cx, &worker).await;
}

async fn the_last_good_checkpoint_can_be_the_snapshot(cx: &TestContext) {
    let worker = compacted(cx, 20).await;
    tamper(cx, "UPDATE boundaries SET ops = NULL WHERE turn = 16").await;
    let run = cx.end_and_reserve(&worker, dalsegno_model::Class::Disruption).await;
    let Checkpoint::Corrupt(found) = verify::checkpoint(&*cx.store, &run).await.unwrap() else {
        panic!("turn 16 is damaged")
    };
    let boundary_id = found.last_good.unwrap().boundary;
    assert_eq!(boundary_id.turn, 15);
    assert!(!found.detail.contains("retention"), "what was dropped is no damage: {}", found.detail);
    let rewind = Rewind { to: boundary_id, ..rewind_to(run.epoch, result_place(15)) };
    assert!(matches!(cx.rewind(run.id, &rewind).await.unwrap(), Rewound::Done(_)));
    assert_eq!(state(cx, run.id, None).await, grown(15));

    // The snapshot is the only copy of the state of turn 15.
    tamper(cx, "DELETE FROM snapshots").await;
    let run = cx.run_of(&worker).await;
    let Checkpoint::Corrupt(found) = verify::checkpoint(&*cx.store, &run).await.unwrap() else {
        panic!("the snapshot is gone")
    };
    assert_eq!(found.last_good, None);
    assert!(problems(cx).await.iter().any(|problem| problem.contains("snapshot after turn 15 (result)")));
}

async fn an_exchanged_snapshot_is_detected(cx: &TestContext) {
    let forged = compacted(cx, 20).await;
    tamper(cx, "UPDATE snapshots SET turn = 14").await;
    assert!(!problems(cx).await.is_empty());
    tamper(cx, "UPDATE snapshots SET turn = 15").await;
    assert_valid(cx, &forged).await;
    // Only the audit shows this: the state could be another one under the same name, with a matching digest.
    let edit = "UPDATE runs SET dropped_turn = 16";
    tamper(cx, edit).await;
    assert!(!problems(cx).await.is_empty(), "the run row claims more than the audit records");
}

async fn dropped_marks_on_a_run_that_keeps_everything_are_corrupt(cx: &TestContext) {
    let worker = cx.worker().await;
    grow(cx, &worker, 1..=12).await;
    tamper(cx, "UPDATE boundaries SET ops = NULL, events = NULL, dropped = true WHERE turn <= 4").await;
    let state = cx.state(worker.run, None).await;
    assert!(matches!(state, Err(Error::Corrupt { .. })), "{state:?}");
    assert!(!problems(cx).await.is_empty());
}

async fn obsolete_snapshots_and_their_chunks_are_dropped(cx: &TestContext) {
    let worker = cx.worker().await;
    keep_last(cx, worker.run, 5).await;
    for turn in 1..=60 {
        let item: String = (0..6_000).map(|n: i32| format!("{:x} ", n.wrapping_mul(turn * 7_919))).collect();
        let text = format!(r#"{{"set":{{"a":{{"json":"{item}"}}}}}}"#);
        let commit = Commit { ops: Some(text.into()), full: false, ..worker.result(turn) };
        ok(cx.commit(&commit).await.unwrap());
        cx.snapshot(worker.run).await.unwrap();
        compact(cx, worker.run).await;
    }
    assert!(count(cx, "SELECT count(*) FROM snapshots").await <= 3);
    let chunks = count(cx, "SELECT count(*) FROM chunks").await;
    assert!(chunks <= 30, "{chunks} chunks of states of about 50 KiB that have nothing in common");
    assert_valid(cx, &worker).await;
}
