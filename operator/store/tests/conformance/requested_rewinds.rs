//! Rewinds that people request: each is made or refused once, and its audit says what was undone and what was accepted.

use dalsegno_model::audit::kind;
use dalsegno_model::{
    AttemptState, AvailableTurns, BoundaryId, CallFilter, Class, Effects, LISTED_EFFECTS, Retention,
    RewindRefusal, RewindRequest, RewindResult, Rewound, RunId, RunRecord, StepBack,
};
use dalsegno_model::{NewRun, OnPrior, RequestedBy};
use dalsegno_protocol::{Boundary, CallOutcome, CompleteOutcome, Policy, RecordOp};
use serde_json::{Value, json};

use crate::context::*;
use crate::engines::on_every_engine;

on_every_engine! {
    a_request_is_obeyed_once,
    the_number_at_creation_and_the_one_at_adoption_count_as_observed,
    calls_with_effects_must_be_named,
    calls_that_changed_nothing_need_not_be_named,
    a_refusal_lists_a_hundred_calls_and_counts_the_others,
    a_stale_head_is_refused,
    a_turn_that_is_not_there_is_refused,
    a_turn_that_retention_has_dropped_is_refused,
    a_request_for_the_head_drops_what_came_after_it,
    a_run_that_is_over_is_not_changed,
    a_run_steps_back_over_a_turn_without_effects_only,
}

/// A request to go back to this turn.
pub fn request(generation: i64, to_turn: i32) -> RewindRequest {
    RewindRequest {
        generation,
        to_turn,
        if_head: None,
        accept_effects: Vec::new(),
        requested_by: RequestedBy {
            manager: Some("kubectl-edit".into()),
            user: Some("ada".into()),
            reason: Some("it went astray".into()),
        },
    }
}

fn accepting(request: RewindRequest, calls: &[&str]) -> RewindRequest {
    RewindRequest { accept_effects: calls.iter().map(|id| (*id).to_owned()).collect(), ..request }
}

/// A worker whose run has this number of turns.
async fn worked(cx: &TestContext, turns: i32) -> Worker {
    let worker = cx.worker().await;
    for turn in 1..=turns {
        cx.commit_turn(&worker, turn).await;
    }
    worker
}

async fn complete(cx: &TestContext, worker: &Worker, id: &str, policy: Policy) {
    let claim = cx.start_call(worker, id, policy).await;
    cx.complete(&worker.complete(&claim)).await.unwrap();
}

fn effects(calls: &[&str]) -> RewindRefusal {
    RewindRefusal::Effects(Effects { calls: calls.iter().map(|id| (*id).to_owned()).collect(), further: 0 })
}

fn refused(run: &RunRecord) -> Option<RewindRefusal> {
    run.rewind.clone().unwrap().refused
}

fn turn(run: &RunRecord) -> i32 {
    run.head.as_ref().map_or(0, |head| head.turn)
}

/// The details of the audit rows of this kind.
async fn details(cx: &TestContext, run: RunId, kind: &str) -> Vec<Value> {
    let rows = cx.audit(run).await.unwrap();
    rows.iter().filter(|row| row.kind == kind).map(|row| serde_json::from_str(&row.detail).unwrap()).collect()
}

async fn a_request_is_obeyed_once(cx: &TestContext) {
    let worker = worked(cx, 3).await;
    let before = cx.run_of(&worker).await;
    let run = cx.request_rewind(worker.run, &request(4, 1)).await.unwrap();
    assert_eq!(run.rewind, Some(RewindResult { generation: 4, to_turn: 1, refused: None }));
    assert_eq!((turn(&run), run.observed_rewind_generation, run.rewinds), (1, 4, 1));
    assert_eq!((run.attempt.number, run.attempt.state), (2, AttemptState::Reserved));
    let next = cx.start_worker(&run).await;
    cx.commit_turn(&next, 2).await;
    let now = cx.run_of(&worker).await;
    for generation in [4, 3] {
        let again = cx.request_rewind(worker.run, &request(generation, 1)).await.unwrap();
        assert_eq!(without_times(again), without_times(now.clone()), "{generation}");
    }
    let [detail] = &details(cx, worker.run, kind::REWOUND).await[..] else { panic!("one rewind") };
    assert_eq!(detail["generation"], 4);
    assert_eq!(detail["from"]["hash"], before.head.unwrap().content_hash);
    assert_eq!((&detail["from"]["turn"], &detail["to"]["turn"]), (&json!(3), &json!(1)));
    assert_eq!(detail["acceptedEffects"], json!([]));
    assert_eq!((&detail["user"], &detail["reason"]), (&json!("ada"), &json!("it went astray")));
    assert_eq!(detail["undone"].as_array().unwrap().len(), 2);
    cx.assert_audit_is_valid(worker.run).await;
}

