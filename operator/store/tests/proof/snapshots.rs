//! Snapshots and patches are held to what the boundaries make, and what is damaged is named once.

use std::sync::Arc;

use dalsegno_protocol::Boundary;
use dalsegno_store::proof::Problem;
use dalsegno_store::{Base, Commit, Committed, Place, Rewind, fold, header};

use crate::world::Worker;
use crate::{Face, forged, on_both};

on_both! {
    snapshots_and_patches_that_nobody_touched_are_right,
    a_damaged_snapshot_is_one_problem,
    a_snapshot_of_another_state_is_found,
    snapshots_of_a_branch_that_was_rewound_are_right_too,
    payloads_that_cannot_be_decoded_are_told_of_and_the_check_goes_on,
}

fn full(turn: i32) -> String {
    format!(
        r#"{{"full":true,"set":{{"state":{{"json":{{"turn":{turn},"text":"{}"}}}}}}}}"#,
        "word ".repeat(50)
    )
}

/// A client that sends its whole state, behind a gateway that remembers the last one.
async fn turns(face: &Face, worker: &Worker, turns: std::ops::RangeInclusive<i32>, base: &mut Option<Base>) {
    for turn in turns {
        let commit = Commit {
            ops: Some(full(turn).into_bytes()),
            base: base.take(),
            ..worker.commit(turn, Boundary::Result)
        };
        let Committed::Ok(standing) = face.world.commit(&commit).await.unwrap() else {
            panic!("turn {turn} was refused");
        };
        let state = fold::text(&fold::fold([full(turn).as_str()]).unwrap()).unwrap();
        let content_hash = header::parse(&standing.head.unwrap().content_hash).unwrap();
        *base = Some(Base { content_hash, state: Arc::new(state) });
        if turn % 12 == 0 {
            face.world.snapshot(worker.run).await.unwrap();
        }
    }
}

/// 30 turns, all but the first kept as patches, with snapshots after turns 12 and 24.
async fn snapshotted(face: &Face) -> Worker {
    let worker = face.world.worker().await;
    turns(face, &worker, 1..=30, &mut None).await;
    worker
}

async fn problems(face: &Face) -> Vec<String> {
    face.check().await.1.iter().map(|Problem { place, what, .. }| format!("{place}: {what}")).collect()
}

async fn snapshots_and_patches_that_nobody_touched_are_right(face: &Face) {
    let worker = snapshotted(face).await;
    face.world.turn(&face.world.next(&worker).await, 31).await;
    let (summary, problems) = face.check().await;
    assert_eq!(problems, []);
    assert_eq!((summary.boundaries, summary.snapshots), (31, 2));
}

async fn a_damaged_snapshot_is_one_problem(face: &Face) {
    snapshotted(face).await;
    face.execute("UPDATE snapshots SET document = digest WHERE turn = 12").await.unwrap();
    let damaged = "snapshot after turn 12 (result): its document does not have its digest";
    assert_eq!(problems(face).await, [damaged]);
    face.execute("UPDATE chunks SET payload = hash").await.unwrap();
    let found = problems(face).await;
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found[1].starts_with("snapshot after turn 24 (result): "), "{found:?}");
}

/// One who can write to the database makes a snapshot that is whole and says something else: chunk, hash and digest.
async fn a_snapshot_of_another_state_is_found(face: &Face) {
    let worker = snapshotted(face).await;
    let boundary = face.world.boundaries(worker.run, 24, 24).await.unwrap().remove(0);
    let text = r#"{"state":{"value":{"json":"forged"}}}"#;
    for sql in forged::snapshot(worker.run, &boundary, text, face.is_postgres()) {
        face.execute(&sql).await.unwrap();
    }
    let forged = "snapshot after turn 24 (result): it is another state than the boundaries make";
    assert_eq!(problems(face).await, [forged]);
}

async fn snapshots_of_a_branch_that_was_rewound_are_right_too(face: &Face) {
    let worker = snapshotted(face).await;
    let before = face.world.of(&worker).await;
    let to = Place { turn: 10, boundary: Boundary::Result, epoch: 1 };
    let rewind = Rewind { epoch: before.epoch, to, reason: "it went astray".into(), actor: "ada".into() };
    face.world.rewind(worker.run, &rewind).await.unwrap();
    let worker = face.world.work_on(&face.world.of(&worker).await).await;
    turns(face, &worker, 11..=25, &mut None).await;
    let (summary, problems) = face.check().await;
    assert_eq!(problems, []);
    assert_eq!((summary.boundaries, summary.snapshots), (45, 3), "two of them of turn 24");
}

async fn payloads_that_cannot_be_decoded_are_told_of_and_the_check_goes_on(face: &Face) {
    snapshotted(face).await;
    face.execute("UPDATE boundaries SET ops = digest WHERE turn = 11").await.unwrap();
    let found = problems(face).await;
    assert!(found[0].starts_with("turn 11 (result): "), "{found:?}");
    assert!(
        found.iter().any(|problem| problem.starts_with("turn 12 (result): ")),
        "it was a patch: {found:?}"
    );
    assert!(!found.iter().any(|problem| problem.starts_with("turn 13")), "a snapshot has turn 12: {found:?}");
}
