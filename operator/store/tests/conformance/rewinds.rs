//! Rewinds: going back to an earlier boundary undoes the later ones, which stay readable.

use dalsegno_model::{
    AttemptState, BoundaryId, CallFilter, Claimed, Class, Commit, Committed, NextStep, Rewind, Rewound,
    RunRecord,
};
use dalsegno_proof::verify;
use dalsegno_protocol::{Boundary, Policy};

use crate::context::*;
use crate::engines::on_every_engine;

on_every_engine! {
    the_run_continues_from_the_rewinds_target,
    the_same_rewind_again_changes_nothing,
    a_boundary_committed_after_the_decision_is_not_undone,
    only_a_boundary_of_the_live_branch_can_be_a_target,
    a_rewind_fences_the_worker,
    a_rewind_leaves_an_ended_attempt_ended,
    a_plan_can_be_the_target,
    a_rewind_is_recorded_with_the_undone_boundaries,
    a_call_of_an_undone_turn_keeps_its_result,
    the_calls_of_an_undone_turn_are_not_those_of_the_open_one,
    a_call_that_was_begun_before_a_rewind_and_is_made_after_it_is_one_of_the_open_turn,
    every_run_is_listed_once,
    a_scan_reads_every_boundary_once,
}

/// A run of this number of turns, each with one event. Its next attempt is reserved.
async fn run_of(cx: &TestContext, turns: i32) -> (Worker, RunRecord) {
    let worker = cx.worker().await;
    for turn in 1..=turns {
        let commit = Commit { events: vec![json("1")], ..worker.result(turn) };
        ok(cx.commit(&commit).await.unwrap());
    }
    let run = cx.end_and_reserve(&worker, Class::Disruption).await;
    (worker, run)
}

fn back(run: &RunRecord, turn: i32) -> Rewind {
    let to = result_place(turn);
    Rewind { epoch: run.epoch, to, reason: "turn 3 is damaged".into(), actor: "ada".into() }
}

#[track_caller]
pub fn done(rewound: Rewound) -> RunRecord {
    match rewound {
        Rewound::Done(run) => *run,
        Rewound::Refused(run) => panic!("refused, with {:?}", run.head),
    }
}

#[track_caller]
fn refused(rewound: Rewound) -> RunRecord {
    match rewound {
        Rewound::Refused(run) => *run,
        Rewound::Done(run) => panic!("not refused, with {:?}", run.head),
    }
}

async fn the_run_continues_from_the_rewinds_target(cx: &TestContext) {
    let (_, before) = run_of(cx, 3).await;
    let run = done(cx.rewind(before.id, &back(&before, 1)).await.unwrap());
    let head = run.head.clone().unwrap();
    assert_eq!((head.turn, head.boundary, head.epoch, head.attempt), (1, Boundary::Result, 1, 1));
    assert_eq!(head.position, 3, "positions never go back");
    assert_eq!((run.highest_turn, run.epoch), (3, before.epoch + 1));
    assert_eq!((before.rewinds, run.rewinds), (0, 1));
    assert_eq!((run.attempt.number, run.attempt.state), (2, AttemptState::Reserved));
    assert_eq!((run.attempt.epoch, run.attempt.turn_at_start), (run.epoch, 1));
    assert_eq!((run.counters, run.usage), (before.counters, before.usage));
    assert_eq!(run, cx.run_by_uid(&run.object_uid).await.read_at(run.now), "the answer is the stored row");

    let worker = cx.start_worker(&run).await;
    let receipt = ok(cx.commit(&Commit { events: vec![json("1")], ..worker.result(2) }).await.unwrap());
    assert_eq!(receipt.head.unwrap().position, 4);
    let rows = cx.boundaries(run.id, 1, 9).await.unwrap();
    let live: Vec<_> = rows.iter().map(|row| (row.turn, row.epoch)).collect();
    assert_eq!(live, [(1, 1), (2, run.epoch)]);
    assert!(cx.state(run.id, Some(2)).await.unwrap().is_some());
    assert!(cx.state(run.id, Some(3)).await.unwrap().is_none());
    let found = verify::scan(&*cx.store, &cx.run_of(&worker).await).await.unwrap();
    assert_eq!((found.boundaries, found.damage), (4, vec![]));
}

