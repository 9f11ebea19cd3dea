//! Cancel: the request, its delivery to the worker, and the acknowledgement.

use dalsegno_model::{
    Acknowledged, AttemptState, Class, Committed, HeartbeatAnswer, Lifecycle, NextStep, RunOutcome,
    WorkerSignals,
};
use uuid::Uuid;

use crate::context::*;
use crate::engines::on_every_engine;

on_every_engine! {
    only_the_first_request_counts,
    a_commit_reports_the_cancel_and_is_still_accepted,
    a_duplicate_reports_the_cancel,
    a_heartbeat_reports_the_cancel,
    an_attach_reports_the_cancel,
    the_first_report_of_a_cancel_is_recorded_once,
    an_acknowledged_cancel_ends_the_run,
    the_acknowledgement_may_be_sent_again,
    a_cancel_that_was_not_requested_cannot_be_acknowledged,
    a_finish_before_the_acknowledgement_wins,
    only_the_current_worker_acknowledges,
    the_operator_ends_a_run_that_does_not_acknowledge,
}

async fn only_the_first_request_counts(cx: &TestContext) {
    let worker = cx.worker().await;
    let first = cx.request_cancel(worker.run).await.unwrap();
    let cancel = first.cancel.clone().unwrap();
    assert!(cancel.requested_at >= first.created_at);
    assert_eq!(cancel.told_at, None);
    assert_eq!((first.lifecycle, first.epoch), (Lifecycle::Live, 1), "a request ends nothing");
    sleep_ms(5).await;
    assert_eq!(without_times(cx.request_cancel(worker.run).await.unwrap()), without_times(first));
}

async fn a_commit_reports_the_cancel_and_is_still_accepted(cx: &TestContext) {
    let worker = cx.worker().await;
    assert!(!cx.commit_turn(&worker, 1).await.signals.cancel);
    cx.request_cancel(worker.run).await.unwrap();
    assert!(cx.commit_turn(&worker, 2).await.signals.cancel);
    assert!(cx.run_of(&worker).await.cancel.unwrap().told_at.is_some());
    assert!(cx.commit_turn(&worker, 3).await.signals.cancel, "until the acknowledgement");
}

async fn a_duplicate_reports_the_cancel(cx: &TestContext) {
    let worker = cx.worker().await;
    let commit = worker.result(1);
    ok(cx.commit(&commit).await.unwrap());
    cx.request_cancel(worker.run).await.unwrap();
    match cx.commit(&commit).await.unwrap() {
        Committed::Duplicate(receipt) => assert!(receipt.signals.cancel),
        other => panic!("{other:?}"),
    }
    assert!(cx.run_of(&worker).await.cancel.unwrap().told_at.is_some());
}

async fn a_heartbeat_reports_the_cancel(cx: &TestContext) {
    let worker = cx.worker().await;
    let beat = || async { cx.heartbeats(&[(worker.run, worker.capability)]).await.unwrap() };
    let calm = WorkerSignals {
        suspend: false,
        cancel: false,
        limit: false,
        inbox: 0,
        lease_ms: LONG_DEADLINES.heartbeat_ms,
    };
    assert_eq!(beat().await, [HeartbeatAnswer::Ok(calm)]);
    cx.request_cancel(worker.run).await.unwrap();
    assert_eq!(beat().await, [HeartbeatAnswer::Ok(WorkerSignals { cancel: true, ..calm })]);
    assert!(cx.run_of(&worker).await.cancel.unwrap().told_at.is_some());
}

async fn an_attach_reports_the_cancel(cx: &TestContext) {
    let run = cx.run().await;
    cx.request_cancel(run.id).await.unwrap();
    let worker = cx.start_worker(&run).await;
    assert!(cx.run_of(&worker).await.cancel.unwrap().told_at.is_some());
}

async fn the_first_report_of_a_cancel_is_recorded_once(cx: &TestContext) {
    let worker = cx.worker().await;
    cx.request_cancel(worker.run).await.unwrap();
    cx.commit_turn(&worker, 1).await;
    let reported_at = cx.run_of(&worker).await.cancel.unwrap().told_at;
    sleep_ms(10).await;
    cx.commit_turn(&worker, 2).await;
    cx.heartbeats(&[(worker.run, worker.capability)]).await.unwrap();
    attached(cx.attach(worker.run, &worker.pod_uid, &worker.capability).await.unwrap());
    assert_eq!(cx.run_of(&worker).await.cancel.unwrap().told_at, reported_at);
}