async fn the_number_at_creation_and_the_one_at_adoption_count_as_observed(cx: &TestContext) {
    let new = NewRun { rewind_generation: 3, ..new_run() };
    let run = cx.create(&new).await;
    assert_eq!((run.observed_rewind_generation, run.rewind.clone()), (3, None));
    let worker = cx.start_worker(&run).await;
    cx.commit_turn(&worker, 1).await;
    cx.commit_turn(&worker, 2).await;
    let run = cx.request_rewind(run.id, &request(3, 1)).await.unwrap();
    assert_eq!((turn(&run), run.rewind), (2, None));

    for (generation, expected) in [(2, 3), (7, 7)] {
        let later = NewRun { rewind_generation: generation, ..namesake(&new, OnPrior::Adopt) };
        let adopted = cx.create(&later).await;
        assert_eq!((adopted.id, adopted.observed_rewind_generation), (worker.run, expected));
    }
}

async fn calls_with_effects_must_be_named(cx: &TestContext) {
    let worker = worked(cx, 1).await;
    complete(cx, &worker, "in-turn-2", Policy::RetrySameKey).await;
    cx.commit_turn(&worker, 2).await;
    let claim = cx.start_call(&worker, "unknown", Policy::Ask).await;
    let before = cx.run_of(&worker).await;

    let run = cx.request_rewind(worker.run, &request(1, 1)).await.unwrap();
    assert_eq!(refused(&run), Some(effects(&["in-turn-2", "unknown"])));
    assert_eq!((run.observed_rewind_generation, run.epoch, turn(&run)), (1, before.epoch, 2));
    assert!(run.rewind.unwrap().refused.is_some());
    let run = cx.request_rewind(worker.run, &accepting(request(2, 1), &["in-turn-2"])).await.unwrap();
    assert_eq!(refused(&run), Some(effects(&["unknown"])), "only the missing one");
    // The worker was not disturbed.
    cx.complete(&worker.complete(&claim)).await.unwrap();
    let rows = details(cx, worker.run, kind::REWIND_REFUSED).await;
    assert_eq!(rows.len(), 2);
    assert_eq!(
        (&rows[0]["generation"], &rows[0]["toTurn"], &rows[0]["user"]),
        (&json!(1), &json!(1), &json!("ada"))
    );
    assert_eq!(rows[0]["refused"]["calls"], json!(["in-turn-2", "unknown"]));

    let named = accepting(request(3, 1), &["unknown", "in-turn-2", "of-no-call"]);
    let run = cx.request_rewind(worker.run, &named).await.unwrap();
    assert_eq!((refused(&run), turn(&run)), (None, 1));
    let rewound = details(cx, worker.run, kind::REWOUND).await;
    assert_eq!(rewound[0]["acceptedEffects"], json!(["in-turn-2", "unknown"]), "what was there, and no more");
    cx.assert_audit_is_valid(worker.run).await;
}

