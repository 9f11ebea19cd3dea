//! Anchors as the databases keep them: each run that moved is anchored, and the first anchors can be pruned.

use std::sync::Arc;

use dalsegno_model::RunId;
use dalsegno_proof::{Anchor, Signer};
use futures::future::join_all;
use jiff::Timestamp;

use crate::anchors::STORE;
use crate::bundles::signer;
use crate::stores::used;
use crate::{Engine, on_both_databases};

on_both_databases! {
    each_changed_run_is_anchored_once,
    one_of_two_concurrent_anchors_is_stored,
    a_wholly_deleted_run_is_found_by_its_anchor,
    a_run_that_moves_while_it_is_anchored_is_anchored_again,
    an_exchanged_leaf_is_found,
    every_run_is_anchored_in_time_while_all_move,
    quiet_runs_are_anchored_again_before_their_anchors_are_pruned,
}

/// Anchors what has changed. Returns the runs in the anchor.
pub async fn anchor(engine: &Engine, signer: &Signer) -> Vec<RunId> {
    let store = &engine.cx.store;
    let moved = store.heads_to_anchor(RunId::nil()).await.unwrap();
    if !Anchor::is_due(&moved).unwrap() {
        return Vec::new();
    }
    let anchor = Anchor::next(&moved, store.id().await.unwrap(), Timestamp::UNIX_EPOCH, signer).unwrap();
    assert!(store.put_anchor(anchor.stored()).await.unwrap());
    moved.heads.iter().map(|it| it.run).collect()
}

async fn each_changed_run_is_anchored_once(engine: &Engine) {
    let signer = signer().await;
    let worker = used(engine).await;
    assert_eq!(anchor(engine, &signer).await.len(), 2);
    assert!(anchor(engine, &signer).await.is_empty());
    engine.cx.commit_turn(&worker, 5).await;
    assert_eq!(anchor(engine, &signer).await, [worker.run]);
    engine.cx.request_cancel(worker.run).await.unwrap();
    assert_eq!(anchor(engine, &signer).await, [worker.run]);
    let (summary, problems) = engine.check().await;
    assert_eq!((summary.anchors, summary.proven, problems), (3, 2, vec![]));
}

async fn a_run_that_moves_while_it_is_anchored_is_anchored_again(engine: &Engine) {
    let signer = signer().await;
    let worker = used(engine).await;
    let store = &engine.cx.store;
    let moved = store.heads_to_anchor(RunId::nil()).await.unwrap();
    engine.cx.commit_turn(&worker, 5).await;
    let anchored = Anchor::next(&moved, STORE, Timestamp::UNIX_EPOCH, &signer).unwrap();
    assert!(store.put_anchor(anchored.stored()).await.unwrap());
    assert_eq!(anchor(engine, &signer).await, [worker.run]);
    assert!(anchor(engine, &signer).await.is_empty());
}

async fn one_of_two_concurrent_anchors_is_stored(engine: &Engine) {
    let signer = signer().await;
    used(engine).await;
    let store = &engine.cx.store;
    let moved = store.heads_to_anchor(RunId::nil()).await.unwrap();
    let anchor = Anchor::next(&moved, STORE, Timestamp::UNIX_EPOCH, &signer).unwrap();
    let both = tokio::join!(store.put_anchor(anchor.stored()), store.put_anchor(anchor.stored()));
    assert_eq!([both.0.unwrap(), both.1.unwrap()].iter().filter(|put| **put).count(), 1);
    assert_eq!(engine.check().await.0.anchors, 1);
}

async fn a_wholly_deleted_run_is_found_by_its_anchor(engine: &Engine) {
    let signer: Arc<Signer> = signer().await;
    used(engine).await;
    anchor(engine, &signer).await;
    engine.unlock().await;
    let alone = if engine.is_postgres() { "" } else { "PRAGMA foreign_keys = OFF;" };
    let delete = format!("{alone} DELETE FROM audit; DELETE FROM boundaries; DELETE FROM runs");
    engine.execute(&delete).await.unwrap();
    let (summary, problems) = engine.check().await;
    assert_eq!((summary.runs, problems.len()), (0, 2), "{problems:?}");
}

async fn an_exchanged_leaf_is_found(engine: &Engine) {
    let signer: Arc<Signer> = signer().await;
    used(engine).await;
    anchor(engine, &signer).await;
    engine.unlock_anchors().await;
    for sql in [
        "UPDATE anchor_leaves SET audit_seq = audit_seq - 1",
        "UPDATE anchor_leaves SET audit_seq = audit_seq + 1, head_epoch = head_epoch + 1",
        "DELETE FROM anchor_leaves WHERE run = (SELECT max(run::text)::uuid FROM anchor_leaves)",
    ] {
        let sql = if engine.is_postgres() {
            sql.to_owned()
        } else {
            sql.replace("max(run::text)::uuid", "max(run)")
        };
        engine.execute(&sql).await.unwrap();
        let (_, problems) = engine.check().await;
        let found = problems.iter().any(|it| it.what.contains("its leaves are not those that were signed"));
        assert!(found, "{sql}: {problems:?}");
    }
}

/// 1,000 runs move all the time: each tick has one line, and no run waits for longer than the next tick.
async fn every_run_is_anchored_in_time_while_all_move(engine: &Engine) {
    let signer: Arc<Signer> = signer().await;
    let (cx, store) = (&engine.cx, &engine.cx.store);
    let mut runs = Vec::new();
    for _ in 0..20 {
        let created = join_all((0..50).map(|_| cx.run())).await;
        runs.extend(created.into_iter().map(|run| run.id));
    }
    for tick in 1..=3 {
        let moved = store.heads_to_anchor(RunId::nil()).await.unwrap();
        let named: Vec<_> = moved.heads.iter().map(|it| it.run).collect();
        runs.sort();
        assert_eq!(named, runs, "tick {tick}");
        let next = Anchor::next(&moved, STORE, Timestamp::UNIX_EPOCH, &signer).unwrap();
        // They move between the two calls as well.
        for some in runs.chunks(50) {
            for reset in join_all(some.iter().map(|run| cx.reset_budget(*run, tick - 1, tick))).await {
                reset.unwrap();
            }
        }
        assert!(store.put_anchor(next.stored()).await.unwrap());
    }
    let (summary, problems) = engine.check().await;
    assert_eq!((summary.anchors, problems), (3, vec![]));
}

async fn quiet_runs_are_anchored_again_before_their_anchors_are_pruned(engine: &Engine) {
    let (signer, admin) = (signer().await, &engine.cx.store);
    let worker = used(engine).await;
    assert_eq!(anchor(engine, &signer).await.len(), 2);
    engine.cx.commit_turn(&worker, 5).await;
    assert_eq!(anchor(engine, &signer).await, [worker.run]);
    assert_eq!(admin.request_anchors_from(2).await.unwrap(), 1, "the run that only anchor 1 names");
    assert_eq!(anchor(engine, &signer).await.len(), 1);
    assert!(anchor(engine, &signer).await.is_empty(), "it is announced once");
    assert_eq!(admin.prune_anchors(2).await.unwrap(), 1);
    assert_eq!(admin.prune_anchors(2).await.unwrap(), 0);
    let (summary, problems) = engine.check().await;
    assert_eq!((summary.anchors, summary.proven, problems), (2, 2, vec![]));
}
