//! The current attempt's own calls: a commit does not pass one whose outcome nobody could find out after a crash.

use dalsegno_model::{Commit, Committed, Complete, Completed, Settle, SettledBy};
use dalsegno_protocol::{CallOutcome, CompleteOutcome, Policy};

use crate::context::*;
use crate::engines::on_every_engine;

on_every_engine! {
    a_commit_waits_for_the_outcome_of_the_attempts_own_call,
    a_boundary_that_names_its_open_calls_is_accepted,
    a_finish_never_passes_an_own_open_call,
    a_planned_call_counts_once_it_is_claimed,
    an_own_call_that_is_settled_is_no_longer_open,
    the_next_attempt_counts_its_own_calls_only,
    other_boundaries_of_a_batch_are_committed,
}

async fn a_commit_waits_for_the_outcome_of_the_attempts_own_call(cx: &TestContext) {
    for policy in [Policy::Probe, Policy::Ask] {
        for outcome in [CompleteOutcome::Completed, CompleteOutcome::Failed] {
            let worker = cx.worker().await;
            let claim = cx.start_call(&worker, "pay", policy).await;
            let (plan, result) = (worker.plan(1), worker.result(1));
            assert_eq!(cx.commit(&plan).await.unwrap(), Committed::OpenCalls);
            assert_eq!(cx.commit(&result).await.unwrap(), Committed::OpenCalls);
            let ends = Complete { outcome, ..worker.complete(&claim) };
            assert!(matches!(cx.complete(&ends).await.unwrap(), Completed::Ok));
            ok(cx.commit(&result).await.unwrap());
        }
    }
    for policy in [Policy::RetrySameKey, Policy::ReadOnly] {
        let worker = cx.worker().await;
        cx.start_call(&worker, "read", policy).await;
        cx.commit_turn(&worker, 1).await;
    }
}

async fn a_boundary_that_names_its_open_calls_is_accepted(cx: &TestContext) {
    let worker = cx.worker().await;
    cx.start_call(&worker, "pay", Policy::Probe).await;
    let ship = cx.start_call(&worker, "ship", Policy::Ask).await;
    let naming = |ids: &[&str]| Commit {
        open_calls: ids.iter().map(|it| (*it).to_owned()).collect(),
        ..worker.result(1)
    };
    for ids in [&["pay"][..], &["ship", "other"]] {
        assert_eq!(cx.commit(&naming(ids)).await.unwrap(), Committed::OpenCalls, "{ids:?}");
    }
    let commit = naming(&["pay", "ship", "other"]);
    ok(cx.commit(&commit).await.unwrap());
    assert!(matches!(cx.commit(&commit).await.unwrap(), Committed::Duplicate(_)));
    assert_eq!(cx.commit(&worker.result(2)).await.unwrap(), Committed::OpenCalls, "each boundary names them");
    assert!(matches!(cx.complete(&worker.complete(&ship)).await.unwrap(), Completed::Ok));
    let next = Commit { open_calls: vec!["pay".into()], ..worker.result(2) };
    ok(cx.commit(&next).await.unwrap());
}

async fn a_finish_never_passes_an_own_open_call(cx: &TestContext) {
    let worker = cx.worker().await;
    let claim = cx.start_call(&worker, "pay", Policy::Ask).await;
    assert_eq!(cx.finish(&worker.finish()).await.unwrap(), Committed::OpenCalls);
    let last = Commit { open_calls: vec!["pay".into()], finish: Some(succeeded()), ..worker.result(1) };
    assert_eq!(cx.commit(&last).await.unwrap(), Committed::OpenCalls);
    assert!(matches!(cx.complete(&worker.complete(&claim)).await.unwrap(), Completed::Ok));
    ok(cx.commit(&last).await.unwrap());
}

async fn a_planned_call_counts_once_it_is_claimed(cx: &TestContext) {
    let worker = cx.worker().await;
    let plan = Commit { calls: vec![planned("pay", Policy::Probe)], ..worker.plan(1) };
    ok(cx.commit(&plan).await.unwrap());
    let claim = cx.start_call(&worker, "pay", Policy::Probe).await;
    cx.claim(&claim).await.unwrap();
    assert_eq!(cx.commit(&worker.result(1)).await.unwrap(), Committed::OpenCalls);
    for _ in 0..2 {
        cx.complete(&worker.complete(&claim)).await.unwrap();
    }
    ok(cx.commit(&worker.result(1)).await.unwrap());
}

async fn an_own_call_that_is_settled_is_no_longer_open(cx: &TestContext) {
    let worker = cx.worker().await;
    cx.start_call(&worker, "pay", Policy::Probe).await;
    let settle = Settle {
        run: worker.run,
        by: SettledBy::Worker(worker.capability),
        id: "pay".into(),
        outcome: CallOutcome::Completed,
        result: None,
        reason: "the ledger has it".into(),
        audit_id: None,
    };
    assert!(matches!(cx.settle(&settle).await.unwrap(), Completed::Ok));
    cx.commit_turn(&worker, 1).await;
}

async fn the_next_attempt_counts_its_own_calls_only(cx: &TestContext) {
    let worker = cx.worker().await;
    cx.start_call(&worker, "pay", Policy::Probe).await;
    let worker = cx.next_worker(&worker).await;
    assert_eq!(cx.commit(&worker.result(1)).await.unwrap(), Committed::UnsettledCalls);
    let settle = Settle {
        run: worker.run,
        by: SettledBy::Worker(worker.capability),
        id: "pay".into(),
        outcome: CallOutcome::Failed,
        result: None,
        reason: "the ledger does not have it".into(),
        audit_id: None,
    };
    assert!(matches!(cx.settle(&settle).await.unwrap(), Completed::Ok));
    cx.commit_turn(&worker, 1).await;
    cx.start_call(&worker, "ship", Policy::Ask).await;
    assert_eq!(cx.commit(&worker.result(2)).await.unwrap(), Committed::OpenCalls);
}

async fn other_boundaries_of_a_batch_are_committed(cx: &TestContext) {
    let (open, free) = (cx.worker().await, cx.worker().await);
    cx.start_call(&open, "pay", Policy::Ask).await;
    let (refused, accepted) = (open.result(1), free.result(1));
    let (refused, accepted) = tokio::join!(cx.commit(&refused), cx.commit(&accepted));
    assert_eq!(refused.unwrap(), Committed::OpenCalls);
    ok(accepted.unwrap());
}
