//! Refused keys: a tool refuses a call's key. The refusal is recorded, blocks every boundary, and a person settles it.

use dalsegno_model::{CallFilter, Claimed, Class, Committed, Complete, Completed, Written};
use dalsegno_protocol::{CallState, CompleteOutcome, Policy};

use crate::context::*;
use crate::engines::on_every_engine;

on_every_engine! {
    a_refused_key_is_recorded_in_the_call_and_in_the_audit,
    nothing_is_committed_until_a_person_settles_the_call,
    a_refused_key_stays_after_its_attempt,
    only_a_person_settles_a_call_with_a_refused_key,
}

/// Starts a call. Returns the completion that reports a refused key.
async fn refused(cx: &TestContext, worker: &Worker, policy: Policy) -> Complete {
    let claim = cx.start_call(worker, "pay", policy).await;
    let result = Some(json(r#"{"status":  422}"#));
    Complete { outcome: CompleteOutcome::KeyRefused, result, ..worker.complete(&claim) }
}

async fn keys_refused(cx: &TestContext, worker: &Worker) -> i64 {
    cx.run_of(worker).await.calls.keys_refused
}

async fn a_refused_key_is_recorded_in_the_call_and_in_the_audit(cx: &TestContext) {
    let worker = cx.worker().await;
    let refused = refused(cx, &worker, Policy::RetrySameKey).await;
    assert!(matches!(cx.complete(&refused).await.unwrap(), Completed::Ok));
    let call = cx.calls(worker.run, CallFilter::All).await.unwrap().remove(0);
    assert_eq!(call.state, CallState::KeyRefused);
    assert_eq!(call.result.unwrap().get(), r#"{"status":  422}"#);
    let run = cx.run_of(&worker).await;
    assert_eq!((run.calls.keys_refused, run.calls.completed), (1, 0));
    let rows = cx.audit(worker.run).await.unwrap();
    let last = rows.last().unwrap();
    assert_eq!((last.kind.as_str(), last.actor.as_str()), ("key-refused", "worker"));
    assert!(last.detail.contains("pay") && !last.detail.contains("key-of-pay"), "{}", last.detail);
    cx.assert_audit_is_valid(worker.run).await;
    assert!(matches!(cx.complete(&refused).await.unwrap(), Completed::Duplicate));
    assert_eq!(without_times(cx.run_of(&worker).await), without_times(run), "its retry changes nothing");
    assert!(matches!(
        cx.claim(&worker.claim("pay", Policy::RetrySameKey)).await.unwrap(),
        Claimed::Uncertain(_)
    ));
}

async fn nothing_is_committed_until_a_person_settles_the_call(cx: &TestContext) {
    for policy in [Policy::RetrySameKey, Policy::ReadOnly] {
        let worker = cx.worker().await;
        cx.complete(&refused(cx, &worker, policy).await).await.unwrap();
        assert_eq!(cx.commit(&worker.result(1)).await.unwrap(), Committed::UnsettledCalls);
        assert_eq!(cx.finish(&worker.finish()).await.unwrap(), Committed::UnsettledCalls);
        let batch = worker.record_batch(Vec::new());
        assert!(matches!(cx.write_records(&batch).await.unwrap(), Written::UnsettledCalls));
        assert!(matches!(cx.settle(&person_settles(worker.run, "pay")).await.unwrap(), Completed::Ok));
        assert_eq!(keys_refused(cx, &worker).await, 0);
        cx.commit_turn(&worker, 1).await;
    }
}

async fn a_refused_key_stays_after_its_attempt(cx: &TestContext) {
    let worker = cx.worker().await;
    cx.complete(&refused(cx, &worker, Policy::Probe).await).await.unwrap();
    let run = cx.end_and_reserve(&worker, Class::Neutral).await;
    assert_eq!((run.calls.keys_refused, run.calls.unsettled), (1, [(Policy::Probe, 1)].into()));
    assert!(matches!(cx.settle(&person_settles(worker.run, "pay")).await.unwrap(), Completed::Ok));
    let run = cx.run_of(&worker).await;
    assert_eq!((run.calls.keys_refused, run.calls.unsettled.len(), run.calls.completed), (0, 0, 1));
    let worker = cx.start_worker(&run).await;
    let Claimed::Done(call) = cx.claim(&worker.claim("pay", Policy::Probe)).await.unwrap() else { panic!() };
    assert_eq!((call.state, call.result.unwrap().get()), (CallState::Completed, r#"{"found":  1}"#));
}

async fn only_a_person_settles_a_call_with_a_refused_key(cx: &TestContext) {
    let worker = cx.worker().await;
    let refused = refused(cx, &worker, Policy::Probe).await;
    cx.complete(&refused).await.unwrap();
    let other = Complete { outcome: CompleteOutcome::Completed, ..refused };
    let Completed::Conflict(why) = cx.complete(&other).await.unwrap() else { panic!() };
    assert!(why.contains("only a person"), "{why}");
    let Completed::Conflict(why) = cx.settle(&worker.settle("pay")).await.unwrap() else { panic!() };
    assert!(why.contains("only a person"), "{why}");
    assert_eq!(keys_refused(cx, &worker).await, 1);
}