trait ReadAt {
    fn read_at(self, now: jiff::Timestamp) -> Self;
}

impl ReadAt for RunRecord {
    fn read_at(self, now: jiff::Timestamp) -> Self {
        Self { now, ..self }
    }
}

async fn the_same_rewind_again_changes_nothing(cx: &TestContext) {
    let (_, before) = run_of(cx, 3).await;
    let rewind = back(&before, 2);
    let run = done(cx.rewind(before.id, &rewind).await.unwrap());
    let again = done(cx.rewind(before.id, &rewind).await.unwrap());
    assert_eq!(without_times(run.clone()), without_times(again));
    let to_the_head = done(cx.rewind(before.id, &Rewind { epoch: run.epoch, ..rewind }).await.unwrap());
    assert_eq!(without_times(run), without_times(to_the_head));
}

async fn a_boundary_committed_after_the_decision_is_not_undone(cx: &TestContext) {
    let (_, before) = run_of(cx, 3).await;
    let rewind = back(&before, 2);
    let run = done(cx.rewind(before.id, &rewind).await.unwrap());
    let worker = cx.start_worker(&run).await;
    cx.commit_turn(&worker, 3).await;
    let run = refused(cx.rewind(before.id, &rewind).await.unwrap());
    assert_eq!(run.head.unwrap().turn, 3);
    cx.commit_turn(&worker, 4).await;
}

async fn only_a_boundary_of_the_live_branch_can_be_a_target(cx: &TestContext) {
    let (_, before) = run_of(cx, 3).await;
    let run = done(cx.rewind(before.id, &back(&before, 2)).await.unwrap());
    let boundary_id = |turn, boundary, epoch| BoundaryId { turn, boundary, epoch };
    for to in [
        boundary_id(3, Boundary::Result, 1),
        boundary_id(4, Boundary::Result, 1),
        boundary_id(0, Boundary::Result, 1),
        boundary_id(1, Boundary::Plan, 1),
        boundary_id(1, Boundary::Result, 2),
    ] {
        let answer = cx.rewind(run.id, &Rewind { to, ..back(&run, 1) }).await.unwrap();
        assert_eq!(without_times(refused(answer)), without_times(run.clone()), "{to:?}");
    }
    let worker = cx.start_worker(&run).await;
    ok(cx.finish(&worker.finish()).await.unwrap());
    let over = cx.run_of(&worker).await;
    let answer = cx.rewind(over.id, &back(&over, 1)).await.unwrap();
    assert_eq!(without_times(refused(answer)), without_times(over), "a finished run is never changed");
}

async fn a_rewind_fences_the_worker(cx: &TestContext) {
    let worker = cx.worker().await;
    let first = ok(cx.commit(&worker.result(1)).await.unwrap());
    let second = worker.result(2);
    ok(cx.commit(&second).await.unwrap());
    let before = cx.run_of(&worker).await;
    let run = done(cx.rewind(worker.run, &back(&before, 1)).await.unwrap());
    let late = cx.commit(&worker.result(3)).await.unwrap();
    assert!(matches!(late, Committed::Fenced { committed: false }), "{late:?}");
    let undone = cx.commit(&second).await.unwrap();
    assert!(matches!(undone, Committed::Fenced { committed: false }), "{undone:?}");
    assert_eq!((run.attempt.number, run.attempt.state), (2, AttemptState::Reserved));
    assert_eq!((run.attempt.epoch, run.attempt.turn_at_start), (run.epoch, 1));
    let end = run.past[0].end.clone().unwrap();
    assert_eq!((end.cause.as_str(), end.class, end.charged), ("Rewound", Class::Neutral, false));
    assert_eq!(run.past[0].turn_at_end, Some(2));
    assert_eq!(run.head.unwrap().content_hash, first.head.unwrap().content_hash);
}