async fn calls_that_changed_nothing_need_not_be_named(cx: &TestContext) {
    let worker = worked(cx, 1).await;
    complete(cx, &worker, "read", Policy::ReadOnly).await;
    cx.start_call(&worker, "reading", Policy::ReadOnly).await;
    let failed = cx.start_call(&worker, "failed", Policy::Probe).await;
    let outcome = CompleteOutcome::Failed;
    cx.complete(&dalsegno_model::Complete { outcome, ..worker.complete(&failed) }).await.unwrap();
    let settled = cx.start_call(&worker, "settled", Policy::Ask).await;
    let run = cx.end_and_reserve(&worker, Class::Disruption).await;
    let settle = person_settles(worker.run, &settled.id);
    cx.settle(&dalsegno_model::Settle { outcome: CallOutcome::Failed, ..settle }).await.unwrap();
    let worker = cx.start_worker(&run).await;
    let mut plan = worker.plan(2);
    plan.calls = vec![planned("planned", Policy::Ask)];
    ok(cx.commit(&plan).await.unwrap());
    let run = cx.request_rewind(worker.run, &request(1, 1)).await.unwrap();
    assert_eq!((refused(&run), turn(&run)), (None, 1));
    // A call of an earlier turn stays done.
    assert!(cx.call_ids(worker.run, CallFilter::All).await.contains(&"planned".to_owned()));
}

async fn a_refusal_lists_a_hundred_calls_and_counts_the_others(cx: &TestContext) {
    let worker = worked(cx, 1).await;
    let ids: Vec<_> = (0..LISTED_EFFECTS + 2).map(|number| format!("call-{number:03}")).collect();
    for id in &ids {
        complete(cx, &worker, id, Policy::RetrySameKey).await;
    }
    cx.commit_turn(&worker, 2).await;
    let run = cx.request_rewind(worker.run, &request(1, 1)).await.unwrap();
    let calls = ids[..LISTED_EFFECTS].to_vec();
    assert_eq!(refused(&run), Some(RewindRefusal::Effects(Effects { calls, further: 2 })));
    let all = RewindRequest { accept_effects: ids, ..request(2, 1) };
    assert_eq!(refused(&cx.request_rewind(worker.run, &all).await.unwrap()), None);
}

async fn a_stale_head_is_refused(cx: &TestContext) {
    let worker = worked(cx, 3).await;
    let hash_of = async |number: i32| {
        let rows = cx.boundaries(worker.run, number, number).await.unwrap();
        dalsegno_format::header::render(&rows[0].content_hash)
    };
    let seen = hash_of(3).await;
    let with_head =
        |generation, to, head: &str| RewindRequest { if_head: Some(head.into()), ..request(generation, to) };
    let run = cx.request_rewind(worker.run, &with_head(1, 2, &seen)).await.unwrap();
    assert_eq!((refused(&run), turn(&run)), (None, 2));
    // Somebody else who has seen turn 3 comes too late.
    let run = cx.request_rewind(worker.run, &with_head(2, 1, &seen)).await.unwrap();
    let head = run.head.as_ref().map(|head| head.content_hash.clone());
    assert_eq!((refused(&run), turn(&run)), (Some(RewindRefusal::HeadChanged { head }), 2));
    let run = cx.request_rewind(worker.run, &with_head(3, 1, "no hash")).await.unwrap();
    assert!(matches!(refused(&run), Some(RewindRefusal::HeadChanged { .. })));
    // An ancestor of the head will do, also one before the turn to go back to.
    let worker = cx.start_worker(&run).await;
    cx.commit_turn(&worker, 3).await;
    let run = cx.request_rewind(worker.run, &with_head(4, 2, &hash_of(1).await)).await.unwrap();
    assert_eq!((refused(&run), turn(&run)), (None, 2));
}

async fn a_turn_that_is_not_there_is_refused(cx: &TestContext) {
    let worker = cx.worker().await;
    let nothing = RewindRefusal::TurnNotAvailable(AvailableTurns { first: 1, last: 0 });
    let run = cx.request_rewind(worker.run, &request(1, 1)).await.unwrap();
    assert_eq!(refused(&run), Some(nothing));
    cx.commit_turn(&worker, 1).await;
    ok(cx.commit(&worker.plan(2)).await.unwrap());
    for (generation, to) in [(2, 2), (3, 3)] {
        let run = cx.request_rewind(worker.run, &request(generation, to)).await.unwrap();
        let turns = AvailableTurns { first: 1, last: 1 };
        assert_eq!(refused(&run), Some(RewindRefusal::TurnNotAvailable(turns)), "a plan ends no turn");
    }
    let run = cx.request_rewind(worker.run, &request(4, 1)).await.unwrap();
    assert_eq!((refused(&run), turn(&run)), (None, 1));
    assert_eq!(run.head.unwrap().boundary, Boundary::Result);
}

