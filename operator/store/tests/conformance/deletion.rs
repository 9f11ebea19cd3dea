//! An AgentRun that is deleted on purpose.

use dalsegno_store::{AttemptState, Cause, Class, Lifecycle, Then};

use crate::faces::on_every_face;
use crate::world::*;

on_every_face! {
    a_deleted_run_is_fenced_and_closed_for_good,
    deleting_again_changes_nothing,
    a_run_that_the_store_does_not_know_may_be_deleted,
    a_finished_run_keeps_its_finish,
    a_held_run_keeps_its_end,
    a_deleted_run_is_not_changed_any_more,
}

async fn a_deleted_run_is_fenced_and_closed_for_good(world: &World) {
    let worker = world.worker().await;
    world.turn(&worker, 1).await;
    world.mark_deleted(&worker.object_uid).await.unwrap();
    let run = world.of(&worker).await;
    assert_eq!((run.lifecycle, run.epoch, run.attempt.state), (Lifecycle::Deleted, 2, AttemptState::Ended));
    let end = run.attempt.end.unwrap();
    assert_eq!((end.cause.as_str(), end.class), ("Deleted", Class::Neutral));
    assert_eq!(run.head.unwrap().turn, 1, "what was committed stays to be read");
    assert!(world.state(worker.run, None).await.unwrap().is_some());
}

async fn deleting_again_changes_nothing(world: &World) {
    let worker = world.worker().await;
    world.mark_deleted(&worker.object_uid).await.unwrap();
    let before = still(world.of(&worker).await);
    let audit = world.audit(worker.run).await.unwrap();
    world.mark_deleted(&worker.object_uid).await.unwrap();
    assert_eq!(still(world.of(&worker).await), before);
    assert_eq!(world.audit(worker.run).await.unwrap(), audit);
}

async fn a_run_that_the_store_does_not_know_may_be_deleted(world: &World) {
    world.mark_deleted("nobody").await.unwrap();
}

async fn a_finished_run_keeps_its_finish(world: &World) {
    let worker = world.worker().await;
    ok(world.finish(&worker.finish()).await.unwrap());
    world.mark_deleted(&worker.object_uid).await.unwrap();
    let run = world.of(&worker).await;
    assert_eq!((run.lifecycle, run.epoch), (Lifecycle::Deleted, 2));
    assert_eq!(run.finish.unwrap().reason, "GoalReached");
}

async fn a_held_run_keeps_its_end(world: &World) {
    let worker = world.worker().await;
    world.end_attempt(worker.run, &ending(1, Class::Crash), &Then::Nothing).await.unwrap();
    world.mark_deleted(&worker.object_uid).await.unwrap();
    let run = world.of(&worker).await;
    assert_eq!((run.lifecycle, run.epoch), (Lifecycle::Deleted, 3));
    assert_eq!(run.attempt.end.unwrap().cause, Cause::Evicted);
}

async fn a_deleted_run_is_not_changed_any_more(world: &World) {
    let run = world.run().await;
    world.mark_deleted(&run.object_uid).await.unwrap();
    let before = still(world.look(&run.object_uid).await);
    for then in [Then::Reserve, Then::Nothing, Then::Finish(succeeded())] {
        let after = world.end_attempt(run.id, &ending(1, Class::Crash), &then).await.unwrap();
        assert_eq!(still(after), before);
    }
    assert_eq!(still(world.request_cancel(run.id).await.unwrap()), before);
    assert_eq!(still(world.reset_budget(run.id, 0, 1).await.unwrap()), before);
    assert_eq!(still(refused(world.record_pod(run.id, 1, &pod(&run)).await.unwrap())), before);
    recorded(world.record_scheduled(run.id, 1, "node-a").await.unwrap());
    assert_eq!(still(world.look(&run.object_uid).await), before);
}
