//! Tool calls after their effect: known results, and calls without one.

use dalsegno_model::{CallFilter, Claimed, Class, Commit, Committed, Complete, Completed, NextStep};
use dalsegno_protocol::{CompleteOutcome, Policy};
use uuid::Uuid;

use crate::context::*;
use crate::engines::on_every_engine;

on_every_engine! {
    a_call_completes_once,
    a_call_completes_only_under_its_claim,
    completed_calls_of_the_open_turn_are_listed,
    calls_are_unsettled_from_the_end_of_their_attempt,
    unsettled_calls_block_commits_unless_they_are_read_only,
    claiming_an_unsettled_call_unblocks_commits,
}

const POLICIES: [Policy; 4] = [Policy::RetrySameKey, Policy::Probe, Policy::Ask, Policy::ReadOnly];

async fn a_call_completes_once(cx: &TestContext) {
    let worker = cx.worker().await;
    let claim = cx.start_call(&worker, "pay", Policy::Probe).await;
    let complete = worker.complete(&claim);
    assert!(matches!(cx.complete(&complete).await.unwrap(), Completed::Ok));
    assert!(matches!(cx.complete(&complete).await.unwrap(), Completed::Duplicate));
    for other in [
        Complete { outcome: CompleteOutcome::Failed, ..worker.complete(&claim) },
        Complete { result: Some(json("2")), ..worker.complete(&claim) },
        Complete { result: None, ..worker.complete(&claim) },
    ] {
        let answer = cx.complete(&other).await.unwrap();
        assert!(matches!(answer, Completed::Conflict(_)), "{answer:?}");
    }
    assert_eq!(cx.run_of(&worker).await.calls.completed, 1);
    let failed = cx.start_call(&worker, "ship", Policy::Probe).await;
    let failing = Complete { outcome: CompleteOutcome::Failed, result: None, ..worker.complete(&failed) };
    assert!(matches!(cx.complete(&failing).await.unwrap(), Completed::Ok));
    assert!(matches!(cx.complete(&failing).await.unwrap(), Completed::Duplicate));
    assert_eq!(cx.run_of(&worker).await.calls.completed, 2, "a failed call has a known outcome");
    ok(cx.finish(&worker.finish()).await.unwrap());
    assert!(matches!(cx.complete(&complete).await.unwrap(), Completed::Duplicate), "also after the end");
}

async fn a_call_completes_only_under_its_claim(cx: &TestContext) {
    let worker = cx.worker().await;
    ok(cx
        .commit(&Commit { calls: vec![planned("planned", Policy::Probe)], ..worker.plan(1) })
        .await
        .unwrap());
    let claim = cx.start_call(&worker, "pay", Policy::Probe).await;
    let other_claim = Complete { claim_id: Uuid::new_v4(), ..worker.complete(&claim) };
    let answer = cx.complete(&other_claim).await.unwrap();
    assert!(matches!(answer, Completed::Conflict(_)), "{answer:?}");
    let never_claimed = Complete { id: "planned".into(), ..worker.complete(&claim) };
    let answer = cx.complete(&never_claimed).await.unwrap();
    assert!(matches!(answer, Completed::Conflict(_)), "{answer:?}");
    let unknown = Complete { id: "nothing".into(), ..worker.complete(&claim) };
    let answer = cx.complete(&unknown).await.unwrap();
    assert!(matches!(answer, Completed::NoSuchCall), "{answer:?}");
    let nowhere = Complete { run: Uuid::now_v7(), ..worker.complete(&claim) };
    let answer = cx.complete(&nowhere).await.unwrap();
    assert!(matches!(answer, Completed::NotFound), "{answer:?}");
    let foreign = Complete { capability: random_digest(), ..worker.complete(&claim) };
    let answer = cx.complete(&foreign).await.unwrap();
    assert!(matches!(answer, Completed::Fenced), "{answer:?}");
    let later = cx.next_worker(&worker).await;
    let answer = cx.complete(&later.complete(&claim)).await.unwrap();
    assert!(matches!(answer, Completed::Conflict(_)), "a claim of an ended attempt: {answer:?}");
    assert_eq!(cx.run_of(&worker).await.calls.completed, 0);
}

