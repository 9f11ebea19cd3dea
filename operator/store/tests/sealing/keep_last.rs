//! Sealed runs that keep no more than their last boundaries.

use dalsegno_store::proof::bundle;
use dalsegno_store::{Commit, Dropped, Error, Retention, RunId, verify};

use crate::{CANARY, Face, Worker, World, check, ok, on_both, patched, work, worked};

on_both! {
    what_was_dropped_and_what_was_shredded_are_told_apart,
    what_is_plain_after_a_snapshot_that_was_shredded_is_no_damage,
    nothing_more_is_dropped_of_a_shredded_run,
    a_snapshot_that_is_sealed_anew_is_the_same_to_the_audit,
    spent_chunks_go_by_the_hashes_under_which_they_are_kept,
    nobody_drops_anything_without_the_keys,
}

async fn keep_last(world: &World, run: RunId, boundaries: i32) {
    let retention = Retention { keep_last: Some(boundaries), ..Retention::default() };
    world.set_retention(run, &retention).await.unwrap();
}

/// Until there is nothing left to drop.
async fn clear(world: &World, run: RunId) {
    while world.drop_old(run, 500).await.unwrap().run.is_some() {}
}

async fn state(world: &World, run: RunId, turn: Option<i32>) -> String {
    serde_json::to_string(&world.state(run, turn).await.unwrap().unwrap()).unwrap()
}

/// A run of twenty turns of which the last five are kept; it is over, and shredded.
async fn shredded(world: &World) -> Worker {
    let worker = worked(world, 20).await;
    keep_last(world, worker.run, 5).await;
    clear(world, worker.run).await;
    world.finish(&worker.finish()).await.unwrap();
    world.shred(worker.run, "its user asked for it", "somebody").await.unwrap();
    worker
}

async fn what_was_dropped_and_what_was_shredded_are_told_apart(face: &Face) {
    let worker = shredded(&face.sealed().await).await;
    let world = face.sealed().await;
    let found = verify::survey(&*world.store, &world.of(&worker).await).await.unwrap();
    assert_eq!((found.damage, found.dropped, found.shredded, found.last_good), (vec![], 15, 5, None));
    let (summary, problems) = check(&world).await;
    assert_eq!((problems, summary.shredded), (vec![], 1));
    for turn in [1, 15, 16, 20] {
        let gone = world.state(worker.run, Some(turn)).await;
        assert!(matches!(gone, Err(Error::Gone { .. })), "turn {turn}: {gone:?}");
    }
}

/// Encryption was switched on before the first were dropped, so that only the snapshot which stands for these is sealed.
async fn what_is_plain_after_a_snapshot_that_was_shredded_is_no_damage(face: &Face) {
    let plain = face.plain().await;
    let (deltas, patches) = (plain.worker().await, plain.worker().await);
    for tens in 0..4 {
        work(&plain, &deltas, 10 * tens + 1..=10 * tens + 10).await;
    }
    patched(&plain, &patches, 1..=40).await;
    let world = face.sealed().await;
    for worker in [&deltas, &patches] {
        keep_last(&world, worker.run, 25).await;
        clear(&world, worker.run).await;
        assert!(world.of(worker).await.dropped_to.is_some());
        world.finish(&worker.finish()).await.unwrap();
        world.shred(worker.run, "its user asked for it", "somebody").await.unwrap();
    }
    let world = face.sealed().await;
    assert_eq!(check(&world).await.1, []);
    for worker in [&deltas, &patches] {
        let gone = world.state(worker.run, Some(19)).await;
        assert!(matches!(gone, Err(Error::Gone { .. })), "{gone:?}");
        let verified = bundle::verify(&*crate::bundle(&world, worker.run).await, None).unwrap();
        assert_eq!(verified.problems, []);
    }
    world.boundaries(patches.run, 1, 40).await.unwrap();
}

