//! Suspend: the request, its delivery to the worker, and its end.

use dalsegno_model::{
    AttemptState, Cause, Class, Committed, Ending, HeartbeatAnswer, Lifecycle, NextStep, SignalRow,
    WorkerSignals,
};

use crate::context::*;
use crate::engines::on_every_engine;

on_every_engine! {
    a_second_suspend_changes_nothing,
    a_commit_reports_the_suspend_and_is_still_accepted,
    a_duplicate_reports_the_suspend,
    a_heartbeat_reports_the_suspend,
    an_attach_reports_the_suspend,
    a_finish_and_its_retry_report_the_suspend,
    a_boundary_that_finishes_the_run_reports_the_suspend,
    the_first_report_of_a_suspend_is_recorded_once,
    a_suspend_and_a_cancel_are_reported_together,
    a_resume_clears_both_times,
    a_resume_of_a_run_that_is_not_suspended_changes_nothing,
    a_run_that_is_over_is_neither_suspended_nor_resumed,
    the_operator_ends_an_attempt_that_does_not_park,
}

/// The suspend of the worker's run.
async fn suspend_of(cx: &TestContext, worker: &Worker) -> Option<SignalRow> {
    cx.run_of(worker).await.suspend
}

async fn assert_reported(cx: &TestContext, worker: &Worker) {
    let suspend = suspend_of(cx, worker).await.unwrap();
    assert!(suspend.told_at.unwrap() >= suspend.requested_at, "{suspend:?}");
}

async fn a_second_suspend_changes_nothing(cx: &TestContext) {
    let worker = cx.worker().await;
    let first = cx.suspend(worker.run).await.unwrap();
    let suspend = first.suspend.clone().unwrap();
    assert!(suspend.requested_at >= first.created_at);
    assert_eq!((suspend.told_at, &first.cancel), (None, &None));
    let attempt = (first.lifecycle, first.epoch, first.attempt.state);
    assert_eq!(attempt, (Lifecycle::Live, 1, AttemptState::Attached), "a suspend ends nothing");
    sleep_ms(5).await;
    let audit = cx.audit(worker.run).await.unwrap();
    assert_eq!(without_times(cx.suspend(worker.run).await.unwrap()), without_times(first));
    cx.commit_turn(&worker, 1).await;
    let reported = cx.run_of(&worker).await;
    assert_eq!(without_times(cx.suspend(worker.run).await.unwrap()), without_times(reported));
    assert_eq!(cx.audit(worker.run).await.unwrap(), audit);
    cx.assert_audit_is_valid(worker.run).await;
}

async fn a_commit_reports_the_suspend_and_is_still_accepted(cx: &TestContext) {
    let worker = cx.worker().await;
    assert!(!cx.commit_turn(&worker, 1).await.signals.suspend);
    cx.suspend(worker.run).await.unwrap();
    for commit in [worker.plan(2), worker.result(2), worker.result(3)] {
        assert!(ok(cx.commit(&commit).await.unwrap()).signals.suspend, "until the worker parks");
        assert_reported(cx, &worker).await;
    }
    cx.resume(worker.run).await.unwrap();
    assert!(!cx.commit_turn(&worker, 4).await.signals.suspend);
    assert_eq!(suspend_of(cx, &worker).await, None, "a commit without a suspend reports none");
}

async fn a_duplicate_reports_the_suspend(cx: &TestContext) {
    let worker = cx.worker().await;
    let commit = worker.result(1);
    ok(cx.commit(&commit).await.unwrap());
    cx.suspend(worker.run).await.unwrap();
    match cx.commit(&commit).await.unwrap() {
        Committed::Duplicate(receipt) => assert!(receipt.signals.suspend && !receipt.signals.cancel),
        other => panic!("{other:?}"),
    }
    assert_reported(cx, &worker).await;
    assert_eq!(cx.run_of(&worker).await.cancel, None);
}

