//! A worker's process takes its attempt.

use dalsegno_store::{Attached, AttemptState, Class, PodRecord, Then, Verdict};
use uuid::Uuid;

use crate::faces::on_every_face;
use crate::world::*;

on_every_face! {
    an_unknown_run_is_not_found,
    a_pod_that_nobody_recorded_yet_is_told_to_wait,
    a_pod_that_is_not_the_recorded_one_is_fenced,
    an_image_without_a_verdict_is_told_to_wait,
    a_refused_image_is_told_why,
    an_allowed_image_attaches,
    attaching_again_is_the_same_attach,
    another_instance_is_refused_as_spent_and_recorded_once,
    the_first_instance_goes_on_after_another_was_refused,
    a_pod_of_an_attempt_that_ended_is_fenced,
    a_finished_run_says_so_before_anything_about_versions,
    the_capability_is_current_from_attach_to_the_end,
}

async fn an_unknown_run_is_not_found(world: &World) {
    let answer = world.attach(Uuid::now_v7(), "pod", &random()).await.unwrap();
    assert!(matches!(answer, Attached::NotFound), "{answer:?}");
}

async fn a_pod_that_nobody_recorded_yet_is_told_to_wait(world: &World) {
    let run = world.run().await;
    let answer = world.attach(run.id, &pod(&run).uid, &random()).await.unwrap();
    assert!(matches!(answer, Attached::NotRecorded), "{answer:?}");
}

async fn a_pod_that_is_not_the_recorded_one_is_fenced(world: &World) {
    let run = world.run().await;
    recorded(world.record_pod(run.id, 1, &pod(&run)).await.unwrap());
    let answer = world.attach(run.id, "a look-alike", &random()).await.unwrap();
    assert!(matches!(answer, Attached::Fenced), "{answer:?}");
}

async fn an_image_without_a_verdict_is_told_to_wait(world: &World) {
    let run = world.run().await;
    recorded(world.record_pod(run.id, 1, &PodRecord { identity: None, ..pod(&run) }).await.unwrap());
    let answer = world.attach(run.id, &pod(&run).uid, &random()).await.unwrap();
    assert!(matches!(answer, Attached::VersionPending), "{answer:?}");
    recorded(world.record_identity(run.id, 1, &identity(Verdict::Accepted)).await.unwrap());
    attached(world.attach(run.id, &pod(&run).uid, &random()).await.unwrap());
}

async fn a_refused_image_is_told_why(world: &World) {
    let run = world.run().await;
    let refused = PodRecord { identity: Some(identity(Verdict::Refused)), ..pod(&run) };
    recorded(world.record_pod(run.id, 1, &refused).await.unwrap());
    match world.attach(run.id, &refused.uid, &random()).await.unwrap() {
        Attached::VersionIncompatible(why) => assert_eq!(why, "it is Refused"),
        other => panic!("{other:?}"),
    }
    assert_eq!(world.look(&run.object_uid).await.attempt.state, AttemptState::Created);
}

async fn an_allowed_image_attaches(world: &World) {
    let run = world.run().await;
    let allowed = PodRecord { identity: Some(identity(Verdict::Allowed)), ..pod(&run) };
    recorded(world.record_pod(run.id, 1, &allowed).await.unwrap());
    let run = attached(world.attach(run.id, &allowed.uid, &random()).await.unwrap());
    assert_eq!(run.attempt.state, AttemptState::Attached);
    assert!(run.attempt.attached_at.is_some());
    assert_eq!(run.attempt.lease_renewed_at, None, "only a heartbeat binds a lease");
    assert_eq!(run.epoch, 1, "an attach moves no epoch");
}

async fn attaching_again_is_the_same_attach(world: &World) {
    let worker = world.worker().await;
    let before = world.of(&worker).await;
    pause(5).await;
    let after = attached(world.attach(worker.run, &worker.pod_uid, &worker.capability).await.unwrap());
    assert_eq!(still(after), still(before));
}

async fn another_instance_is_refused_as_spent_and_recorded_once(world: &World) {
    let worker = world.worker().await;
    for _ in 0..2 {
        let answer = world.attach(worker.run, &worker.pod_uid, &random()).await.unwrap();
        assert!(matches!(answer, Attached::Spent), "{answer:?}");
    }
    assert!(world.of(&worker).await.attempt.spent);
    let kinds: Vec<_> = world.audit(worker.run).await.unwrap().into_iter().map(|row| row.kind).collect();
    assert_eq!(kinds.iter().filter(|kind| *kind == "spent").count(), 1, "{kinds:?}");
}

async fn the_first_instance_goes_on_after_another_was_refused(world: &World) {
    let worker = world.worker().await;
    world.attach(worker.run, &worker.pod_uid, &random()).await.unwrap();
    world.turn(&worker, 1).await;
    attached(world.attach(worker.run, &worker.pod_uid, &worker.capability).await.unwrap());
}

async fn a_pod_of_an_attempt_that_ended_is_fenced(world: &World) {
    let worker = world.worker().await;
    let over = ending(1, Class::Disruption);
    world.end_attempt(worker.run, &over, &Then::Nothing).await.unwrap();
    let answer = world.attach(worker.run, &worker.pod_uid, &worker.capability).await.unwrap();
    assert!(matches!(answer, Attached::Fenced), "{answer:?}");
    let run = world.end_attempt(worker.run, &over, &Then::Reserve).await.unwrap();
    recorded(world.record_pod(run.id, 2, &pod(&run)).await.unwrap());
    for instance in [worker.capability, random()] {
        let answer = world.attach(worker.run, &worker.pod_uid, &instance).await.unwrap();
        assert!(matches!(answer, Attached::Fenced), "{answer:?}");
    }
}

async fn a_finished_run_says_so_before_anything_about_versions(world: &World) {
    let worker = world.worker().await;
    ok(world.finish(&worker.finish()).await.unwrap());
    for instance in [worker.capability, random()] {
        let answer = world.attach(worker.run, &worker.pod_uid, &instance).await.unwrap();
        assert!(matches!(answer, Attached::Finished), "{answer:?}");
    }
}

async fn the_capability_is_current_from_attach_to_the_end(world: &World) {
    let worker = world.worker().await;
    assert!(world.is_current(worker.run, &worker.capability).await.unwrap());
    assert!(!world.is_current(worker.run, &random()).await.unwrap());
    assert!(!world.is_current(Uuid::now_v7(), &worker.capability).await.unwrap());
    world.lose(&worker, Class::Disruption).await;
    assert!(!world.is_current(worker.run, &worker.capability).await.unwrap());
}