async fn nothing_more_is_dropped_of_a_shredded_run(face: &Face) {
    let worker = shredded(&face.sealed().await).await;
    let world = face.sealed().await;
    keep_last(&world, worker.run, 2).await;
    assert!(world.keepers(RunId::nil()).await.unwrap().is_empty());
    assert_eq!(world.drop_old(worker.run, 500).await.unwrap(), Dropped::default());
    assert_eq!(check(&world).await.1, []);
}

/// Two may make the same snapshot, and the later one may stand: no two that are sealed have the same bytes.
async fn a_snapshot_that_is_sealed_anew_is_the_same_to_the_audit(face: &Face) {
    let world = face.sealed().await;
    let worker = worked(&world, 20).await;
    face.edit("CREATE TABLE late AS SELECT * FROM snapshots; UPDATE late SET turn = turn").await;
    work(&world, &worker, 21..=25).await;
    keep_last(&world, worker.run, 5).await;
    clear(&world, worker.run).await;
    assert_eq!(world.of(&worker).await.dropped_to.unwrap().turn, 20, "where the first one stood");
    let anew = "SELECT CAST(count(*) AS text) FROM snapshots JOIN late USING (content_hash, digest)";
    assert_eq!(face.ask(anew).await, "0");
    face.edit(
        "UPDATE snapshots SET document = (SELECT document FROM late), digest = (SELECT digest FROM late) \
         WHERE turn = 20",
    )
    .await;
    assert_eq!(check(&world).await.1, []);
    assert_eq!(state(&world, worker.run, Some(20)).await.matches(CANARY).count(), 20);
}

/// Turns with a large state each, that has nothing in common with the one before, and snapshots of them.
async fn large(world: &World, worker: &Worker, turns: std::ops::RangeInclusive<i32>) {
    for turn in turns {
        let item: String = (0..6_000).map(|n: i32| format!("{:x} ", n.wrapping_mul(turn * 7_919))).collect();
        let text = format!(r#"{{"set":{{"a":{{"json":"{item}"}}}}}}"#);
        ok(world
            .commit(&Commit { ops: Some(text.into()), full: false, ..worker.result(turn) })
            .await
            .unwrap());
        world.snapshot(worker.run).await.unwrap();
    }
}

async fn spent_chunks_go_by_the_hashes_under_which_they_are_kept(face: &Face) {
    let plain = face.plain().await;
    let worker = plain.worker().await;
    large(&plain, &worker, 1..=12).await;
    assert_ne!(face.ask("SELECT CAST(count(*) AS text) FROM chunks").await, "0");
    let world = face.sealed().await;
    large(&world, &worker, 13..=32).await;
    let before = state(&world, worker.run, None).await;
    keep_last(&world, worker.run, 5).await;
    clear(&world, worker.run).await;
    let count = async |of: &str| face.ask(of).await.parse::<i64>().unwrap();
    assert_eq!(count("SELECT CAST(count(*) AS text) FROM snapshots").await, 2, "turns 27 and 32");
    let chunks = count("SELECT CAST(count(*) AS text) FROM chunks").await;
    assert!((2..=24).contains(&chunks), "{chunks} chunks of two states of about 50 KiB");
    let low = if face.is_postgres() { "'\\x10'::bytea" } else { "x'10'" };
    let unsealed = format!("SELECT CAST(count(*) AS text) FROM chunks WHERE substr(payload, 1, 1) < {low}");
    assert_eq!(count(&unsealed).await, 0, "those from before encryption went too");
    assert_eq!(state(&world, worker.run, None).await, before);
    assert_eq!(check(&world).await.1, []);
}

async fn nobody_drops_anything_without_the_keys(face: &Face) {
    let world = face.sealed().await;
    let worker = worked(&world, 20).await;
    keep_last(&world, worker.run, 5).await;
    let refused = face.plain().await.drop_old(worker.run, 500).await;
    assert!(matches!(refused, Err(Error::Unfit(_))), "{refused:?}");
    assert_eq!(world.of(&worker).await.dropped_to, None);
}
