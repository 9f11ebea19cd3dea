//! Settling calls whose outcome was unknown.

use dalsegno_model::{CallFilter, Class, Commit, Complete, Completed, NextStep, Settle, SettledBy};
use dalsegno_protocol::{CallOutcome, CallState, CompleteOutcome, Policy};
use uuid::Uuid;

use crate::context::*;
use crate::engines::on_every_engine;

on_every_engine! {
    a_worker_settles_calls_of_every_policy_but_ask,
    a_person_settles_calls_of_every_policy,
    settling_again_is_a_duplicate_or_a_conflict,
    a_held_run_is_settled_by_a_person,
    a_worker_settles_a_call_whose_claim_it_lost,
    a_person_cannot_settle_a_call_of_a_live_attempt,
    an_unclaimed_call_cannot_be_settled,
    a_call_of_a_closed_run_cannot_be_settled,
    an_unknown_call_cannot_be_settled,
    the_calls_that_hold_a_run_are_listed_until_a_person_settles_them,
}

const POLICIES: [Policy; 4] = [Policy::RetrySameKey, Policy::Probe, Policy::Ask, Policy::ReadOnly];

async fn a_worker_settles_calls_of_every_policy_but_ask(cx: &TestContext) {
    for policy in POLICIES {
        let worker = cx.worker().await;
        cx.start_call(&worker, "pay", policy).await;
        let worker = cx.next_worker(&worker).await;
        let answer = cx.settle(&worker.settle("pay")).await.unwrap();
        let run = cx.run_of(&worker).await;
        if policy == Policy::Ask {
            assert!(matches!(answer, Completed::Conflict(_)), "{answer:?}");
            assert_eq!(run.calls.unsettled, [(Policy::Ask, 1)].into());
        } else {
            assert!(matches!(answer, Completed::Ok), "{policy:?}: {answer:?}");
            assert!(run.calls.unsettled.is_empty());
            assert_eq!(run.calls.completed, 1);
        }
    }
}

async fn a_person_settles_calls_of_every_policy(cx: &TestContext) {
    for policy in POLICIES {
        let worker = cx.worker().await;
        cx.start_call(&worker, "pay", policy).await;
        let worker = cx.next_worker(&worker).await;
        let failed =
            Settle { outcome: CallOutcome::Failed, result: None, ..person_settles(worker.run, "pay") };
        assert!(matches!(cx.settle(&failed).await.unwrap(), Completed::Ok), "{policy:?}");
        let call = cx.calls(worker.run, CallFilter::All).await.unwrap().remove(0);
        assert_eq!((call.state, call.result.is_none()), (CallState::Failed, true));
        let last = cx.audit(worker.run).await.unwrap().pop().unwrap();
        assert_eq!((last.kind.as_str(), last.actor.as_str()), ("settled", "ada"));
        assert!(
            last.detail.contains("looked at the ledger") && last.detail.contains("pay"),
            "{}",
            last.detail
        );
    }
}

async fn settling_again_is_a_duplicate_or_a_conflict(cx: &TestContext) {
    let worker = cx.worker().await;
    cx.start_call(&worker, "pay", Policy::Probe).await;
    let worker = cx.next_worker(&worker).await;
    let settle = worker.settle("pay");
    assert!(matches!(cx.settle(&settle).await.unwrap(), Completed::Ok));
    let before = without_times(cx.run_of(&worker).await);
    assert!(matches!(cx.settle(&settle).await.unwrap(), Completed::Duplicate));
    assert!(matches!(cx.settle(&person_settles(worker.run, "pay")).await.unwrap(), Completed::Duplicate));
    for other in [
        Settle { outcome: CallOutcome::Failed, ..worker.settle("pay") },
        Settle { result: None, ..worker.settle("pay") },
        Settle { outcome: CallOutcome::Failed, ..person_settles(worker.run, "pay") },
    ] {
        let answer = cx.settle(&other).await.unwrap();
        assert!(matches!(answer, Completed::Conflict(_)), "{answer:?}");
    }
    assert_eq!(without_times(cx.run_of(&worker).await), before);
}

async fn a_held_run_is_settled_by_a_person(cx: &TestContext) {
    let worker = cx.worker().await;
    cx.start_call(&worker, "pay", Policy::Ask).await;
    cx.end_attempt(worker.run, &ending(1, Class::Crash), &NextStep::Nothing).await.unwrap();
    assert!(matches!(cx.settle(&person_settles(worker.run, "pay")).await.unwrap(), Completed::Ok));
    let run = cx.run_of(&worker).await;
    assert!(run.calls.unsettled.is_empty());
    assert_eq!(run.calls.completed, 1);
}

