//! The deadline poll: one query for all runs that lists the changes since the last one.

use dalsegno_model::{Class, Parked, PollSince};
use dalsegno_protocol::Policy;
use jiff::{SignedDuration, Timestamp};

use crate::context::*;
use crate::engines::on_every_engine;

on_every_engine! {
    the_poll_returns_the_stores_clock_id_and_active_runs,
    transitions_of_workers_are_distinguished_from_moved_heads,
    unchanged_runs_are_not_listed,
    a_transition_that_becomes_visible_late_is_listed,
}

/// The poll's entry for this run since then: `Some(true)` for a transition, `Some(false)` for a moved head.
async fn changed(cx: &TestContext, worker: &Worker, since: Timestamp) -> Option<bool> {
    let pulse = cx.poll_deadlines(since.into()).await.unwrap();
    let mine: Vec<_> =
        pulse.changed.iter().filter(|changed| changed.object.uid == worker.object_uid).collect();
    assert!(mine.len() <= 1, "{mine:?}");
    mine.first().map(|changed| changed.transition)
}

/// A time after everything that has happened.
async fn mark(cx: &TestContext) -> Timestamp {
    sleep_ms(5).await;
    let now = cx.poll_deadlines(Timestamp::now().into()).await.unwrap().now;
    sleep_ms(5).await;
    now
}

async fn the_poll_returns_the_stores_clock_id_and_active_runs(cx: &TestContext) {
    let before = cx.poll_deadlines(Timestamp::UNIX_EPOCH.into()).await.unwrap();
    assert_eq!(before.store_id, cx.id().await.unwrap());
    assert_eq!((before.active, before.changed.len(), before.expired.len()), (0, 0, 0));
    cx.run().await;
    let worker = cx.worker().await;
    let over = cx.worker().await;
    ok(cx.finish(&over.finish()).await.unwrap());
    let after = cx.poll_deadlines(Timestamp::UNIX_EPOCH.into()).await.unwrap();
    assert_eq!(after.active, 1);
    assert!(after.now >= before.now);
    cx.end_and_reserve(&worker, Class::Disruption).await;
    assert_eq!(cx.poll_deadlines(Timestamp::UNIX_EPOCH.into()).await.unwrap().active, 0);
}

async fn transitions_of_workers_are_distinguished_from_moved_heads(cx: &TestContext) {
    let worker = cx.worker().await;
    assert_eq!(changed(cx, &worker, Timestamp::UNIX_EPOCH).await, Some(true), "attached");

    let since = mark(cx).await;
    cx.commit_turn(&worker, 1).await;
    assert_eq!(changed(cx, &worker, since).await, Some(false), "only its head moved");

    let since = mark(cx).await;
    cx.attach(worker.run, &worker.pod_uid, &random_digest()).await.unwrap();
    assert_eq!(changed(cx, &worker, since).await, Some(true), "spent");

    cx.start_call(&worker, "pay", Policy::Ask).await;
    let worker = cx.next_worker(&worker).await;
    let since = mark(cx).await;
    cx.settle(&person_settles(worker.run, "pay")).await.unwrap();
    assert_eq!(changed(cx, &worker, since).await, Some(true), "settled");

    let since = mark(cx).await;
    ok(cx.finish(&worker.finish()).await.unwrap());
    assert_eq!(changed(cx, &worker, since).await, Some(true), "finished");

    let worker = cx.worker().await;
    cx.request_cancel(worker.run).await.unwrap();
    let since = mark(cx).await;
    cx.acknowledge_cancel(worker.run, &worker.capability).await.unwrap();
    assert_eq!(changed(cx, &worker, since).await, Some(true), "cancelled");

    let worker = cx.worker().await;
    cx.suspend(worker.run).await.unwrap();
    let since = mark(cx).await;
    assert_eq!(cx.park(&worker.park()).await.unwrap(), Parked::Parked);
    assert_eq!(changed(cx, &worker, since).await, Some(true), "parked");

    let worker = cx.worker().await;
    let since = mark(cx).await;
    let last = dalsegno_model::Commit { finish: Some(succeeded()), ..worker.result(1) };
    ok(cx.commit(&last).await.unwrap());
    assert_eq!(changed(cx, &worker, since).await, Some(true), "finished with a boundary");
}

/// A commit whose sync takes long has the time of its beginning: other polls came in between.
async fn a_transition_that_becomes_visible_late_is_listed(cx: &TestContext) {
    let worker = cx.worker().await;
    cx.commit_turn(&worker, 1).await;
    let last_poll = mark(cx).await + SignedDuration::from_secs(20);
    let poll = cx.poll_deadlines(PollSince::last_poll(last_poll)).await.unwrap();
    let listed = poll.changed.iter().find(|changed| changed.object.uid == worker.object_uid).unwrap();
    assert!(listed.transition && !listed.head_moved, "{listed:?}");
}

async fn unchanged_runs_are_not_listed(cx: &TestContext) {
    let worker = cx.worker().await;
    let commit = worker.result(1);
    ok(cx.commit(&commit).await.unwrap());
    let since = mark(cx).await;
    cx.commit(&commit).await.unwrap();
    cx.commit(&with_new_id(&commit)).await.unwrap();
    cx.heartbeats(&[(worker.run, worker.capability)]).await.unwrap();
    attached(cx.attach(worker.run, &worker.pod_uid, &worker.capability).await.unwrap());
    assert_eq!(changed(cx, &worker, since).await, None);
}
