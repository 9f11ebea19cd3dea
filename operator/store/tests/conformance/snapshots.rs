//! Snapshots make a lookup cheap, and never another answer.

use std::sync::Arc;

use dalsegno_protocol::Boundary;
use dalsegno_store::{Commit, Error, Place, Rewind, Rewound, SNAPSHOT_DUE, Snapshotted};
use futures::future::join_all;

use crate::faces::{count, on_every_face, on_every_lasting_face, tamper};
use crate::world::*;

on_every_face! {
    a_snapshot_is_made_when_it_is_due_and_not_before,
    a_state_is_the_same_with_and_without_snapshots,
    json_comes_back_byte_for_byte_through_a_snapshot,
    twins_of_snapshotters_make_one_snapshot,
    a_full_state_that_is_kept_plain_needs_no_snapshot,
    a_run_without_a_boundary_gets_no_snapshot,
    a_snapshot_of_a_branch_that_was_rewound_is_not_used_on_the_new_one,
}

on_every_lasting_face! {
    a_lookup_reads_what_came_after_the_snapshot_and_nothing_before_it,
    a_lookup_costs_as_much_at_turn_1000_as_at_turn_10,
    a_damaged_snapshot_is_not_used,
    a_missing_chunk_is_noticed,
    a_damaged_chunk_is_noticed_and_the_next_snapshot_mends_it,
    a_snapshot_of_another_boundary_is_not_used,
    a_run_whose_snapshots_are_all_damaged_is_read_from_its_beginning,
    a_snapshot_touches_no_run,
    snapshots_of_a_growing_list_share_its_chunks,
}