async fn a_rewind_leaves_an_ended_attempt_ended(cx: &TestContext) {
    let worker = cx.worker().await;
    cx.commit_turn(&worker, 1).await;
    cx.commit_turn(&worker, 2).await;
    let ended = cx.end_attempt(worker.run, &ending(1, Class::Crash), &NextStep::Nothing).await.unwrap();
    let run = done(cx.rewind(worker.run, &back(&ended, 1)).await.unwrap());
    assert_eq!((run.attempt.number, run.attempt.state), (1, AttemptState::Ended));
    assert_eq!((run.head.unwrap().turn, run.epoch), (1, ended.epoch + 1));
}

async fn a_plan_can_be_the_target(cx: &TestContext) {
    let worker = cx.worker().await;
    ok(cx.commit(&worker.plan(1)).await.unwrap());
    ok(cx.commit(&worker.result(1)).await.unwrap());
    let run = cx.end_and_reserve(&worker, Class::Disruption).await;
    let to = BoundaryId { turn: 1, boundary: Boundary::Plan, epoch: 1 };
    let run = done(cx.rewind(run.id, &Rewind { to, ..back(&run, 1) }).await.unwrap());
    assert_eq!(run.head.clone().unwrap().boundary, Boundary::Plan);
    let worker = cx.start_worker(&run).await;
    ok(cx.commit(&worker.result(1)).await.unwrap());
    let found = verify::scan(&*cx.store, &cx.run_of(&worker).await).await.unwrap();
    assert_eq!((found.boundaries, found.damage), (3, vec![]));
}

async fn a_rewind_is_recorded_with_the_undone_boundaries(cx: &TestContext) {
    let (worker, before) = run_of(cx, 3).await;
    let rows = cx.boundaries(worker.run, 2, 3).await.unwrap();
    done(cx.rewind(worker.run, &back(&before, 1)).await.unwrap());
    let chain = cx.audit(worker.run).await.unwrap();
    cx.assert_audit_is_valid(worker.run).await;
    let last = chain.last().unwrap();
    assert_eq!((last.kind.as_str(), last.actor.as_str()), ("rewound", "ada"));
    let detail: serde_json::Value = serde_json::from_str(&last.detail).unwrap();
    assert_eq!(detail["reason"], "turn 3 is damaged");
    assert_eq!((&detail["from"]["turn"], &detail["to"]["turn"]), (&3.into(), &1.into()));
    let undone: Vec<_> = rows
        .iter()
        .map(|row| {
            let hash = dalsegno_format::header::render(&row.content_hash);
            serde_json::json!({ "turn": row.turn, "boundary": "result", "hash": hash })
        })
        .collect();
    assert_eq!(detail["undone"], serde_json::Value::from(undone));

    let worker = cx.start_worker(&cx.run_of(&worker).await).await;
    cx.commit_turn(&worker, 2).await;
    let run = cx.run_of(&worker).await;
    done(cx.rewind(worker.run, &back(&run, 1)).await.unwrap());
    let kinds: Vec<_> = cx.audit(worker.run).await.unwrap().into_iter().map(|row| row.kind).collect();
    assert_eq!(kinds[kinds.len() - 3..], ["ended", "rewound", "reserved"]);
}

async fn a_call_of_an_undone_turn_keeps_its_result(cx: &TestContext) {
    let worker = cx.worker().await;
    cx.commit_turn(&worker, 1).await;
    let claim = cx.start_call(&worker, "pay", Policy::RetrySameKey).await;
    cx.complete(&worker.complete(&claim)).await.unwrap();
    cx.commit_turn(&worker, 2).await;
    let run = cx.end_and_reserve(&worker, Class::Disruption).await;
    let run = done(cx.rewind(run.id, &back(&run, 1)).await.unwrap());
    let worker = cx.start_worker(&run).await;
    let claimed = cx.claim(&worker.claim("pay", Policy::RetrySameKey)).await.unwrap();
    assert!(matches!(claimed, Claimed::Done { .. }), "{claimed:?}");
}

