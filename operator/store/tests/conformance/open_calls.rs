//! The limit on a run's open calls, so that an attach can always return all of them.

use dalsegno_model::{
    BoundaryId, CallFilter, Claim, Claimed, Commit, Committed, Complete, Completed, RunId, Settle,
};
use dalsegno_protocol::{
    Boundary, Call, CallOutcome, CallState, CompleteOutcome, Limits, PlannedCall, Policy, RawValue,
};

use crate::context::*;
use crate::engines::on_every_engine;
use crate::rewinds::done;

on_every_engine! {
    a_turn_with_too_large_calls_accepts_small_results_and_the_next_turn_starts_at_zero,
    a_plan_with_too_large_calls_is_refused_as_a_whole,
    calls_of_an_earlier_attempt_count_until_they_are_settled,
    the_count_matches_the_open_calls_after_every_change,
    a_skipped_call_is_open_again_when_it_is_planned_again,
}

/// A JSON text of this number of bytes.
fn text(bytes: usize) -> Box<RawValue> {
    json(&format!("{:?}", "x".repeat(bytes - 2)))
}

/// Two results of this size fit, and little more.
const LARGE: usize = 31 << 20;

async fn complete(cx: &TestContext, worker: &Worker, claim: &Claim, bytes: usize) -> Completed {
    let complete = Complete { result: Some(text(bytes)), ..worker.complete(claim) };
    cx.complete(&complete).await.unwrap()
}

/// Bytes of a call's key as it is stored: a sealed one has a mark of two bytes, and the base64 of nonce, text and tag.
fn stored_length(cx: &TestContext, key: &str) -> usize {
    if cx.sealed { 2 + (12 + key.len() + 16).div_ceil(3) * 4 } else { key.len() }
}

/// The expected count, computed from the listed calls. Ended calls of the open turn's number count, those that a rewind has
/// undone too.
async fn expected_bytes(cx: &TestContext, run: RunId) -> i64 {
    let mut calls = cx.calls(run, CallFilter::Pending).await.unwrap();
    let head = cx.boundaries(run, 1, 99).await.unwrap().pop();
    let open = head.map_or(1, |head| head.turn + i32::from(head.boundary == Boundary::Result));
    let ended =
        |call: &Call| call.turn == open && matches!(call.state, CallState::Completed | CallState::Failed);
    calls.extend(cx.calls(run, CallFilter::All).await.unwrap().into_iter().filter(ended));
    let length = |json: &Option<Box<RawValue>>| json.as_ref().map_or(0, |json| json.get().len());
    let of = |call: &Call| {
        let result = length(&call.result).max(Limits::SMALL_RESULT_BYTES);
        call.id.len() + stored_length(cx, &call.key) + length(&call.arguments) + result
    };
    calls.iter().map(of).sum::<usize>() as i64
}

#[track_caller]
fn is_counted(expected: i64, counted: i64) {
    assert_eq!(expected, counted, "the listed calls, and the counted bytes");
    assert!(counted <= Limits::OPEN_CALLS_BYTES as i64, "{counted}");
}

async fn a_turn_with_too_large_calls_accepts_small_results_and_the_next_turn_starts_at_zero(
    cx: &TestContext,
) {
    let worker = cx.worker().await;
    for id in ["a", "b"] {
        let claim = cx.start_call(&worker, id, Policy::Probe).await;
        assert!(matches!(complete(cx, &worker, &claim, LARGE).await, Completed::Ok));
        assert!(matches!(complete(cx, &worker, &claim, LARGE).await, Completed::Duplicate));
    }
    let claim = cx.start_call(&worker, "c", Policy::Probe).await;
    for _ in 0..2 {
        let answer = complete(cx, &worker, &claim, LARGE).await;
        assert!(matches!(answer, Completed::TooLarge), "however often it comes: {answer:?}");
    }
    let large = Claim { arguments: Some(text(2 << 20)), ..worker.claim("d", Policy::Probe) };
    let answer = cx.claim(&large).await.unwrap();
    assert!(matches!(answer, Claimed::TooLarge), "{answer:?}");
    assert!(matches!(cx.claim(&claim).await.unwrap(), Claimed::Go(_)), "a stored call adds nothing");
    let small = complete(cx, &worker, &claim, Limits::SMALL_RESULT_BYTES).await;
    assert!(matches!(small, Completed::Ok), "{small:?}");
    assert_eq!(cx.call_ids(worker.run, CallFilter::OpenTurn).await, ["a", "b", "c"]);
    is_counted(expected_bytes(cx, worker.run).await, cx.sizes(worker.run).await.unwrap().calls);

    cx.commit_turn(&worker, 1).await;
    assert_eq!(cx.sizes(worker.run).await.unwrap().calls, 0);
    assert!(matches!(cx.claim(&large).await.unwrap(), Claimed::Go(_)));
    assert!(matches!(complete(cx, &worker, &large, LARGE).await, Completed::Ok));
}

async fn a_plan_with_too_large_calls_is_refused_as_a_whole(cx: &TestContext) {
    let worker = cx.worker().await;
    for id in ["a", "b"] {
        let claim = cx.start_call(&worker, id, Policy::Probe).await;
        assert!(matches!(complete(cx, &worker, &claim, LARGE).await, Completed::Ok));
    }
    let with = |ids: &[&str]| {
        let call = |id: &&str| PlannedCall { arguments: Some(text(1 << 20)), ..planned(id, Policy::Probe) };
        Commit { calls: ids.iter().map(call).collect(), ..worker.plan(1) }
    };
    assert_eq!(cx.commit(&with(&["c", "d"])).await.unwrap(), Committed::CallsTooLarge);
    assert_eq!(cx.call_ids(worker.run, CallFilter::All).await, ["a", "b"]);
    assert!(cx.run_of(&worker).await.head.is_none());
    ok(cx.commit(&with(&["a", "b", "c"])).await.unwrap());
    is_counted(expected_bytes(cx, worker.run).await, cx.sizes(worker.run).await.unwrap().calls);
}

