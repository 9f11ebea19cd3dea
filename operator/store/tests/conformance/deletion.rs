//! Deletion of an AgentRun by a person.

use dalsegno_model::{AttemptState, Cause, Class, Lifecycle, NextStep};

use crate::context::*;
use crate::engines::on_every_engine;

on_every_engine! {
    a_deleted_run_is_fenced_and_stays_closed,
    deleting_again_changes_nothing,
    an_unknown_run_may_be_deleted,
    a_finished_run_keeps_its_finish,
    a_held_run_keeps_its_end,
    a_deleted_run_is_never_changed,
}

async fn a_deleted_run_is_fenced_and_stays_closed(cx: &TestContext) {
    let worker = cx.worker().await;
    cx.commit_turn(&worker, 1).await;
    cx.mark_deleted(&worker.object_uid).await.unwrap();
    let run = cx.run_of(&worker).await;
    assert_eq!((run.lifecycle, run.epoch, run.attempt.state), (Lifecycle::Deleted, 2, AttemptState::Ended));
    let end = run.attempt.end.unwrap();
    assert_eq!((end.cause.as_str(), end.class), ("RunDeleted", Class::Neutral));
    assert_eq!(run.head.unwrap().turn, 1, "committed turns stay readable");
    assert!(cx.state(worker.run, None).await.unwrap().is_some());
}

async fn deleting_again_changes_nothing(cx: &TestContext) {
    let worker = cx.worker().await;
    cx.mark_deleted(&worker.object_uid).await.unwrap();
    let before = without_times(cx.run_of(&worker).await);
    let audit = cx.audit(worker.run).await.unwrap();
    cx.mark_deleted(&worker.object_uid).await.unwrap();
    assert_eq!(without_times(cx.run_of(&worker).await), before);
    assert_eq!(cx.audit(worker.run).await.unwrap(), audit);
}

async fn an_unknown_run_may_be_deleted(cx: &TestContext) {
    cx.mark_deleted("nobody").await.unwrap();
}

async fn a_finished_run_keeps_its_finish(cx: &TestContext) {
    let worker = cx.worker().await;
    ok(cx.finish(&worker.finish()).await.unwrap());
    cx.mark_deleted(&worker.object_uid).await.unwrap();
    let run = cx.run_of(&worker).await;
    assert_eq!((run.lifecycle, run.epoch), (Lifecycle::Deleted, 2));
    assert_eq!(run.finish.unwrap().reason, "GoalReached");
}

async fn a_held_run_keeps_its_end(cx: &TestContext) {
    let worker = cx.worker().await;
    cx.end_attempt(worker.run, &ending(1, Class::Crash), &NextStep::Nothing).await.unwrap();
    cx.mark_deleted(&worker.object_uid).await.unwrap();
    let run = cx.run_of(&worker).await;
    assert_eq!((run.lifecycle, run.epoch), (Lifecycle::Deleted, 3));
    assert_eq!(run.attempt.end.unwrap().cause, Cause::Evicted);
}

async fn a_deleted_run_is_never_changed(cx: &TestContext) {
    let run = cx.run().await;
    cx.mark_deleted(&run.object_uid).await.unwrap();
    let before = without_times(cx.run_by_uid(&run.object_uid).await);
    for then in [NextStep::Reserve, NextStep::Nothing, NextStep::Finish(succeeded())] {
        let after = cx.end_attempt(run.id, &ending(1, Class::Crash), &then).await.unwrap();
        assert_eq!(without_times(after), before);
    }
    assert_eq!(without_times(cx.request_cancel(run.id).await.unwrap()), before);
    assert_eq!(without_times(cx.reset_budget(run.id, 0, 1).await.unwrap()), before);
    assert_eq!(without_times(refused(cx.record_pod(run.id, 1, &pod(&run)).await.unwrap())), before);
    recorded(cx.record_scheduled(run.id, 1, "node-a").await.unwrap());
    assert_eq!(without_times(cx.run_by_uid(&run.object_uid).await), before);
}
