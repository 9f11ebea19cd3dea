//! Sealed runs that keep only their last boundaries.

use dalsegno_model::{Commit, Dropped, Error, Retention, RunId};
use dalsegno_proof::bundle;
use dalsegno_proof::verify;

use crate::{
    CANARY, Engine, TestContext, Worker, check, ok, on_both_databases, patched, shred, work, worked,
};

on_both_databases! {
    dropped_and_shredded_payloads_are_distinguished,
    plain_boundaries_after_a_shredded_snapshot_are_no_damage,
    nothing_more_is_dropped_of_a_shredded_run,
    a_snapshot_sealed_again_still_matches_the_audit,
    obsolete_chunks_are_dropped_whether_sealed_or_not,
    nothing_is_dropped_without_the_keys,
}

async fn keep_last(cx: &TestContext, run: RunId, boundaries: i32) {
    let retention = Retention { keep_last: Some(boundaries), ..Retention::default() };
    cx.set_retention(run, &retention).await.unwrap();
}

/// Compacts until nothing is left to drop.
async fn clear(cx: &TestContext, run: RunId) {
    while cx.compact(run, 500).await.unwrap().run.is_some() {}
}

async fn state(cx: &TestContext, run: RunId, turn: Option<i32>) -> String {
    serde_json::to_string(&cx.state(run, turn).await.unwrap().unwrap()).unwrap()
}

/// A finished and shredded run of twenty turns, of which the last five were kept.
async fn shredded(cx: &TestContext) -> Worker {
    let worker = worked(cx, 20).await;
    keep_last(cx, worker.run, 5).await;
    clear(cx, worker.run).await;
    cx.finish(&worker.finish()).await.unwrap();
    cx.shred(&shred(worker.run, "its user asked for it", "somebody")).await.unwrap();
    worker
}

async fn dropped_and_shredded_payloads_are_distinguished(engine: &Engine) {
    let worker = shredded(&engine.sealed().await).await;
    let cx = engine.sealed().await;
    let found = verify::scan(&*cx.store, &cx.run_of(&worker).await).await.unwrap();
    assert_eq!((found.damage, found.dropped, found.shredded, found.last_good), (vec![], 15, 5, None));
    let (summary, problems) = check(&cx).await;
    assert_eq!((problems, summary.shredded), (vec![], 1));
    for turn in [1, 15, 16, 20] {
        let gone = cx.state(worker.run, Some(turn)).await;
        assert!(matches!(gone, Err(Error::Gone { .. })), "turn {turn}: {gone:?}");
    }
}

/// Encryption was switched on before the first boundaries were dropped, so only the snapshot that replaces them is sealed.
async fn plain_boundaries_after_a_shredded_snapshot_are_no_damage(engine: &Engine) {
    let plain = engine.plain().await;
    let (deltas, patches) = (plain.worker().await, plain.worker().await);
    for tens in 0..4 {
        work(&plain, &deltas, 10 * tens + 1..=10 * tens + 10).await;
    }
    patched(&plain, &patches, 1..=40).await;
    let cx = engine.sealed().await;
    for worker in [&deltas, &patches] {
        keep_last(&cx, worker.run, 25).await;
        clear(&cx, worker.run).await;
        assert!(cx.run_of(worker).await.dropped_to.is_some());
        cx.finish(&worker.finish()).await.unwrap();
        cx.shred(&shred(worker.run, "its user asked for it", "somebody")).await.unwrap();
    }
    let cx = engine.sealed().await;
    assert_eq!(check(&cx).await.1, []);
    for worker in [&deltas, &patches] {
        let gone = cx.state(worker.run, Some(19)).await;
        assert!(matches!(gone, Err(Error::Gone { .. })), "{gone:?}");
        let verified = bundle::verify(&*crate::bundle(&cx, worker.run).await, None).unwrap();
        assert_eq!(verified.problems, []);
    }
    cx.boundaries(patches.run, 1, 40).await.unwrap();
}