async fn calls_of_an_earlier_attempt_count_until_they_are_settled(cx: &TestContext) {
    let worker = cx.worker().await;
    for id in ["a", "b"] {
        let claim = Claim { arguments: Some(text(LARGE)), ..worker.claim(id, Policy::Probe) };
        assert!(matches!(cx.claim(&claim).await.unwrap(), Claimed::Go(_)));
    }
    let commit = Commit { open_calls: vec!["a".into(), "b".into()], ..worker.result(1) };
    ok(cx.commit(&commit).await.unwrap());
    let worker = cx.next_worker(&worker).await;
    let large = Claim { arguments: Some(text(3 << 20)), ..worker.claim("c", Policy::Probe) };
    assert!(matches!(cx.claim(&large).await.unwrap(), Claimed::TooLarge), "in any turn");
    for id in ["a", "b"] {
        let settle = Settle { result: Some(text(LARGE)), ..worker.settle(id) };
        let settled = cx.settle(&settle).await.unwrap();
        assert!(
            matches!(settled, Completed::Ok),
            "a settled call of an earlier turn no longer counts: {settled:?}"
        );
    }
    assert_eq!(cx.sizes(worker.run).await.unwrap().calls, 0);
    assert!(matches!(cx.claim(&large).await.unwrap(), Claimed::Go(_)));
}

async fn the_count_matches_the_open_calls_after_every_change(cx: &TestContext) {
    let mut worker = cx.worker().await;
    let run = worker.run;
    let check = async || {
        is_counted(expected_bytes(cx, run).await, cx.sizes(run).await.unwrap().calls);
    };
    for turn in 1..=4 {
        let name = |name: &str| format!("{name}{turn}");
        let first = cx.start_call(&worker, &name("first"), Policy::RetrySameKey).await;
        check().await;
        let bare = PlannedCall { arguments: None, ..planned(&name("bare"), Policy::Probe) };
        let calls = vec![planned(&name("first"), Policy::Probe), planned(&name("kept"), Policy::Probe), bare];
        ok(cx.commit(&Commit { calls, ..worker.plan(turn) }).await.unwrap());
        check().await;
        let refused = cx.start_call(&worker, &name("bare"), Policy::Probe).await;
        check().await;
        let result = Some(text(5_000));
        let outcome = CompleteOutcome::KeyRefused;
        cx.complete(&Complete { outcome, result, ..worker.complete(&refused) }).await.unwrap();
        check().await;
        worker = cx.next_worker(&worker).await;
        let again = Claim { capability: worker.capability, ..first };
        assert!(matches!(cx.claim(&again).await.unwrap(), Claimed::Go(_)));
        check().await;
        assert!(matches!(complete(cx, &worker, &again, 3_000).await, Completed::Ok));
        check().await;
        let settle = Settle { outcome: CallOutcome::Failed, ..person_settles(run, &name("bare")) };
        assert!(matches!(cx.settle(&settle).await.unwrap(), Completed::Ok));
        check().await;
        cx.start_call(&worker, &name("left"), Policy::ReadOnly).await;
        cx.commit_turn(&worker, turn).await;
        check().await;
    }
    // Claim a call of an earlier turn late, and repeat a turn after a rewind.
    cx.start_call(&worker, "kept2", Policy::Probe).await;
    check().await;
    let record = cx.run_of(&worker).await;
    let boundary = cx.boundaries(run, 1, 1).await.unwrap().pop().unwrap();
    let to = BoundaryId { turn: 1, boundary: Boundary::Result, epoch: boundary.epoch };
    let rewind = rewind_to(record.epoch, to);
    let record = done(cx.rewind(run, &rewind).await.unwrap());
    check().await;
    let worker = cx.start_worker(&record).await;
    let counted = cx.sizes(run).await.unwrap().calls;
    for call in cx.calls(run, CallFilter::Unsettled).await.unwrap() {
        let settled = cx.settle(&person_settles(run, &call.id)).await.unwrap();
        assert!(matches!(settled, Completed::Ok), "{settled:?}");
        check().await;
    }
    assert!(cx.sizes(run).await.unwrap().calls < counted);
    cx.commit_turn(&worker, 2).await;
    check().await;
    assert!(cx.sizes(run).await.unwrap().calls > 0, "ended calls of turn 3 count");
    let calls = vec![planned("kept3", Policy::Probe), planned("kept4", Policy::Probe)];
    ok(cx.commit(&Commit { calls, ..worker.plan(3) }).await.unwrap());
    check().await;
}

async fn a_skipped_call_is_open_again_when_it_is_planned_again(cx: &TestContext) {
    let worker = cx.worker().await;
    let plan = |turn| Commit { calls: vec![planned("pay", Policy::Probe)], ..worker.plan(turn) };
    ok(cx.commit(&plan(1)).await.unwrap());
    assert_eq!(cx.call_ids(worker.run, CallFilter::Pending).await, ["pay"]);
    cx.commit_turn(&worker, 1).await;
    assert!(cx.call_ids(worker.run, CallFilter::Pending).await.is_empty());
    ok(cx.commit(&plan(2)).await.unwrap());
    assert_eq!(cx.call_ids(worker.run, CallFilter::Pending).await, ["pay"]);
}