/// A commit of these channel operations as the result of a turn.
async fn change(world: &World, worker: &Worker, turn: i32, text: &str) {
    let commit = Commit {
        ops: Some(text.into()),
        full: text.contains(r#""full":true"#),
        ..worker.commit(turn, Boundary::Result)
    };
    ok(world.commit(&commit).await.unwrap());
}

/// Appends the turn's number to the list `log`, turn by turn.
async fn grow(world: &World, worker: &Worker, turns: std::ops::RangeInclusive<i32>) {
    for turn in turns {
        change(world, worker, turn, &format!(r#"{{"append":{{"log":[{{"json":{turn}}}]}}}}"#)).await;
    }
}

async fn state(world: &World, worker: &Worker, turn: Option<i32>) -> String {
    serde_json::to_string(&world.state(worker.run, turn).await.unwrap().unwrap()).unwrap()
}

fn grown(turns: i32) -> String {
    let items: Vec<_> = (1..=turns).map(|turn| format!(r#"{{"json":{turn}}}"#)).collect();
    format!(r#"{{"log":{{"list":[{}]}}}}"#, items.join(","))
}

async fn snapshot(world: &World, worker: &Worker) -> Snapshotted {
    world.snapshot(worker.run).await.unwrap()
}

/// A run of 25 turns with snapshots at turns 10 and 20.
async fn snapshotted(world: &World) -> Worker {
    let worker = world.worker().await;
    for turns in [1..=10, 11..=20] {
        grow(world, &worker, turns).await;
        assert!(snapshot(world, &worker).await.made);
    }
    grow(world, &worker, 21..=25).await;
    worker
}

async fn a_snapshot_is_made_when_it_is_due_and_not_before(world: &World) {
    let worker = world.worker().await;
    for turn in 1..SNAPSHOT_DUE {
        grow(world, &worker, turn..=turn).await;
        assert_eq!(snapshot(world, &worker).await, Snapshotted { made: false, turn, lag: turn });
    }
    grow(world, &worker, 10..=10).await;
    assert_eq!(snapshot(world, &worker).await, Snapshotted { made: true, turn: 10, lag: 0 });
    assert_eq!(snapshot(world, &worker).await, Snapshotted { made: false, turn: 10, lag: 0 });
    grow(world, &worker, 11..=19).await;
    assert_eq!(snapshot(world, &worker).await, Snapshotted { made: false, turn: 19, lag: 9 });
    for plan in [20, 21] {
        let bare = Commit { ops: None, full: false, ..worker.plan(plan) };
        ok(world.commit(&bare).await.unwrap());
        assert_eq!(snapshot(world, &worker).await.made, plan == 20, "plans are boundaries too");
        grow(world, &worker, plan..=plan).await;
    }
}

async fn a_state_is_the_same_with_and_without_snapshots(world: &World) {
    let worker = snapshotted(world).await;
    for turn in 1..=25 {
        assert_eq!(state(world, &worker, Some(turn)).await, grown(turn), "turn {turn}");
    }
    let next = world.next(&worker).await;
    assert_eq!(state(world, &next, None).await, grown(25));
    world.assert_linked(&next).await;
}

async fn json_comes_back_byte_for_byte_through_a_snapshot(world: &World) {
    let worker = world.worker().await;
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let texts =
        [r#"{"z":1,  "a":[ 1e400, 12345678901234567890123456789.10 ]}"#, r#""\ud800 \u00e9 é""#, &deep];
    for (text, turn) in texts.iter().cycle().zip(1..=11) {
        change(world, &worker, turn, &format!(r#"{{"append":{{"l":[{{"json":{text}}}]}}}}"#)).await;
    }
    let bytes = r#"{"set":{"b":{"bytes":{"mediaType":"image/png","base64":"iVBORw0KGgo="}}}}"#;
    change(world, &worker, 12, bytes).await;
    let before = state(world, &worker, None).await;
    assert!(texts.iter().all(|text| before.contains(text)));
    assert!(snapshot(world, &worker).await.made);
    assert_eq!(state(world, &worker, None).await, before);
}

async fn twins_of_snapshotters_make_one_snapshot(world: &World) {
    let worker = world.worker().await;
    for round in 0..5 {
        grow(world, &worker, round * 10 + 1..=round * 10 + 10).await;
        let twins = (0..4).map(|_| {
            let (store, run) = (Arc::clone(&world.store), worker.run);
            tokio::spawn(async move { store.snapshot(run).await.unwrap() })
        });
        let made = join_all(twins).await.into_iter().filter(|twin| twin.as_ref().unwrap().made).count();
        assert!(made >= 1, "round {round}");
        assert_eq!(
            snapshot(world, &worker).await,
            Snapshotted { made: false, turn: round * 10 + 10, lag: 0 }
        );
    }
    assert_eq!(state(world, &worker, None).await, grown(50));
}

async fn a_full_state_that_is_kept_plain_needs_no_snapshot(world: &World) {
    let worker = world.worker().await;
    for turn in 1..=20 {
        world.turn(&worker, turn).await;
        assert_eq!(snapshot(world, &worker).await, Snapshotted { made: false, turn, lag: 0 });
    }
}

async fn a_run_without_a_boundary_gets_no_snapshot(world: &World) {
    let worker = world.worker().await;
    assert_eq!(snapshot(world, &worker).await, Snapshotted { made: false, turn: 0, lag: 0 });
}

/// After the rewind the same turns come again, past the snapshot, with other words.
async fn a_snapshot_of_a_branch_that_was_rewound_is_not_used_on_the_new_one(world: &World) {
    let worker = snapshotted(world).await;
    let before = world.of(&worker).await;
    let to = Place { turn: 12, boundary: Boundary::Result, epoch: 1 };
    let rewind = Rewind { epoch: before.epoch, to, reason: "it went astray".into(), actor: "ada".into() };
    assert!(matches!(world.rewind(worker.run, &rewind).await.unwrap(), Rewound::Done(_)));
    let worker = world.work_on(&world.of(&worker).await).await;
    assert_eq!(state(world, &worker, None).await, grown(12), "the snapshot of turn 10 is of both branches");
    let anew = |turns| grown(12).replace("]}}", &format!("{}]}}}}", r#",{"json":"anew"}"#.repeat(turns)));
    for turn in 13..=24 {
        change(world, &worker, turn, r#"{"append":{"log":[{"json":"anew"}]}}"#).await;
        assert_eq!(state(world, &worker, None).await, anew(turn as usize - 12), "turn {turn}");
    }
    assert_eq!(snapshot(world, &worker).await, Snapshotted { made: true, turn: 24, lag: 0 });
    for turn in 13..=24 {
        assert_eq!(state(world, &worker, Some(turn)).await, anew(turn as usize - 12), "turn {turn}");
    }
    world.assert_linked(&worker).await;
}

async fn a_lookup_reads_what_came_after_the_snapshot_and_nothing_before_it(world: &World) {
    let worker = snapshotted(world).await;
    // What is not read may be gone: retention drops payloads and keeps headers.
    tamper(world, "UPDATE boundaries SET ops = NULL WHERE turn <= 20").await;
    assert_eq!(state(world, &worker, None).await, grown(25));
    assert_eq!(state(world, &worker, Some(20)).await, grown(20));
    assert_eq!(state(world, &worker, Some(10)).await, grown(10));
    assert!(matches!(world.state(worker.run, Some(15)).await, Err(Error::Corrupt { .. })));
}

async fn a_lookup_costs_as_much_at_turn_1000_as_at_turn_10(world: &World) {
    let worker = world.worker().await;
    let mut last = Snapshotted { made: false, turn: 0, lag: 0 };
    for turn in 1..=1_000 {
        // As large at the end as at the beginning.
        let text = format!(r#"{{"truncate":{{"log":3}},"append":{{"log":[{{"json":{turn}}}]}}}}"#);
        change(world, &worker, turn, &text).await;
        if turn % 10 == 0 {
            last = snapshot(world, &worker).await;
            assert!(last.made, "turn {turn}");
        }
    }
    assert_eq!(last, Snapshotted { made: true, turn: 1_000, lag: 0 });
    assert_eq!(
        tamper(world, "DELETE FROM boundaries WHERE turn < 1000").await,
        999,
        "a lookup reads one row"
    );
    assert!(state(world, &worker, None).await.ends_with(r#"{"json":1000}]}}"#));
    let chunks = count(world, "SELECT count(*) FROM chunks").await;
    assert_eq!(chunks, 100, "one for each snapshot of so small a state");
}

async fn a_damaged_snapshot_is_not_used(world: &World) {
    for damage in [
        "UPDATE snapshots SET document = digest WHERE turn = 20",
        "UPDATE snapshots SET digest = content_hash WHERE turn = 20",
        "DELETE FROM snapshots WHERE turn = 20",
    ] {
        let worker = snapshotted(world).await;
        let of_run = format!("{damage} AND content_hash IN ({})", hashes_of(world, &worker).await);
        assert_eq!(tamper(world, &of_run).await, 1, "{damage}");
        assert_eq!(state(world, &worker, None).await, grown(25), "{damage}");
        assert_eq!(snapshot(world, &worker).await, Snapshotted { made: true, turn: 25, lag: 0 }, "{damage}");
        assert_eq!(state(world, &worker, None).await, grown(25), "{damage}");
    }
}

/// The content hashes of the worker's run as SQL, in either database's words.
async fn hashes_of(world: &World, worker: &Worker) -> String {
    let sqlite = world.url.as_deref().unwrap().starts_with("sqlite:");
    let rows = world.boundaries(worker.run, 1, i32::MAX).await.unwrap();
    let hashes = rows.iter().map(|row| {
        let digits: String = row.content_hash.iter().map(|byte| format!("{byte:02x}")).collect();
        if sqlite { format!("x'{digits}'") } else { format!("'\\x{digits}'::bytea") }
    });
    hashes.collect::<Vec<_>>().join(", ")
}

async fn a_missing_chunk_is_noticed(world: &World) {
    let worker = snapshotted(world).await;
    assert!(tamper(world, "DELETE FROM chunks").await > 0);
    assert_eq!(state(world, &worker, None).await, grown(25), "the boundaries are all there");
    assert_eq!(state(world, &worker, Some(10)).await, grown(10));
    tamper(world, "UPDATE boundaries SET ops = NULL WHERE turn = 3").await;
    assert!(matches!(world.state(worker.run, None).await, Err(Error::Corrupt { .. })), "neither is whole");
}

async fn a_damaged_chunk_is_noticed_and_the_next_snapshot_mends_it(world: &World) {
    let worker = world.worker().await;
    grow(world, &worker, 1..=10).await;
    assert!(snapshot(world, &worker).await.made);
    assert!(tamper(world, "UPDATE chunks SET payload = hash").await > 0);
    assert_eq!(state(world, &worker, None).await, grown(10));
    assert!(snapshot(world, &worker).await.made, "of the same boundary, with the same chunk");
    tamper(world, "UPDATE boundaries SET ops = NULL").await;
    assert_eq!(state(world, &worker, None).await, grown(10), "the snapshot alone");
}

async fn a_snapshot_of_another_boundary_is_not_used(world: &World) {
    let worker = snapshotted(world).await;
    tamper(world, "DELETE FROM snapshots WHERE turn = 20").await;
    let of_25 = hashes_of(world, &worker).await;
    let of_25 = of_25.rsplit(", ").next().unwrap();
    assert_eq!(tamper(world, &format!("UPDATE snapshots SET content_hash = {of_25}")).await, 1);
    assert_eq!(state(world, &worker, None).await, grown(25));
}

async fn a_run_whose_snapshots_are_all_damaged_is_read_from_its_beginning(world: &World) {
    let worker = world.worker().await;
    for round in 0..8 {
        grow(world, &worker, round * 10 + 1..=round * 10 + 10).await;
        assert!(snapshot(world, &worker).await.made);
    }
    assert_eq!(tamper(world, "UPDATE snapshots SET document = digest").await, 8);
    assert_eq!(state(world, &worker, None).await, grown(80));
}

async fn a_snapshot_touches_no_run(world: &World) {
    let worker = world.worker().await;
    grow(world, &worker, 1..=10).await;
    let before = still(world.of(&worker).await);
    assert!(snapshot(world, &worker).await.made);
    assert_eq!(still(world.of(&worker).await), before);
}

async fn snapshots_of_a_growing_list_share_its_chunks(world: &World) {
    let worker = world.worker().await;
    for turn in 1..=100 {
        let item: String = (0..2_000).map(|n: i32| format!("{:x} ", n.wrapping_mul(turn * 7_919))).collect();
        change(world, &worker, turn, &format!(r#"{{"append":{{"log":[{{"json":"{item}"}}]}}}}"#)).await;
        if turn % 10 == 0 {
            assert!(snapshot(world, &worker).await.made);
        }
    }
    let last = state(world, &worker, None).await;
    let kept = count(world, "SELECT count(*) FROM chunks").await;
    let at_once = last.len() as i64 / (16 << 10);
    assert!(kept < at_once * 2, "{kept} chunks for ten snapshots, of which the last has about {at_once}");
}
