//! How large a state may become, and that nobody is refused who keeps his small.

use dalsegno_protocol::{Boundary, Channel, ChannelOps, Limits};
use dalsegno_store::{Commit, Committed, Place, Rewind, SNAPSHOT_DUE, size};
use uuid::Uuid;

use crate::faces::{on_every_face, tamper};
use crate::rewinds::done;
use crate::world::*;

on_every_face! {
    a_state_that_grows_is_refused_at_its_limit_and_goes_on_once_it_is_cut,
    a_state_that_stays_small_goes_on_for_ever,
    a_rewind_neither_takes_room_nor_gives_any_that_is_not_there,
    what_an_older_binary_has_committed_is_counted,
    too_large_is_judged_last,
    what_a_lookup_may_read_of_the_latest_boundaries_is_counted,
}

/// A commit of these channel operations.
fn ops(worker: &Worker, turn: i32, text: String) -> Commit {
    let ops: ChannelOps = serde_json::from_str(&text).unwrap();
    let (size, full) = (size::of_ops(&ops), ops.full);
    Commit { ops: Some(text.into()), full, size, ..worker.result(turn) }
}

/// Values of one byte, each of which counts 65.
fn values(count: usize) -> String {
    vec![r#"{"json":1}"#; count].join(",")
}

fn append(worker: &Worker, turn: i32, count: usize) -> Commit {
    ops(worker, turn, format!(r#"{{"append":{{"log":[{}]}}}}"#, values(count)))
}

/// Nearly as large as a state may be.
fn large(worker: &Worker, turn: i32) -> Commit {
    ops(worker, turn, format!(r#"{{"full":true,"append":{{"log":[{}]}}}}"#, values(900_000)))
}

async fn items(world: &World, worker: &Worker) -> usize {
    match &world.state(worker.run, None).await.unwrap().unwrap()["log"] {
        Channel::List(items) => items.len(),
        Channel::Value(_) => panic!("the log is a list"),
    }
}

async fn a_state_that_grows_is_refused_at_its_limit_and_goes_on_once_it_is_cut(world: &World) {
    let worker = world.worker().await;
    ok(world.commit(&large(&worker, 1)).await.unwrap());
    ok(world.commit(&append(&worker, 2, 100_000)).await.unwrap());
    let more = append(&worker, 3, 100_000);
    for _ in 0..2 {
        assert_eq!(world.commit(&more).await.unwrap(), Committed::TooLarge, "however often it comes");
    }
    assert_eq!(items(world, &worker).await, 1_000_000, "and it is there");
    let cut = format!(r#"{{"truncate":{{"log":10}},"append":{{"log":[{}]}}}}"#, values(100_000));
    ok(world.commit(&ops(&worker, 3, cut)).await.unwrap());
    assert_eq!(items(world, &worker).await, 100_010);
    let counted = 64 + 3 + 100_010 * 65;
    assert_eq!(world.sizes(worker.run).await.unwrap().state, Some(counted), "as it was counted");
    ok(world.commit(&append(&worker, 4, 1)).await.unwrap());
    assert_eq!(world.sizes(worker.run).await.unwrap().state, Some(counted + 64 + 3 + 65), "and added to");
}

async fn what_a_lookup_may_read_of_the_latest_boundaries_is_counted(world: &World) {
    let worker = world.worker().await;
    assert_eq!(world.sizes(worker.run).await.unwrap().tail, 0);
    // Nothing that a codec makes small.
    let said: String = (0..2_000).map(|_| Uuid::new_v4().simple().to_string()).collect();
    let events = vec![json(&format!("\"{said}\""))];
    ok(world.commit(&Commit { events, ..worker.result(1) }).await.unwrap());
    let large = world.sizes(worker.run).await.unwrap().tail;
    assert!(large > 32_000, "{large}");
    for turn in 2..SNAPSHOT_DUE * 2 {
        ok(world.commit(&worker.result(turn)).await.unwrap());
    }
    assert!(world.sizes(worker.run).await.unwrap().tail >= large);
    for turn in 0..2 {
        ok(world.commit(&worker.result(SNAPSHOT_DUE * 2 + turn)).await.unwrap());
    }
    let small = world.sizes(worker.run).await.unwrap().tail;
    assert!(small < large, "no lookup reads that any more");

    // What a rewind has undone is read by none, and what it goes back to is again.
    let events = vec![json(&format!("\"{said}\""))];
    ok(world.commit(&Commit { events, ..worker.result(SNAPSHOT_DUE * 2 + 2) }).await.unwrap());
    assert!(world.sizes(worker.run).await.unwrap().tail > small + 32_000);
    let back = async |turn| {
        let epoch = world.of(&worker).await.epoch;
        let to = Place { turn, boundary: Boundary::Result, epoch: 1 };
        let rewind = Rewind { epoch, to, reason: "a test".into(), actor: "ada".into() };
        done(world.rewind(worker.run, &rewind).await.unwrap());
        world.sizes(worker.run).await.unwrap().tail
    };
    assert!(back(SNAPSHOT_DUE * 2 + 1).await <= small);
    assert!(back(2).await >= large);
}

/// What operations can add is far more than what they do.
async fn a_state_that_stays_small_goes_on_for_ever(world: &World) {
    let worker = world.worker().await;
    let each = Limits::STATE_BYTES / 3;
    for turn in 1..=24 {
        let text = match turn % 4 {
            0 => r#"{"set":{"note":{"json":1}}}"#,
            1 => r#"{"append":{"log":[{"json":1},{"json":2}]}}"#,
            2 => r#"{"truncate":{"log":1},"append":{"log":[{"json":1}]}}"#,
            _ => r#"{"remove":["log"],"append":{"other":[]}}"#,
        };
        let commit = ops(&worker, turn, text.into());
        ok(world.commit(&Commit { size: each, ..commit }).await.unwrap());
    }
    let most = world.sizes(worker.run).await.unwrap().state.unwrap();
    assert!(most as usize <= Limits::STATE_BYTES, "{most}");
}

async fn a_rewind_neither_takes_room_nor_gives_any_that_is_not_there(world: &World) {
    let worker = world.worker().await;
    ok(world.commit(&ops(&worker, 1, r#"{"set":{"note":{"json":1}}}"#.into())).await.unwrap());
    ok(world.commit(&large(&worker, 2)).await.unwrap());
    world.turn(&worker, 3).await;
    let back = async |turn| {
        let run = world.of(&worker).await;
        let to = Place { turn, boundary: Boundary::Result, epoch: 1 };
        let rewind = Rewind { epoch: run.epoch, to, reason: "a test".into(), actor: "ada".into() };
        let run = done(world.rewind(run.id, &rewind).await.unwrap());
        assert_eq!(world.sizes(run.id).await.unwrap().state, None);
        world.work_on(&run).await
    };
    let second = back(2).await;
    assert_eq!(world.commit(&append(&second, 3, 200_000)).await.unwrap(), Committed::TooLarge);
    let first = back(1).await;
    ok(world.commit(&append(&first, 2, 200_000)).await.unwrap());
    assert_eq!(items(world, &first).await, 200_000);
}

async fn what_an_older_binary_has_committed_is_counted(world: &World) {
    if world.url.is_none() {
        return;
    }
    let worker = world.worker().await;
    ok(world.commit(&append(&worker, 1, 3)).await.unwrap());
    let unknown = "UPDATE runs SET state_hash = NULL WHERE head_hash IS NOT NULL";
    assert_eq!(tamper(world, unknown).await, 1);
    assert_eq!(world.sizes(worker.run).await.unwrap().state, None);
    ok(world.commit(&ops(&worker, 2, r#"{"truncate":{"log":2}}"#.into())).await.unwrap());
    assert_eq!(world.sizes(worker.run).await.unwrap().state, None, "what adds nothing needs no count");
    ok(world.commit(&append(&worker, 3, 1)).await.unwrap());
    assert_eq!(world.sizes(worker.run).await.unwrap().state, Some(64 + 3 + 3 * 65));
}

async fn too_large_is_judged_last(world: &World) {
    let worker = world.worker().await;
    let first = worker.result(1);
    ok(world.commit(&first).await.unwrap());
    let over = Limits::STATE_BYTES + 1;
    let duplicate = world.commit(&Commit { size: over, ..again(&first) }).await.unwrap();
    assert!(matches!(duplicate, Committed::Duplicate(_)), "{duplicate:?}");
    let gap = Commit { size: over, ..worker.result(3) };
    assert!(matches!(world.commit(&gap).await.unwrap(), Committed::Conflict { .. }));
    let next = Commit { size: over, ..worker.result(2) };
    assert_eq!(world.commit(&next).await.unwrap(), Committed::TooLarge, "a full state counts what it says");
    ok(world.commit(&Commit { size: over - 1, ..worker.result(2) }).await.unwrap());
    world.next(&worker).await;
    let late = Commit { size: over, ..worker.result(3) };
    assert!(matches!(world.commit(&late).await.unwrap(), Committed::Fenced { .. }));
}