async fn a_heartbeat_reports_the_suspend(cx: &TestContext) {
    let (worker, other) = (cx.worker().await, cx.worker().await);
    let beat = || async {
        let workers = [(worker.run, worker.capability), (other.run, other.capability)];
        cx.heartbeats(&workers).await.unwrap()
    };
    let calm = WorkerSignals {
        suspend: false,
        cancel: false,
        limit: false,
        inbox: 0,
        lease_ms: LONG_DEADLINES.heartbeat_ms,
    };
    assert_eq!(beat().await, [HeartbeatAnswer::Ok(calm), HeartbeatAnswer::Ok(calm)]);
    cx.suspend(worker.run).await.unwrap();
    let told = WorkerSignals { suspend: true, ..calm };
    assert_eq!(beat().await, [HeartbeatAnswer::Ok(told), HeartbeatAnswer::Ok(calm)]);
    assert_reported(cx, &worker).await;
    assert_eq!(suspend_of(cx, &other).await, None);
}

async fn an_attach_reports_the_suspend(cx: &TestContext) {
    let run = cx.run().await;
    cx.suspend(run.id).await.unwrap();
    let worker = cx.start_worker(&run).await;
    assert_reported(cx, &worker).await;

    let worker = cx.worker().await;
    cx.suspend(worker.run).await.unwrap();
    let again = attached(cx.attach(worker.run, &worker.pod_uid, &worker.capability).await.unwrap());
    assert!(again.suspend.unwrap().told_at.is_some(), "the attach of a process that is attached");
    assert_reported(cx, &worker).await;
}

async fn a_finish_and_its_retry_report_the_suspend(cx: &TestContext) {
    let worker = cx.worker().await;
    let finish = worker.finish();
    cx.suspend(worker.run).await.unwrap();
    assert!(ok(cx.finish(&finish).await.unwrap()).signals.suspend);
    assert_reported(cx, &worker).await;
    let run = cx.run_of(&worker).await;
    assert_eq!(run.lifecycle, Lifecycle::Finished, "a worker that is suspended may still finish");
    match cx.finish(&finish).await.unwrap() {
        Committed::Duplicate(receipt) => assert!(receipt.signals.suspend),
        other => panic!("{other:?}"),
    }
    assert_eq!(without_times(cx.run_of(&worker).await), without_times(run));
}

async fn a_boundary_that_finishes_the_run_reports_the_suspend(cx: &TestContext) {
    let worker = cx.worker().await;
    cx.suspend(worker.run).await.unwrap();
    let last = dalsegno_model::Commit { finish: Some(succeeded()), ..worker.result(1) };
    assert!(ok(cx.commit(&last).await.unwrap()).signals.suspend);
    assert_reported(cx, &worker).await;
    assert_eq!(cx.run_of(&worker).await.lifecycle, Lifecycle::Finished);
    cx.assert_audit_is_valid(worker.run).await;
}

async fn the_first_report_of_a_suspend_is_recorded_once(cx: &TestContext) {
    let worker = cx.worker().await;
    cx.suspend(worker.run).await.unwrap();
    let commit = worker.result(1);
    ok(cx.commit(&commit).await.unwrap());
    let reported = suspend_of(cx, &worker).await;
    sleep_ms(10).await;
    cx.commit(&commit).await.unwrap();
    cx.commit_turn(&worker, 2).await;
    cx.heartbeats(&[(worker.run, worker.capability)]).await.unwrap();
    attached(cx.attach(worker.run, &worker.pod_uid, &worker.capability).await.unwrap());
    // A cancel that is reported later leaves the time alone, too.
    cx.request_cancel(worker.run).await.unwrap();
    cx.commit_turn(&worker, 3).await;
    ok(cx.finish(&worker.finish()).await.unwrap());
    assert_eq!(suspend_of(cx, &worker).await, reported);
}