async fn a_worker_settles_a_call_whose_claim_it_lost(cx: &TestContext) {
    let worker = cx.worker().await;
    cx.start_call(&worker, "pay", Policy::Probe).await;
    assert!(matches!(cx.settle(&worker.settle("pay")).await.unwrap(), Completed::Ok));
    let run = cx.run_of(&worker).await;
    assert!(run.calls.unsettled.is_empty());
    assert_eq!(run.calls.completed, 1);
}

async fn a_person_cannot_settle_a_call_of_a_live_attempt(cx: &TestContext) {
    let worker = cx.worker().await;
    let claim = cx.start_call(&worker, "pay", Policy::Ask).await;
    let answer = cx.settle(&person_settles(worker.run, "pay")).await.unwrap();
    assert!(matches!(answer, Completed::Conflict(_)), "{answer:?}");
    assert!(matches!(cx.complete(&worker.complete(&claim)).await.unwrap(), Completed::Ok));
}

async fn an_unclaimed_call_cannot_be_settled(cx: &TestContext) {
    let worker = cx.worker().await;
    ok(cx.commit(&Commit { calls: vec![planned("pay", Policy::Probe)], ..worker.plan(1) }).await.unwrap());
    let worker = cx.next_worker(&worker).await;
    for settle in [worker.settle("pay"), person_settles(worker.run, "pay")] {
        let answer = cx.settle(&settle).await.unwrap();
        assert!(matches!(answer, Completed::Conflict(_)), "{answer:?}");
    }
}

async fn a_call_of_a_closed_run_cannot_be_settled(cx: &TestContext) {
    let worker = cx.worker().await;
    cx.start_call(&worker, "pay", Policy::ReadOnly).await;
    let worker = cx.next_worker(&worker).await;
    ok(cx.finish(&worker.finish()).await.unwrap());
    for settle in [worker.settle("pay"), person_settles(worker.run, "pay")] {
        let answer = cx.settle(&settle).await.unwrap();
        assert!(matches!(answer, Completed::Finished), "{answer:?}");
    }
    cx.mark_deleted(&worker.object_uid).await.unwrap();
    let answer = cx.settle(&person_settles(worker.run, "pay")).await.unwrap();
    assert!(matches!(answer, Completed::Finished), "{answer:?}");
}

async fn an_unknown_call_cannot_be_settled(cx: &TestContext) {
    let worker = cx.worker().await;
    for settle in [worker.settle("nothing"), person_settles(worker.run, "nothing")] {
        assert!(matches!(cx.settle(&settle).await.unwrap(), Completed::NoSuchCall));
    }
    let nowhere = person_settles(Uuid::now_v7(), "nothing");
    assert!(matches!(cx.settle(&nowhere).await.unwrap(), Completed::NotFound));
    let foreign = Settle { by: SettledBy::Worker(random_digest()), ..worker.settle("nothing") };
    assert!(matches!(cx.settle(&foreign).await.unwrap(), Completed::Fenced));
}

async fn the_calls_that_hold_a_run_are_listed_until_a_person_settles_them(cx: &TestContext) {
    let worker = cx.worker().await;
    for (id, policy) in
        [("a", Policy::Ask), ("b", Policy::Probe), ("c", Policy::Ask), ("d", Policy::RetrySameKey)]
    {
        cx.start_call(&worker, id, policy).await;
    }
    let refused = cx.start_call(&worker, "e", Policy::RetrySameKey).await;
    let listed = async |limit| cx.calls_to_settle(worker.run, limit).await.unwrap();
    assert_eq!(listed(10).await, [""; 0], "the attempt may still complete its calls");
    let refused = Complete { outcome: CompleteOutcome::KeyRefused, ..worker.complete(&refused) };
    assert!(matches!(cx.complete(&refused).await.unwrap(), Completed::Ok));
    cx.end_and_reserve(&worker, Class::Crash).await;
    assert_eq!(listed(10).await, ["a", "c", "e"]);
    assert_eq!(listed(2).await, ["a", "c"]);
    cx.settle(&person_settles(worker.run, "a")).await.unwrap();
    cx.settle(&person_settles(worker.run, "e")).await.unwrap();
    assert_eq!(listed(10).await, ["c"]);
}
