//! Snapshots and patches are checked against the boundaries, and each damage is reported once.

use std::sync::Arc;

use dalsegno_format::{fold, header};
use dalsegno_model::{Commit, Committed, DeltaBase};
use dalsegno_proof::Problem;
use dalsegno_protocol::Boundary;

use crate::context::{Worker, result_place, rewind_to};
use crate::{Engine, forged, on_both_databases};

on_both_databases! {
    untouched_snapshots_and_patches_have_no_problem,
    a_damaged_snapshot_is_one_problem,
    a_snapshot_of_a_forged_state_is_found,
    snapshots_of_a_rewound_branch_have_no_problem,
    undecodable_payloads_are_reported_and_the_check_goes_on,
}

fn full(turn: i32) -> String {
    format!(
        r#"{{"full":true,"set":{{"state":{{"json":{{"turn":{turn},"text":"{}"}}}}}}}}"#,
        "word ".repeat(50)
    )
}

/// Commits turns as a client that sends its full state through a gateway that caches the last one.
async fn turns(
    engine: &Engine,
    worker: &Worker,
    turns: std::ops::RangeInclusive<i32>,
    base: &mut Option<DeltaBase>,
) {
    for turn in turns {
        let commit = Commit {
            ops: Some(full(turn).into_bytes()),
            base: base.take(),
            ..worker.commit(turn, Boundary::Result)
        };
        let Committed::Ok(receipt) = engine.cx.commit(&commit).await.unwrap() else {
            panic!("turn {turn} was refused");
        };
        let state = fold::text(&fold::fold([full(turn).as_str()]).unwrap()).unwrap();
        let content_hash = header::parse(&receipt.head.unwrap().content_hash).unwrap();
        *base = Some(DeltaBase { content_hash, state: Arc::new(state) });
        if turn % 12 == 0 {
            engine.cx.snapshot(worker.run).await.unwrap();
        }
    }
}

/// 30 turns, all but the first stored as patches, with snapshots after turns 12 and 24.
async fn snapshotted(engine: &Engine) -> Worker {
    let worker = engine.cx.worker().await;
    turns(engine, &worker, 1..=30, &mut None).await;
    worker
}

async fn problems(engine: &Engine) -> Vec<String> {
    engine
        .check()
        .await
        .1
        .iter()
        .map(|Problem { location: boundary_id, what, .. }| format!("{boundary_id}: {what}"))
        .collect()
}

async fn untouched_snapshots_and_patches_have_no_problem(engine: &Engine) {
    let worker = snapshotted(engine).await;
    engine.cx.commit_turn(&engine.cx.next_worker(&worker).await, 31).await;
    let (summary, problems) = engine.check().await;
    assert_eq!(problems, []);
    assert_eq!((summary.boundaries, summary.snapshots), (31, 2));
}

async fn a_damaged_snapshot_is_one_problem(engine: &Engine) {
    snapshotted(engine).await;
    engine.execute("UPDATE snapshots SET document = digest WHERE turn = 12").await.unwrap();
    let damaged = "snapshot after turn 12 (result): its document does not have its digest";
    assert_eq!(problems(engine).await, [damaged]);
    engine.execute("UPDATE chunks SET payload = hash").await.unwrap();
    let found = problems(engine).await;
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found[1].starts_with("snapshot after turn 24 (result): "), "{found:?}");
}

/// Anybody who can write to the database can forge a snapshot with valid chunk, hash and digest.
async fn a_snapshot_of_a_forged_state_is_found(engine: &Engine) {
    let worker = snapshotted(engine).await;
    let boundary = engine.cx.boundaries(worker.run, 24, 24).await.unwrap().remove(0);
    let text = r#"{"state":{"value":{"json":"forged"}}}"#;
    for sql in forged::snapshot(worker.run, &boundary, text, engine.is_postgres()) {
        engine.execute(&sql).await.unwrap();
    }
    let forged = "snapshot after turn 24 (result): it is another state than the boundaries make";
    assert_eq!(problems(engine).await, [forged]);
}

async fn snapshots_of_a_rewound_branch_have_no_problem(engine: &Engine) {
    let worker = snapshotted(engine).await;
    let before = engine.cx.run_of(&worker).await;
    let rewind = rewind_to(before.epoch, result_place(10));
    engine.cx.rewind(worker.run, &rewind).await.unwrap();
    let worker = engine.cx.start_worker(&engine.cx.run_of(&worker).await).await;
    turns(engine, &worker, 11..=25, &mut None).await;
    let (summary, problems) = engine.check().await;
    assert_eq!(problems, []);
    assert_eq!((summary.boundaries, summary.snapshots), (45, 3), "two of them of turn 24");
}

async fn undecodable_payloads_are_reported_and_the_check_goes_on(engine: &Engine) {
    snapshotted(engine).await;
    engine.execute("UPDATE boundaries SET ops = digest WHERE turn = 11").await.unwrap();
    let found = problems(engine).await;
    assert!(found[0].starts_with("turn 11 (result): "), "{found:?}");
    assert!(
        found.iter().any(|problem| problem.starts_with("turn 12 (result): ")),
        "turn 12 is a patch: {found:?}"
    );
    assert!(
        !found.iter().any(|problem| problem.starts_with("turn 13")),
        "a snapshot has the state of turn 12: {found:?}"
    );
}
