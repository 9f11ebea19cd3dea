//! What is damaged, exchanged or spent of a run that keeps no more than its last boundaries.

use dalsegno_store::verify::{self, Checkpoint};
use dalsegno_store::{Commit, Error, Rewind, Rewound};

use super::{assert_whole, back_to, clear, cleared, grow, grown, keep_last, problems, state};
use crate::faces::{count, forge, on_every_lasting_face, plain, tamper};
use crate::world::*;

on_every_lasting_face! {
    nothing_is_dropped_whose_state_cannot_be_rebuilt,
    a_damaged_snapshot_is_made_anew_before_anything_is_dropped,
    no_snapshot_that_was_there_before_is_trusted_by_what_drops,
    damaged_snapshots_are_read_past_back_to_the_one_that_stands_for_what_was_dropped,
    the_last_good_checkpoint_may_be_the_snapshot,
    a_snapshot_that_was_exchanged_is_found,
    a_run_that_keeps_all_has_nothing_dropped_whatever_its_rows_say,
    spent_snapshots_and_their_chunks_are_dropped,
}

async fn nothing_is_dropped_whose_state_cannot_be_rebuilt(world: &World) {
    let worker = world.worker().await;
    grow(world, &worker, 1..=30).await;
    tamper(world, "UPDATE boundaries SET ops = NULL WHERE turn = 3").await;
    keep_last(world, worker.run, 5).await;
    let refused = world.drop_old(worker.run, 500).await;
    assert!(matches!(refused, Err(Error::Corrupt { .. })), "{refused:?}");
    assert_eq!(count(world, "SELECT count(*) FROM boundaries WHERE ops IS NULL").await, 1);
    assert_eq!(world.of(&worker).await.dropped_to, None);
}

async fn a_damaged_snapshot_is_made_anew_before_anything_is_dropped(world: &World) {
    let worker = world.worker().await;
    grow(world, &worker, 1..=25).await;
    assert!(world.snapshot(worker.run).await.unwrap().made);
    tamper(world, "UPDATE chunks SET payload = hash").await;
    tamper(world, "UPDATE snapshots SET document = digest").await;
    grow(world, &worker, 26..=30).await;
    keep_last(world, worker.run, 5).await;
    clear(world, worker.run).await;
    assert_eq!(world.of(&worker).await.dropped_to.unwrap().turn, 25, "where the damaged one stands");
    assert_eq!(state(world, worker.run, None).await, grown(30));
    assert_whole(world, &worker).await;
}

async fn no_snapshot_that_was_there_before_is_trusted_by_what_drops(world: &World) {
    let world = plain(world).await;
    let worker = world.worker().await;
    grow(&world, &worker, 1..=30).await;
    let wrong = r#"{"log":{"list":[{"json":"forged"}]}}"#;
    for turn in [10, 24] {
        forge(&world, worker.run, turn, wrong).await;
    }
    assert!(state(&world, worker.run, None).await.contains("forged"), "a lookup believes it");
    keep_last(&world, worker.run, 5).await;
    clear(&world, worker.run).await;
    assert_eq!(world.of(&worker).await.dropped_to.unwrap().turn, 25);
    assert_eq!(state(&world, worker.run, None).await, grown(30));
    assert_whole(&world, &worker).await;
}

async fn damaged_snapshots_are_read_past_back_to_the_one_that_stands_for_what_was_dropped(world: &World) {
    let worker = cleared(world, 20).await;
    for turn in 21..=70 {
        grow(world, &worker, turn..=turn).await;
        world.snapshot(worker.run).await.unwrap();
    }
    assert!(tamper(world, "UPDATE snapshots SET document = digest WHERE turn > 15").await > 4);
    assert_eq!(state(world, worker.run, None).await, grown(70));
    clear(world, worker.run).await;
    assert_eq!(state(world, worker.run, None).await, grown(70));
    assert_whole(world, &worker).await;
}

async fn the_last_good_checkpoint_may_be_the_snapshot(world: &World) {
    let worker = cleared(world, 20).await;
    tamper(world, "UPDATE boundaries SET ops = NULL WHERE turn = 16").await;
    let run = world.lose(&worker, dalsegno_store::Class::Disruption).await;
    let Checkpoint::Corrupt(found) = verify::checkpoint(&*world.store, &run).await.unwrap() else {
        panic!("turn 16 is damaged")
    };
    let place = found.last_good.unwrap().place;
    assert_eq!(place.turn, 15);
    assert!(!found.detail.contains("retention"), "what was dropped is no damage: {}", found.detail);
    let rewind = Rewind { to: place, ..back_to(run.epoch, 15, 1) };
    assert!(matches!(world.rewind(run.id, &rewind).await.unwrap(), Rewound::Done(_)));
    assert_eq!(state(world, run.id, None).await, grown(15));

    // The snapshot is all there is of turn 15.
    tamper(world, "DELETE FROM snapshots").await;
    let run = world.of(&worker).await;
    let Checkpoint::Corrupt(found) = verify::checkpoint(&*world.store, &run).await.unwrap() else {
        panic!("the snapshot is gone")
    };
    assert_eq!(found.last_good, None);
    assert!(problems(world).await.iter().any(|told| told.contains("snapshot after turn 15 (result)")));
}

async fn a_snapshot_that_was_exchanged_is_found(world: &World) {
    let forged = cleared(world, 20).await;
    tamper(world, "UPDATE snapshots SET turn = 14").await;
    assert!(!problems(world).await.is_empty());
    tamper(world, "UPDATE snapshots SET turn = 15").await;
    assert_whole(world, &forged).await;
    // As if another state had been put under its name, with a digest to match: nothing but the audit tells.
    let told = "UPDATE runs SET dropped_turn = 16";
    tamper(world, told).await;
    assert!(!problems(world).await.is_empty(), "more is said to be dropped than the audit tells");
}

async fn a_run_that_keeps_all_has_nothing_dropped_whatever_its_rows_say(world: &World) {
    let worker = world.worker().await;
    grow(world, &worker, 1..=12).await;
    tamper(world, "UPDATE boundaries SET ops = NULL, events = NULL, dropped = true WHERE turn <= 4").await;
    let state = world.state(worker.run, None).await;
    assert!(matches!(state, Err(Error::Corrupt { .. })), "{state:?}");
    assert!(!problems(world).await.is_empty());
}

async fn spent_snapshots_and_their_chunks_are_dropped(world: &World) {
    let worker = world.worker().await;
    keep_last(world, worker.run, 5).await;
    for turn in 1..=60 {
        let item: String = (0..6_000).map(|n: i32| format!("{:x} ", n.wrapping_mul(turn * 7_919))).collect();
        let text = format!(r#"{{"set":{{"a":{{"json":"{item}"}}}}}}"#);
        let commit = Commit { ops: Some(text.into()), full: false, ..worker.result(turn) };
        ok(world.commit(&commit).await.unwrap());
        world.snapshot(worker.run).await.unwrap();
        clear(world, worker.run).await;
    }
    assert!(count(world, "SELECT count(*) FROM snapshots").await <= 3);
    let chunks = count(world, "SELECT count(*) FROM chunks").await;
    assert!(chunks <= 30, "{chunks} chunks of states of about 50 KiB that have nothing in common");
    assert_whole(world, &worker).await;
}
