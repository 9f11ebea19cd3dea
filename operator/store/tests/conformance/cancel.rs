//! A cancel: asked for, told, acknowledged.

use dalsegno_store::{
    Acknowledged, Asked, AttemptState, Beat, Class, Committed, Lifecycle, RunOutcome, Then,
};
use uuid::Uuid;

use crate::faces::on_every_face;
use crate::world::*;

on_every_face! {
    only_the_first_request_counts,
    a_commit_tells_of_the_cancel_and_is_still_accepted,
    a_duplicate_tells_of_the_cancel,
    a_heartbeat_tells_of_the_cancel,
    an_attach_tells_of_the_cancel,
    being_told_is_noted_once,
    an_acknowledged_cancel_ends_the_run,
    the_acknowledgement_may_be_sent_again,
    nobody_acknowledges_what_nobody_asked_for,
    a_finish_before_the_acknowledgement_stands,
    only_the_current_worker_acknowledges,
    the_operator_ends_a_run_that_does_not_acknowledge,
}

async fn only_the_first_request_counts(world: &World) {
    let worker = world.worker().await;
    let first = world.request_cancel(worker.run).await.unwrap();
    let cancel = first.cancel.clone().unwrap();
    assert!(cancel.requested_at >= first.created_at);
    assert_eq!(cancel.told_at, None);
    assert_eq!((first.lifecycle, first.epoch), (Lifecycle::Live, 1), "asking ends nothing");
    pause(5).await;
    assert_eq!(still(world.request_cancel(worker.run).await.unwrap()), still(first));
}

async fn a_commit_tells_of_the_cancel_and_is_still_accepted(world: &World) {
    let worker = world.worker().await;
    assert!(!world.turn(&worker, 1).await.asked.cancel);
    world.request_cancel(worker.run).await.unwrap();
    assert!(world.turn(&worker, 2).await.asked.cancel);
    assert!(world.of(&worker).await.cancel.unwrap().told_at.is_some());
    assert!(world.turn(&worker, 3).await.asked.cancel, "until the acknowledgement");
}

async fn a_duplicate_tells_of_the_cancel(world: &World) {
    let worker = world.worker().await;
    let commit = worker.result(1);
    ok(world.commit(&commit).await.unwrap());
    world.request_cancel(worker.run).await.unwrap();
    match world.commit(&commit).await.unwrap() {
        Committed::Duplicate(standing) => assert!(standing.asked.cancel),
        other => panic!("{other:?}"),
    }
    assert!(world.of(&worker).await.cancel.unwrap().told_at.is_some());
}

async fn a_heartbeat_tells_of_the_cancel(world: &World) {
    let worker = world.worker().await;
    let beat = || async { world.heartbeats(&[(worker.run, worker.capability)]).await.unwrap() };
    let calm = Asked { suspend: false, cancel: false, lease_ms: LONG.heartbeat_ms };
    assert_eq!(beat().await, [Beat::Ok(calm)]);
    world.request_cancel(worker.run).await.unwrap();
    assert_eq!(beat().await, [Beat::Ok(Asked { cancel: true, ..calm })]);
    assert!(world.of(&worker).await.cancel.unwrap().told_at.is_some());
}

async fn an_attach_tells_of_the_cancel(world: &World) {
    let run = world.run().await;
    world.request_cancel(run.id).await.unwrap();
    let worker = world.work_on(&run).await;
    assert!(world.of(&worker).await.cancel.unwrap().told_at.is_some());
}

async fn being_told_is_noted_once(world: &World) {
    let worker = world.worker().await;
    world.request_cancel(worker.run).await.unwrap();
    world.turn(&worker, 1).await;
    let told = world.of(&worker).await.cancel.unwrap().told_at;
    pause(10).await;
    world.turn(&worker, 2).await;
    world.heartbeats(&[(worker.run, worker.capability)]).await.unwrap();
    attached(world.attach(worker.run, &worker.pod_uid, &worker.capability).await.unwrap());
    assert_eq!(world.of(&worker).await.cancel.unwrap().told_at, told);
}