async fn an_acknowledged_cancel_ends_the_run(cx: &TestContext) {
    let worker = cx.worker().await;
    cx.commit_turn(&worker, 1).await;
    cx.request_cancel(worker.run).await.unwrap();
    let answer = cx.acknowledge_cancel(worker.run, &worker.capability).await.unwrap();
    assert_eq!(answer, Acknowledged::Cancelled);
    let run = cx.run_of(&worker).await;
    assert_eq!((run.lifecycle, run.epoch, run.attempt.state), (Lifecycle::Finished, 2, AttemptState::Ended));
    let end = run.attempt.end.unwrap();
    assert_eq!((end.cause.as_str(), end.class, end.charged), ("Cancelled", Class::Neutral, false));
    let finish = run.finish.unwrap();
    // The empty message tells the operator that the worker knows of the cancel and may exit by itself.
    let finish_fields =
        (finish.outcome, finish.reason.as_str(), finish.message.as_str(), finish.output.as_deref());
    assert_eq!(finish_fields, (RunOutcome::Cancelled, "Cancelled", "", None));
    assert_eq!(Some(finish.at), run.attempt.ended_at);
}

async fn the_acknowledgement_may_be_sent_again(cx: &TestContext) {
    let worker = cx.worker().await;
    cx.request_cancel(worker.run).await.unwrap();
    cx.acknowledge_cancel(worker.run, &worker.capability).await.unwrap();
    let before = without_times(cx.run_of(&worker).await);
    for _ in 0..2 {
        let answer = cx.acknowledge_cancel(worker.run, &worker.capability).await.unwrap();
        assert_eq!(answer, Acknowledged::Cancelled);
    }
    assert_eq!(cx.acknowledge_cancel(worker.run, &random_digest()).await.unwrap(), Acknowledged::Fenced);
    assert_eq!(without_times(cx.run_of(&worker).await), before);
}

async fn a_cancel_that_was_not_requested_cannot_be_acknowledged(cx: &TestContext) {
    let worker = cx.worker().await;
    let answer = cx.acknowledge_cancel(worker.run, &worker.capability).await.unwrap();
    assert_eq!(answer, Acknowledged::NotRequested);
    cx.commit_turn(&worker, 1).await;
}

async fn a_finish_before_the_acknowledgement_wins(cx: &TestContext) {
    let worker = cx.worker().await;
    cx.request_cancel(worker.run).await.unwrap();
    ok(cx.finish(&worker.finish()).await.unwrap());
    let answer = cx.acknowledge_cancel(worker.run, &worker.capability).await.unwrap();
    assert_eq!(answer, Acknowledged::Finished);
    assert_eq!(cx.run_of(&worker).await.finish.unwrap().outcome, RunOutcome::Succeeded);
}

async fn only_the_current_worker_acknowledges(cx: &TestContext) {
    let worker = cx.worker().await;
    cx.request_cancel(worker.run).await.unwrap();
    for (run, capability) in [(worker.run, random_digest()), (Uuid::now_v7(), worker.capability)] {
        assert_eq!(cx.acknowledge_cancel(run, &capability).await.unwrap(), Acknowledged::Fenced);
    }
    let next = cx.next_worker(&worker).await;
    let answer = cx.acknowledge_cancel(worker.run, &worker.capability).await.unwrap();
    assert_eq!(answer, Acknowledged::Fenced);
    let answer = cx.acknowledge_cancel(next.run, &next.capability).await.unwrap();
    assert_eq!(answer, Acknowledged::Cancelled);
}

async fn the_operator_ends_a_run_that_does_not_acknowledge(cx: &TestContext) {
    let worker = cx.worker().await;
    cx.request_cancel(worker.run).await.unwrap();
    let cancelled = dalsegno_model::NewFinish {
        outcome: RunOutcome::Cancelled,
        reason: "Cancelled".into(),
        message: String::new(),
        output: None,
    };
    let over = NextStep::Finish(cancelled);
    let run = cx.end_attempt(worker.run, &ending(1, Class::Neutral), &over).await.unwrap();
    assert_eq!((run.lifecycle, run.epoch), (Lifecycle::Finished, 2));
    let late = cx.acknowledge_cancel(worker.run, &worker.capability).await.unwrap();
    assert_eq!(late, Acknowledged::Fenced);
}
