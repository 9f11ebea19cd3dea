//! The deadline of a suspend: the time that a worker has to park.

use dalsegno_model::{Class, Deadline, Deadlines, NextStep, Parked, PodRecord, SignalRow};

use crate::context::*;
use crate::deadlines::{SHORT, WAIT, assert_not_expired, expired, expired_already, short, wait_for_expiry};
use crate::engines::on_every_engine;

on_every_engine! {
    a_suspend_expires_after_it_was_reported,
    a_suspend_that_was_not_reported_expires_after_twice_the_time,
    the_later_report_does_not_delay_the_deadline_of_the_request,
    only_an_attached_worker_has_to_park,
    a_resume_stops_the_clock_of_the_suspend,
    a_parked_run_has_no_deadline,
    new_deadlines_apply_to_a_suspend_at_once,
    a_cancel_does_not_stop_the_clock_of_the_suspend,
}

const SUSPENDS_SHORT: Deadlines = Deadlines { suspend_ms: SHORT, ..LONG_DEADLINES };

/// A worker that has to park within `SHORT`, once it was told to.
async fn worker(cx: &TestContext) -> Worker {
    cx.record_gateway_heartbeat().await.unwrap();
    cx.start_worker(&cx.create(&short(SUSPENDS_SHORT)).await).await
}

async fn suspend_of(cx: &TestContext, worker: &Worker) -> SignalRow {
    cx.run_of(worker).await.suspend.unwrap()
}

async fn a_suspend_expires_after_it_was_reported(cx: &TestContext) {
    let worker = worker(cx).await;
    sleep_ms(WAIT).await;
    assert_eq!(expired(cx, &worker.object_uid).await, None, "nobody suspended it");
    cx.suspend(worker.run).await.unwrap();
    cx.commit_turn(&worker, 1).await;
    let suspend = suspend_of(cx, &worker).await;
    assert_not_expired(cx, &worker.object_uid, suspend.told_at, SHORT).await;
    assert_eq!(wait_for_expiry(cx, &worker.object_uid).await, Deadline::Suspend);
    // An expired deadline refuses nothing by itself, and progress does not move it.
    cx.commit_turn(&worker, 2).await;
    assert_eq!(expired_already(cx, &worker.object_uid).await, Some(Deadline::Suspend));
    assert_eq!(suspend_of(cx, &worker).await, suspend);
    assert_eq!(cx.park(&worker.park()).await.unwrap(), Parked::Parked);
    assert_eq!(expired(cx, &worker.object_uid).await, None);
}

async fn a_suspend_that_was_not_reported_expires_after_twice_the_time(cx: &TestContext) {
    let worker = worker(cx).await;
    cx.suspend(worker.run).await.unwrap();
    let suspend = suspend_of(cx, &worker).await;
    sleep_ms(WAIT).await;
    assert_not_expired(cx, &worker.object_uid, Some(suspend.requested_at), 2 * SHORT).await;
    assert_eq!(wait_for_expiry(cx, &worker.object_uid).await, Deadline::Suspend);
    assert_eq!(suspend_of(cx, &worker).await.told_at, None);
}

async fn the_later_report_does_not_delay_the_deadline_of_the_request(cx: &TestContext) {
    let worker = worker(cx).await;
    cx.suspend(worker.run).await.unwrap();
    let requested_at = suspend_of(cx, &worker).await.requested_at;
    wait_for_expiry(cx, &worker.object_uid).await;
    cx.commit_turn(&worker, 1).await;
    let told_at = suspend_of(cx, &worker).await.told_at.unwrap();
    assert!(told_at.duration_since(requested_at).as_millis() >= (2 * SHORT).into());
    assert_eq!(expired_already(cx, &worker.object_uid).await, Some(Deadline::Suspend));
}

async fn only_an_attached_worker_has_to_park(cx: &TestContext) {
    cx.record_gateway_heartbeat().await.unwrap();
    let at_once = Deadlines { suspend_ms: 1, ..LONG_DEADLINES };
    let run = cx.create(&short(at_once)).await;
    cx.suspend(run.id).await.unwrap();
    sleep_ms(30).await;
    assert_eq!(expired(cx, &run.object_uid).await, None, "reserved");
    recorded(cx.record_pod(run.id, 1, &PodRecord { identity: None, ..pod(&run) }).await.unwrap());
    recorded(cx.record_scheduled(run.id, 1, "node-a").await.unwrap());
    sleep_ms(30).await;
    assert_eq!(expired(cx, &run.object_uid).await, None, "created");
    cx.start_worker(&run).await;
    assert_eq!(wait_for_expiry(cx, &run.object_uid).await, Deadline::Suspend);
    cx.end_attempt(run.id, &ending(1, Class::Neutral), &NextStep::Nothing).await.unwrap();
    assert_eq!(expired(cx, &run.object_uid).await, None, "ended");
}

async fn a_resume_stops_the_clock_of_the_suspend(cx: &TestContext) {
    let worker = worker(cx).await;
    for reported in [false, true] {
        cx.suspend(worker.run).await.unwrap();
        if reported {
            cx.heartbeats(&[(worker.run, worker.capability)]).await.unwrap();
        }
        assert_eq!(wait_for_expiry(cx, &worker.object_uid).await, Deadline::Suspend);
        cx.resume(worker.run).await.unwrap();
        assert_eq!(expired(cx, &worker.object_uid).await, None, "reported: {reported}");
    }
    cx.suspend(worker.run).await.unwrap();
    let requested_at = suspend_of(cx, &worker).await.requested_at;
    assert_not_expired(cx, &worker.object_uid, Some(requested_at), 2 * SHORT).await;
}

async fn a_parked_run_has_no_deadline(cx: &TestContext) {
    cx.record_gateway_heartbeat().await.unwrap();
    let all = Deadlines { heartbeat_ms: 1, start_ms: 1, progress_ms: 1, suspend_ms: 1 };
    let worker = cx.start_worker(&cx.create(&short(all)).await).await;
    cx.suspend(worker.run).await.unwrap();
    cx.heartbeats(&[(worker.run, worker.capability)]).await.unwrap();
    assert_eq!(cx.park(&worker.park()).await.unwrap(), Parked::Parked);
    sleep_ms(30).await;
    assert_eq!(expired(cx, &worker.object_uid).await, None);
}

async fn new_deadlines_apply_to_a_suspend_at_once(cx: &TestContext) {
    cx.record_gateway_heartbeat().await.unwrap();
    let worker = cx.worker().await;
    cx.suspend(worker.run).await.unwrap();
    cx.commit_turn(&worker, 1).await;
    sleep_ms(30).await;
    assert_eq!(expired(cx, &worker.object_uid).await, None);
    let shorter = Deadlines { suspend_ms: 1, ..LONG_DEADLINES };
    let run = cx.set_deadlines(worker.run, &shorter).await.unwrap();
    assert_eq!(run.deadlines, shorter);
    assert_eq!(wait_for_expiry(cx, &worker.object_uid).await, Deadline::Suspend);
    cx.set_deadlines(worker.run, &LONG_DEADLINES).await.unwrap();
    assert_eq!(expired(cx, &worker.object_uid).await, None);
}

async fn a_cancel_does_not_stop_the_clock_of_the_suspend(cx: &TestContext) {
    let worker = worker(cx).await;
    cx.suspend(worker.run).await.unwrap();
    cx.request_cancel(worker.run).await.unwrap();
    cx.commit_turn(&worker, 1).await;
    assert_eq!(wait_for_expiry(cx, &worker.object_uid).await, Deadline::Suspend);
}