async fn nothing_more_is_dropped_of_a_shredded_run(engine: &Engine) {
    let worker = shredded(&engine.sealed().await).await;
    let cx = engine.sealed().await;
    keep_last(&cx, worker.run, 2).await;
    assert_eq!(cx.compact(worker.run, 500).await.unwrap(), Dropped::default());
    assert!(cx.runs_to_compact(RunId::nil()).await.unwrap().is_empty());
    assert_eq!(check(&cx).await.1, []);
}

/// Two operators may make the same snapshot, and either may be stored. Their sealed bytes differ.
async fn a_snapshot_sealed_again_still_matches_the_audit(engine: &Engine) {
    let cx = engine.sealed().await;
    let worker = worked(&cx, 20).await;
    engine.edit("CREATE TABLE late AS SELECT * FROM snapshots; UPDATE late SET turn = turn").await;
    work(&cx, &worker, 21..=25).await;
    keep_last(&cx, worker.run, 5).await;
    clear(&cx, worker.run).await;
    assert_eq!(cx.run_of(&worker).await.dropped_to.unwrap().turn, 20, "at the first snapshot");
    let anew = "SELECT CAST(count(*) AS text) FROM snapshots JOIN late USING (content_hash, digest)";
    assert_eq!(engine.ask(anew).await, "0");
    engine
        .edit(
            "UPDATE snapshots SET document = (SELECT document FROM late), digest = (SELECT digest FROM late) \
         WHERE turn = 20",
        )
        .await;
    assert_eq!(check(&cx).await.1, []);
    assert_eq!(state(&cx, worker.run, Some(20)).await.matches(CANARY).count(), 20);
}

/// Turns with a large state each, with nothing in common with the one before, and a snapshot of each that is due.
async fn large(cx: &TestContext, worker: &Worker, turns: std::ops::RangeInclusive<i32>) {
    for turn in turns {
        let item: String = (0..6_000).map(|n: i32| format!("{:x} ", n.wrapping_mul(turn * 7_919))).collect();
        let text = format!(r#"{{"set":{{"a":{{"json":"{item}"}}}}}}"#);
        ok(cx.commit(&Commit { ops: Some(text.into()), full: false, ..worker.result(turn) }).await.unwrap());
        cx.snapshot(worker.run).await.unwrap();
    }
}

async fn obsolete_chunks_are_dropped_whether_sealed_or_not(engine: &Engine) {
    let plain = engine.plain().await;
    let worker = plain.worker().await;
    large(&plain, &worker, 1..=12).await;
    assert_ne!(engine.ask("SELECT CAST(count(*) AS text) FROM chunks").await, "0");
    let cx = engine.sealed().await;
    large(&cx, &worker, 13..=32).await;
    let before = state(&cx, worker.run, None).await;
    keep_last(&cx, worker.run, 5).await;
    clear(&cx, worker.run).await;
    let count = async |of: &str| engine.ask(of).await.parse::<i64>().unwrap();
    assert_eq!(count("SELECT CAST(count(*) AS text) FROM snapshots").await, 2, "turns 27 and 32");
    let chunks = count("SELECT CAST(count(*) AS text) FROM chunks").await;
    assert!((2..=24).contains(&chunks), "{chunks} chunks of two states of about 50 KiB");
    let low = if engine.is_postgres() { "'\\x10'::bytea" } else { "x'10'" };
    let unsealed = format!("SELECT CAST(count(*) AS text) FROM chunks WHERE substr(payload, 1, 1) < {low}");
    assert_eq!(count(&unsealed).await, 0, "plain chunks are dropped too");
    assert_eq!(state(&cx, worker.run, None).await, before);
    assert_eq!(check(&cx).await.1, []);
}

async fn nothing_is_dropped_without_the_keys(engine: &Engine) {
    let cx = engine.sealed().await;
    let worker = worked(&cx, 20).await;
    keep_last(&cx, worker.run, 5).await;
    let refused = engine.plain().await.compact(worker.run, 500).await;
    assert!(matches!(refused, Err(Error::Unusable(_))), "{refused:?}");
    assert_eq!(cx.run_of(&worker).await.dropped_to, None);
}