async fn completed_calls_of_the_open_turn_are_listed(cx: &TestContext) {
    let worker = cx.worker().await;
    let old = cx.start_call(&worker, "old", Policy::Probe).await;
    cx.complete(&worker.complete(&old)).await.unwrap();
    assert_eq!(cx.call_ids(worker.run, CallFilter::OpenTurn).await, ["old"]);
    cx.commit_turn(&worker, 1).await;
    assert!(cx.call_ids(worker.run, CallFilter::OpenTurn).await.is_empty());
    ok(cx
        .commit(&Commit { calls: vec![planned("planned", Policy::Probe)], ..worker.plan(2) })
        .await
        .unwrap());
    let done = cx.start_call(&worker, "done", Policy::Probe).await;
    cx.complete(&worker.complete(&done)).await.unwrap();
    let failed = cx.start_call(&worker, "failed", Policy::Probe).await;
    cx.complete(&Complete { outcome: CompleteOutcome::Failed, ..worker.complete(&failed) }).await.unwrap();
    cx.start_call(&worker, "started", Policy::Probe).await;
    assert_eq!(cx.call_ids(worker.run, CallFilter::OpenTurn).await, ["done", "failed"]);
    cx.next_worker(&worker).await;
    assert_eq!(
        cx.call_ids(worker.run, CallFilter::OpenTurn).await,
        ["done", "failed"],
        "for the next attempt"
    );
}

async fn calls_are_unsettled_from_the_end_of_their_attempt(cx: &TestContext) {
    let worker = cx.worker().await;
    for (id, policy) in
        [("a", Policy::Ask), ("b", Policy::Probe), ("c", Policy::Ask), ("d", Policy::ReadOnly)]
    {
        cx.start_call(&worker, id, policy).await;
    }
    let done = cx.start_call(&worker, "e", Policy::RetrySameKey).await;
    cx.complete(&worker.complete(&done)).await.unwrap();
    assert!(cx.run_of(&worker).await.calls.unsettled.is_empty(), "they belong to the current attempt");
    assert!(cx.call_ids(worker.run, CallFilter::Unsettled).await.is_empty());
    let held = cx.end_attempt(worker.run, &ending(1, Class::Crash), &NextStep::Nothing).await.unwrap();
    let expected = [(Policy::Probe, 1), (Policy::Ask, 2), (Policy::ReadOnly, 1)].into();
    assert_eq!(held.calls.unsettled, expected);
    assert_eq!(cx.call_ids(worker.run, CallFilter::Unsettled).await, ["a", "b", "c", "d"]);
    let run = cx.end_attempt(worker.run, &ending(1, Class::Crash), &NextStep::Reserve).await.unwrap();
    assert_eq!(run.calls.unsettled, expected);
    assert_eq!(cx.call_ids(worker.run, CallFilter::Unsettled).await, ["a", "b", "c", "d"]);
}

async fn unsettled_calls_block_commits_unless_they_are_read_only(cx: &TestContext) {
    for policy in POLICIES {
        let worker = cx.worker().await;
        cx.start_call(&worker, "pay", policy).await;
        let plan = Commit { open_calls: vec!["pay".into()], ..worker.plan(1) };
        ok(cx.commit(&plan).await.unwrap());
        let worker = cx.next_worker(&worker).await;
        let answer = cx.commit(&worker.result(1)).await.unwrap();
        match policy {
            Policy::ReadOnly => assert!(matches!(answer, Committed::Ok(_)), "{answer:?}"),
            _ => {
                assert_eq!(answer, Committed::UnsettledCalls, "{policy:?}");
                cx.settle(&person_settles(worker.run, "pay")).await.unwrap();
                cx.commit_turn(&worker, 1).await;
            }
        }
    }
}

async fn claiming_an_unsettled_call_unblocks_commits(cx: &TestContext) {
    let worker = cx.worker().await;
    cx.start_call(&worker, "pay", Policy::RetrySameKey).await;
    let worker = cx.next_worker(&worker).await;
    let claim = worker.claim("pay", Policy::RetrySameKey);
    for _ in 0..2 {
        assert!(matches!(cx.claim(&claim).await.unwrap(), Claimed::Go(_)));
        assert!(cx.run_of(&worker).await.calls.unsettled.is_empty(), "counted down once");
    }
    cx.commit_turn(&worker, 1).await;
    let run = cx.end_and_reserve(&worker, Class::Crash).await;
    assert_eq!(
        run.calls.unsettled,
        [(Policy::RetrySameKey, 1)].into(),
        "it is unsettled again after its attempt's end"
    );
}
