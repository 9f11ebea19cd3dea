//! How much the open calls of a run may be, so that whoever goes on with it can be told of them.

use dalsegno_protocol::{Boundary, CallOutcome, CompleteOutcome, Limits, PlannedCall, Policy, RawValue};
use dalsegno_store::{
    CallFilter, Claim, Claimed, Commit, Committed, Complete, Completed, Place, Rewind, RunId, Settle,
};

use crate::faces::on_every_face;
use crate::rewinds::done;
use crate::world::*;

on_every_face! {
    a_turn_whose_calls_are_too_large_goes_on_with_small_results_and_the_next_begins_anew,
    a_plan_whose_calls_are_too_large_is_refused_and_nothing_of_it_is_there,
    what_an_attempt_left_behind_counts_until_it_has_ended,
    the_count_is_what_the_open_calls_are_whatever_happens,
    a_call_that_was_passed_over_is_open_again_once_it_is_planned_anew,
}

/// A JSON text of so many bytes.
fn text(bytes: usize) -> Box<RawValue> {
    json(&format!("{:?}", "x".repeat(bytes - 2)))
}

/// Twice this fits, and not much more.
const LARGE: usize = 31 << 20;

async fn complete(world: &World, worker: &Worker, claim: &Claim, bytes: usize) -> Completed {
    let complete = Complete { result: Some(text(bytes)), ..worker.complete(claim) };
    world.complete(&complete).await.unwrap()
}

/// What the open calls count, from the calls that are told.
async fn told(world: &World, run: RunId) -> i64 {
    let mut calls = world.calls(run, CallFilter::Pending).await.unwrap();
    calls.extend(world.calls(run, CallFilter::OpenTurn).await.unwrap());
    let length = |json: &Option<Box<RawValue>>| json.as_ref().map_or(0, |json| json.get().len());
    let of = |call: &dalsegno_protocol::Call| {
        let result = length(&call.result).max(Limits::SMALL_RESULT_BYTES);
        call.id.len() + call.key.len() + length(&call.arguments) + result
    };
    calls.iter().map(of).sum::<usize>() as i64
}

#[track_caller]
fn is_counted(told: i64, counted: i64) {
    assert_eq!(told, counted, "what is told, and what is counted");
    assert!(counted <= Limits::OPEN_CALLS_BYTES as i64, "{counted}");
}

async fn a_turn_whose_calls_are_too_large_goes_on_with_small_results_and_the_next_begins_anew(world: &World) {
    let worker = world.worker().await;
    for id in ["a", "b"] {
        let claim = world.start_call(&worker, id, Policy::Probe).await;
        assert!(matches!(complete(world, &worker, &claim, LARGE).await, Completed::Ok));
        assert!(matches!(complete(world, &worker, &claim, LARGE).await, Completed::Duplicate));
    }
    let claim = world.start_call(&worker, "c", Policy::Probe).await;
    for _ in 0..2 {
        let answer = complete(world, &worker, &claim, LARGE).await;
        assert!(matches!(answer, Completed::TooLarge), "however often it comes: {answer:?}");
    }
    let large = Claim { arguments: Some(text(2 << 20)), ..worker.claim("d", Policy::Probe) };
    let answer = world.claim(&large).await.unwrap();
    assert!(matches!(answer, Claimed::TooLarge), "{answer:?}");
    assert!(matches!(world.claim(&claim).await.unwrap(), Claimed::Go(_)), "what is there adds nothing");
    let small = complete(world, &worker, &claim, Limits::SMALL_RESULT_BYTES).await;
    assert!(matches!(small, Completed::Ok), "{small:?}");
    assert_eq!(world.call_ids(worker.run, CallFilter::OpenTurn).await, ["a", "b", "c"]);
    is_counted(told(world, worker.run).await, world.sizes(worker.run).await.unwrap().calls);

    world.turn(&worker, 1).await;
    assert_eq!(world.sizes(worker.run).await.unwrap().calls, 0);
    assert!(matches!(world.claim(&large).await.unwrap(), Claimed::Go(_)));
    assert!(matches!(complete(world, &worker, &large, LARGE).await, Completed::Ok));
}

async fn a_plan_whose_calls_are_too_large_is_refused_and_nothing_of_it_is_there(world: &World) {
    let worker = world.worker().await;
    for id in ["a", "b"] {
        let claim = world.start_call(&worker, id, Policy::Probe).await;
        assert!(matches!(complete(world, &worker, &claim, LARGE).await, Completed::Ok));
    }
    let with = |ids: &[&str]| {
        let call = |id: &&str| PlannedCall { arguments: Some(text(1 << 20)), ..planned(id, Policy::Probe) };
        Commit { calls: ids.iter().map(call).collect(), ..worker.plan(1) }
    };
    assert_eq!(world.commit(&with(&["c", "d"])).await.unwrap(), Committed::CallsTooLarge);
    assert_eq!(world.call_ids(worker.run, CallFilter::All).await, ["a", "b"]);
    assert!(world.of(&worker).await.head.is_none());
    ok(world.commit(&with(&["a", "b", "c"])).await.unwrap());
    is_counted(told(world, worker.run).await, world.sizes(worker.run).await.unwrap().calls);
}