async fn a_suspend_and_a_cancel_are_reported_together(cx: &TestContext) {
    let worker = cx.worker().await;
    cx.suspend(worker.run).await.unwrap();
    let signals = cx.commit_turn(&worker, 1).await.signals;
    assert_eq!((signals.suspend, signals.cancel), (true, false));
    cx.request_cancel(worker.run).await.unwrap();
    let signals = cx.commit_turn(&worker, 2).await.signals;
    assert_eq!((signals.suspend, signals.cancel), (true, true));
    let run = cx.run_of(&worker).await;
    let (suspend, cancel) = (run.suspend.unwrap(), run.cancel.unwrap());
    assert!(suspend.told_at.unwrap() <= cancel.requested_at, "each has a time of its own");
    assert!(cancel.told_at.is_some());
    // A lifted suspend does not lift the cancel.
    cx.resume(worker.run).await.unwrap();
    let signals = cx.commit_turn(&worker, 3).await.signals;
    assert_eq!((signals.suspend, signals.cancel), (false, true));
}

async fn a_resume_clears_both_times(cx: &TestContext) {
    let worker = cx.worker().await;
    let first = cx.suspend(worker.run).await.unwrap().suspend.unwrap();
    cx.commit_turn(&worker, 1).await;
    let resumed = cx.resume(worker.run).await.unwrap();
    assert_eq!((resumed.suspend, resumed.epoch), (None, 1));
    cx.heartbeats(&[(worker.run, worker.capability)]).await.unwrap();
    assert_eq!(suspend_of(cx, &worker).await, None);
    sleep_ms(5).await;
    let second = cx.suspend(worker.run).await.unwrap().suspend.unwrap();
    assert!(second.requested_at > first.requested_at, "the next suspend has times of its own");
    assert_eq!(second.told_at, None);
    cx.assert_audit_is_valid(worker.run).await;
}

async fn a_resume_of_a_run_that_is_not_suspended_changes_nothing(cx: &TestContext) {
    let worker = cx.worker().await;
    let (before, audit) = (cx.run_of(&worker).await, cx.audit(worker.run).await.unwrap());
    assert_eq!(without_times(cx.resume(worker.run).await.unwrap()), without_times(before));
    assert_eq!(cx.audit(worker.run).await.unwrap(), audit);
}

async fn a_run_that_is_over_is_neither_suspended_nor_resumed(cx: &TestContext) {
    for suspended in [false, true] {
        for deleted in [false, true] {
            let worker = cx.worker().await;
            if suspended {
                cx.suspend(worker.run).await.unwrap();
            }
            if deleted {
                cx.mark_deleted(&worker.object_uid).await.unwrap();
            } else {
                ok(cx.finish(&worker.finish()).await.unwrap());
            }
            let before = without_times(cx.run_of(&worker).await);
            let audit = cx.audit(worker.run).await.unwrap();
            for after in [cx.suspend(worker.run).await.unwrap(), cx.resume(worker.run).await.unwrap()] {
                assert_eq!(without_times(after), before);
            }
            assert_eq!(without_times(cx.run_of(&worker).await), before);
            assert_eq!(cx.audit(worker.run).await.unwrap(), audit);
        }
    }
}

async fn the_operator_ends_an_attempt_that_does_not_park(cx: &TestContext) {
    let worker = cx.worker().await;
    cx.commit_turn(&worker, 1).await;
    cx.suspend(worker.run).await.unwrap();
    let ending = Ending { cause: Cause::Suspended, ..ending(1, Class::Neutral) };
    let run = cx.end_attempt(worker.run, &ending, &NextStep::Reserve).await.unwrap();
    assert_eq!((run.epoch, run.attempt.number, run.attempt.state), (2, 2, AttemptState::Reserved));
    assert_eq!((run.counters.recovery_attempts, run.counters.disruptions), (0, 0));
    assert!(run.suspend.is_some(), "the suspend stays until a person lifts it");
    assert!(matches!(cx.commit(&worker.result(2)).await.unwrap(), Committed::Fenced { committed: false }));
    cx.assert_audit_is_valid(worker.run).await;
}