async fn an_acknowledged_cancel_ends_the_run(world: &World) {
    let worker = world.worker().await;
    world.turn(&worker, 1).await;
    world.request_cancel(worker.run).await.unwrap();
    let answer = world.acknowledge_cancel(worker.run, &worker.capability).await.unwrap();
    assert_eq!(answer, Acknowledged::Cancelled);
    let run = world.of(&worker).await;
    assert_eq!((run.lifecycle, run.epoch, run.attempt.state), (Lifecycle::Finished, 2, AttemptState::Ended));
    let end = run.attempt.end.unwrap();
    assert_eq!((end.cause.as_str(), end.class, end.charged), ("Cancelled", Class::Neutral, false));
    let finish = run.finish.unwrap();
    // By its empty message the operator tells that the worker knows, and may exit by itself.
    let said = (finish.outcome, finish.reason.as_str(), finish.message.as_str(), finish.output.as_deref());
    assert_eq!(said, (RunOutcome::Cancelled, "Cancelled", "", None));
    assert_eq!(Some(finish.at), run.attempt.ended_at);
}

async fn the_acknowledgement_may_be_sent_again(world: &World) {
    let worker = world.worker().await;
    world.request_cancel(worker.run).await.unwrap();
    world.acknowledge_cancel(worker.run, &worker.capability).await.unwrap();
    let before = still(world.of(&worker).await);
    for _ in 0..2 {
        let answer = world.acknowledge_cancel(worker.run, &worker.capability).await.unwrap();
        assert_eq!(answer, Acknowledged::Cancelled);
    }
    assert_eq!(world.acknowledge_cancel(worker.run, &random()).await.unwrap(), Acknowledged::Fenced);
    assert_eq!(still(world.of(&worker).await), before);
}

async fn nobody_acknowledges_what_nobody_asked_for(world: &World) {
    let worker = world.worker().await;
    let answer = world.acknowledge_cancel(worker.run, &worker.capability).await.unwrap();
    assert_eq!(answer, Acknowledged::NotRequested);
    world.turn(&worker, 1).await;
}

async fn a_finish_before_the_acknowledgement_stands(world: &World) {
    let worker = world.worker().await;
    world.request_cancel(worker.run).await.unwrap();
    ok(world.finish(&worker.finish()).await.unwrap());
    let answer = world.acknowledge_cancel(worker.run, &worker.capability).await.unwrap();
    assert_eq!(answer, Acknowledged::Finished);
    assert_eq!(world.of(&worker).await.finish.unwrap().outcome, RunOutcome::Succeeded);
}

async fn only_the_current_worker_acknowledges(world: &World) {
    let worker = world.worker().await;
    world.request_cancel(worker.run).await.unwrap();
    for (run, capability) in [(worker.run, random()), (Uuid::now_v7(), worker.capability)] {
        assert_eq!(world.acknowledge_cancel(run, &capability).await.unwrap(), Acknowledged::Fenced);
    }
    let next = world.next(&worker).await;
    let answer = world.acknowledge_cancel(worker.run, &worker.capability).await.unwrap();
    assert_eq!(answer, Acknowledged::Fenced);
    let answer = world.acknowledge_cancel(next.run, &next.capability).await.unwrap();
    assert_eq!(answer, Acknowledged::Cancelled);
}

async fn the_operator_ends_a_run_that_does_not_acknowledge(world: &World) {
    let worker = world.worker().await;
    world.request_cancel(worker.run).await.unwrap();
    let cancelled = dalsegno_store::NewFinish {
        outcome: RunOutcome::Cancelled,
        reason: "Cancelled".into(),
        message: String::new(),
        output: None,
    };
    let over = Then::Finish(cancelled);
    let run = world.end_attempt(worker.run, &ending(1, Class::Neutral), &over).await.unwrap();
    assert_eq!((run.lifecycle, run.epoch), (Lifecycle::Finished, 2));
    let late = world.acknowledge_cancel(worker.run, &worker.capability).await.unwrap();
    assert_eq!(late, Acknowledged::Fenced);
}