async fn a_turn_that_retention_has_dropped_is_refused(cx: &TestContext) {
    let worker = worked(cx, 14).await;
    cx.set_retention(worker.run, &Retention { days: 30, keep_last: Some(3), ..Retention::default() })
        .await
        .unwrap();
    while cx.compact(worker.run, 500).await.unwrap().run.is_some() {}
    let dropped = cx.run_of(&worker).await.dropped_to.unwrap();
    let run = cx.request_rewind(worker.run, &request(1, dropped.turn - 1)).await.unwrap();
    let turns = AvailableTurns { first: dropped.turn, last: 14 };
    assert_eq!(refused(&run), Some(RewindRefusal::TurnNotAvailable(turns)));
    let run = cx.request_rewind(worker.run, &request(2, dropped.turn)).await.unwrap();
    assert_eq!((refused(&run), turn(&run)), (None, dropped.turn));
    assert!(cx.state(worker.run, None).await.unwrap().is_some());
}

async fn a_request_for_the_head_drops_what_came_after_it(cx: &TestContext) {
    let worker = worked(cx, 2).await;
    let put = RecordOp::Put {
        space: "s".into(),
        key: "k".into(),
        value: dalsegno_protocol::Payload::Json(json("1")),
    };
    cx.write_records(&worker.record_batch(vec![put])).await.unwrap();
    complete(cx, &worker, "after-the-head", Policy::Probe).await;
    let run = cx.request_rewind(worker.run, &request(1, 2)).await.unwrap();
    assert_eq!(refused(&run), Some(effects(&["after-the-head"])));
    let named = accepting(request(2, 2), &["after-the-head"]);
    let run = cx.request_rewind(worker.run, &named).await.unwrap();
    assert_eq!((turn(&run), run.attempt.number), (2, 2));
    assert_eq!(cx.read_records(worker.run, &all_records()).await.unwrap().records.len(), 0);
    cx.assert_audit_is_valid(worker.run).await;
}

async fn a_run_that_is_over_is_not_changed(cx: &TestContext) {
    let worker = worked(cx, 2).await;
    ok(cx.finish(&worker.finish()).await.unwrap());
    let before = cx.run_of(&worker).await;
    let run = cx.request_rewind(worker.run, &request(1, 1)).await.unwrap();
    assert_eq!(without_times(run), without_times(before));
}

async fn a_run_steps_back_over_a_turn_without_effects_only(cx: &TestContext) {
    let worker = worked(cx, 2).await;
    complete(cx, &worker, "read", Policy::ReadOnly).await;
    let reserved = cx.end_and_reserve(&worker, Class::Crash).await;
    let step = StepBack { epoch: reserved.epoch, from: result_place(2) };
    let refused = async |step: StepBack| {
        let rewound = cx.step_back(worker.run, &step).await.unwrap();
        assert!(matches!(rewound, Rewound::Refused(_)), "{step:?}");
    };
    refused(StepBack { epoch: step.epoch - 1, ..step.clone() }).await;
    refused(StepBack { from: result_place(1), ..step.clone() }).await;
    let Rewound::Done(run) = cx.step_back(worker.run, &step).await.unwrap() else { panic!("refused") };
    assert_eq!((turn(&run), run.attempt.number, run.attempt.turn_at_start), (1, 2, 1));
    assert_eq!((run.counters, run.observed_rewind_generation), (reserved.counters, 0), "nothing is forgiven");
    refused(step).await;
    // There is no turn before the first.
    refused(StepBack { epoch: run.epoch, from: result_place(1) }).await;

    let worker = cx.start_worker(&run).await;
    complete(cx, &worker, "paid", Policy::Probe).await;
    cx.commit_turn(&worker, 2).await;
    let reserved = cx.end_and_reserve(&worker, Class::Crash).await;
    let head = reserved.head.as_ref().unwrap();
    let from = BoundaryId { turn: 2, boundary: Boundary::Result, epoch: head.epoch };
    refused(StepBack { epoch: reserved.epoch, from }).await;
    cx.assert_audit_is_valid(worker.run).await;
}