async fn the_calls_of_an_undone_turn_are_not_those_of_the_open_one(cx: &TestContext) {
    let worker = cx.worker().await;
    cx.commit_turn(&worker, 1).await;
    let claim = cx.start_call(&worker, "pay", Policy::RetrySameKey).await;
    cx.complete(&worker.complete(&claim)).await.unwrap();
    let open = async |run| {
        let calls = cx.calls(run, CallFilter::OpenTurn).await.unwrap();
        calls.into_iter().map(|call| call.id).collect::<Vec<_>>()
    };
    assert_eq!(open(worker.run).await, ["pay"]);
    cx.commit_turn(&worker, 2).await;
    let run = cx.end_and_reserve(&worker, Class::Disruption).await;
    let run = done(cx.rewind(run.id, &back(&run, 1)).await.unwrap());
    assert!(open(run.id).await.is_empty());
    let worker = cx.start_worker(&run).await;
    // A call that is made in the millisecond of the rewind counts as undone.
    tokio::time::sleep(std::time::Duration::from_millis(2)).await;
    let claim = cx.start_call(&worker, "pay again", Policy::RetrySameKey).await;
    cx.complete(&worker.complete(&claim)).await.unwrap();
    assert_eq!(open(run.id).await, ["pay again"]);
}

async fn a_call_that_was_begun_before_a_rewind_and_is_made_after_it_is_one_of_the_open_turn(
    cx: &TestContext,
) {
    let worker = cx.worker().await;
    cx.commit_turn(&worker, 1).await;
    cx.commit_turn(&worker, 2).await;
    cx.start_call(&worker, "pay", Policy::RetrySameKey).await;
    let run = cx.end_and_reserve(&worker, Class::Crash).await;
    let run = done(cx.rewind(run.id, &back(&run, 1)).await.unwrap());
    let worker = cx.start_worker(&run).await;
    tokio::time::sleep(std::time::Duration::from_millis(2)).await;
    let claim = cx.start_call(&worker, "pay", Policy::RetrySameKey).await;
    cx.commit_turn(&worker, 2).await;
    cx.complete(&worker.complete(&claim)).await.unwrap();
    let calls = cx.calls(run.id, CallFilter::OpenTurn).await.unwrap();
    assert_eq!(calls.iter().map(|call| call.id.as_str()).collect::<Vec<_>>(), ["pay"]);
}

async fn every_run_is_listed_once(cx: &TestContext) {
    let mut expected = Vec::new();
    for _ in 0..3 {
        expected.push(cx.run().await.id);
    }
    expected.sort();
    let mut found = Vec::new();
    let mut after = uuid::Uuid::nil();
    loop {
        let page = cx.run_ids(after).await.unwrap();
        let Some(last) = page.last() else { break };
        after = *last;
        found.extend(page);
    }
    assert_eq!(found, expected);
}

async fn a_scan_reads_every_boundary_once(cx: &TestContext) {
    let (worker, run) = run_of(cx, 300).await;
    let mut after = None;
    let mut places = Vec::new();
    loop {
        let page = cx.check_boundaries(worker.run, after).await.unwrap();
        let Some(last) = page.last() else { break };
        after = Some(last.id);
        places.extend(page.iter().map(|link| link.id.turn));
        assert!(page.iter().all(|link| link.result.is_ok() && !link.undone));
    }
    assert_eq!(places, (1..=300).collect::<Vec<_>>());
    let found = verify::scan(&*cx.store, &run).await.unwrap();
    assert_eq!((found.boundaries, found.last_good.unwrap().turn), (300, 300));
}