async fn what_an_attempt_left_behind_counts_until_it_has_ended(world: &World) {
    let worker = world.worker().await;
    for id in ["a", "b"] {
        let claim = Claim { arguments: Some(text(LARGE)), ..worker.claim(id, Policy::Probe) };
        assert!(matches!(world.claim(&claim).await.unwrap(), Claimed::Go(_)));
    }
    world.turn(&worker, 1).await;
    let worker = world.next(&worker).await;
    let large = Claim { arguments: Some(text(3 << 20)), ..worker.claim("c", Policy::Probe) };
    assert!(matches!(world.claim(&large).await.unwrap(), Claimed::TooLarge), "in whichever turn");
    for id in ["a", "b"] {
        let settle = Settle { result: Some(text(LARGE)), ..worker.settle(id) };
        let settled = world.settle(&settle).await.unwrap();
        assert!(
            matches!(settled, Completed::Ok),
            "a call of an earlier turn takes its place along: {settled:?}"
        );
    }
    assert_eq!(world.sizes(worker.run).await.unwrap().calls, 0);
    assert!(matches!(world.claim(&large).await.unwrap(), Claimed::Go(_)));
}

async fn the_count_is_what_the_open_calls_are_whatever_happens(world: &World) {
    let mut worker = world.worker().await;
    let run = worker.run;
    let check = async || {
        is_counted(told(world, run).await, world.sizes(run).await.unwrap().calls);
    };
    for turn in 1..=4 {
        let name = |name: &str| format!("{name}{turn}");
        let first = world.start_call(&worker, &name("first"), Policy::RetrySameKey).await;
        check().await;
        let bare = PlannedCall { arguments: None, ..planned(&name("bare"), Policy::Probe) };
        let calls = vec![planned(&name("first"), Policy::Probe), planned(&name("kept"), Policy::Probe), bare];
        ok(world.commit(&Commit { calls, ..worker.plan(turn) }).await.unwrap());
        check().await;
        let refused = world.start_call(&worker, &name("bare"), Policy::Probe).await;
        check().await;
        let result = Some(text(5_000));
        let outcome = CompleteOutcome::KeyRefused;
        world.complete(&Complete { outcome, result, ..worker.complete(&refused) }).await.unwrap();
        check().await;
        worker = world.next(&worker).await;
        let again = Claim { capability: worker.capability, ..first };
        assert!(matches!(world.claim(&again).await.unwrap(), Claimed::Go(_)));
        check().await;
        assert!(matches!(complete(world, &worker, &again, 3_000).await, Completed::Ok));
        check().await;
        let settle = Settle { outcome: CallOutcome::Failed, ..person_settles(run, &name("bare")) };
        assert!(matches!(world.settle(&settle).await.unwrap(), Completed::Ok));
        check().await;
        world.start_call(&worker, &name("left"), Policy::ReadOnly).await;
        world.turn(&worker, turn).await;
        check().await;
    }
    // One that was passed over is claimed late, and a turn is worked on that was worked on before.
    world.start_call(&worker, "kept2", Policy::Probe).await;
    check().await;
    let record = world.of(&worker).await;
    let boundary = world.boundaries(run, 1, 1).await.unwrap().pop().unwrap();
    let to = Place { turn: 1, boundary: Boundary::Result, epoch: boundary.epoch };
    let rewind = Rewind { epoch: record.epoch, to, reason: "a test".into(), actor: "ada".into() };
    let record = done(world.rewind(run, &rewind).await.unwrap());
    check().await;
    let worker = world.work_on(&record).await;
    let counted = world.sizes(run).await.unwrap().calls;
    for call in world.calls(run, CallFilter::Unsettled).await.unwrap() {
        let settled = world.settle(&person_settles(run, &call.id)).await.unwrap();
        assert!(matches!(settled, Completed::Ok), "{settled:?}");
        check().await;
    }
    assert!(world.sizes(run).await.unwrap().calls < counted);
    world.turn(&worker, 2).await;
    check().await;
    assert!(world.sizes(run).await.unwrap().calls > 0, "calls of turn 3 have ended already");
    let calls = vec![planned("kept3", Policy::Probe), planned("kept4", Policy::Probe)];
    ok(world.commit(&Commit { calls, ..worker.plan(3) }).await.unwrap());
    check().await;
}

async fn a_call_that_was_passed_over_is_open_again_once_it_is_planned_anew(world: &World) {
    let worker = world.worker().await;
    let plan = |turn| Commit { calls: vec![planned("pay", Policy::Probe)], ..worker.plan(turn) };
    ok(world.commit(&plan(1)).await.unwrap());
    assert_eq!(world.call_ids(worker.run, CallFilter::Pending).await, ["pay"]);
    world.turn(&worker, 1).await;
    assert!(world.call_ids(worker.run, CallFilter::Pending).await.is_empty());
    ok(world.commit(&plan(2)).await.unwrap());
    assert_eq!(world.call_ids(worker.run, CallFilter::Pending).await, ["pay"]);
}
