//! Taking runs up, and what is recorded of an attempt before its worker attaches.

use dalsegno_store::{AttemptState, Class, Counters, Error, LookUp, PodRecord, Then, Verdict};
use uuid::Uuid;

use crate::faces::on_every_face;
use crate::world::*;

on_every_face! {
    a_new_run_has_its_first_attempt_reserved,
    taking_a_run_up_again_returns_its_row,
    an_unknown_object_is_not_found_in_a_store_with_an_id,
    a_run_is_read_by_its_own_id_as_by_its_objects,
    a_run_that_the_store_does_not_know_is_no_answer,
    a_pod_is_recorded_once_and_may_be_recorded_again,
    a_second_pod_is_refused,
    a_pod_of_another_attempt_is_refused,
    a_pod_is_refused_once_the_attempt_has_ended,
    an_image_named_by_digest_is_identified_with_its_pod,
    only_the_first_identity_counts,
    only_the_first_scheduling_counts,
    facts_of_an_earlier_attempt_are_refused,
    a_reserved_attempt_that_replaces_another_starts_clean,
    the_head_names_the_identity_of_the_attempt_that_committed_it,
    only_eleven_past_attempts_are_shown_the_latest_first,
}

async fn a_new_run_has_its_first_attempt_reserved(world: &World) {
    let new = new_run();
    let run = world.take_up(&dalsegno_store::NewRun { reset_generation: 3, ..new.clone() }).await;
    assert_eq!((run.id, &run.tenant, &run.namespace), (new.id, &new.tenant, &new.namespace));
    assert_eq!((&run.name, &run.object_uid), (&new.name, &new.object_uid));
    assert_eq!(run.store_id, world.id().await.unwrap());
    assert_eq!(run.lifecycle, dalsegno_store::Lifecycle::Live);
    assert_eq!((run.epoch, run.attempt.number, run.attempt.state), (1, 1, AttemptState::Reserved));
    assert_eq!((run.attempt.epoch, run.attempt.turn_at_start), (1, 0));
    assert_eq!(run.attempt.reserved_at, run.created_at);
    assert!(run.past.is_empty() && run.head.is_none() && run.finish.is_none() && run.cancel.is_none());
    assert_eq!(run.counters, Counters::default());
    assert_eq!((run.observed_reset_generation, run.reset_attempt), (3, 0));
    assert_eq!(run.deadlines, LONG);
    assert!(run.calls.unsettled.is_empty() && run.usage.is_zero());
}

async fn taking_a_run_up_again_returns_its_row(world: &World) {
    let new = new_run();
    let first = world.take_up(&new).await;
    let retry = dalsegno_store::NewRun { id: Uuid::now_v7(), reset_generation: 9, ..new.clone() };
    assert_eq!(still(world.take_up(&retry).await), still(first));
    let worker = world.work_on(&world.look(&new.object_uid).await).await;
    ok(world.finish(&worker.finish()).await.unwrap());
    assert_eq!(still(world.take_up(&new).await), still(world.of(&worker).await), "also once it is finished");
    world.mark_deleted(&new.object_uid).await.unwrap();
    assert_eq!(still(world.take_up(&new).await), still(world.of(&worker).await), "also once it is deleted");
}

async fn an_unknown_object_is_not_found_in_a_store_with_an_id(world: &World) {
    match world.look_up("nobody").await.unwrap() {
        LookUp::NotFound { store_id, now } => {
            assert_eq!(store_id, world.id().await.unwrap());
            assert!(!store_id.is_nil());
            assert!(now.as_millisecond() > 1_700_000_000_000);
        }
        LookUp::Found(run) => panic!("found {run:?}"),
    }
}

async fn a_run_is_read_by_its_own_id_as_by_its_objects(world: &World) {
    let run = world.run().await;
    let read = world.get_run(run.id).await.unwrap().expect("the run");
    assert_eq!(still(read), still(world.look(&run.object_uid).await));
    assert!(world.get_run(Uuid::now_v7()).await.unwrap().is_none());
}

async fn a_run_that_the_store_does_not_know_is_no_answer(world: &World) {
    let nobody = Uuid::now_v7();
    let ended = world.end_attempt(nobody, &ending(1, Class::Crash), &Then::Reserve).await;
    let asked = world.request_cancel(nobody).await;
    let reset = world.reset_budget(nobody, 0, 1).await;
    let set = world.set_deadlines(nobody, &LONG).await;
    for answer in [ended, asked, reset, set] {
        assert!(matches!(answer, Err(Error::Corrupt { .. })), "{answer:?}");
    }
    let identified = world.record_identity(nobody, 1, &identity(Verdict::Accepted)).await;
    assert!(matches!(identified, Err(Error::Corrupt { .. })), "{identified:?}");
}

async fn a_pod_is_recorded_once_and_may_be_recorded_again(world: &World) {
    let run = world.run().await;
    let after = recorded(world.record_pod(run.id, 1, &pod(&run)).await.unwrap());
    assert_eq!(after.attempt.state, AttemptState::Created);
    assert_eq!(after.attempt.pod_uid, Some(pod(&run).uid));
    assert_eq!(after.attempt.pod_name, Some(pod(&run).name));
    assert_eq!(after.attempt.revision.as_deref(), Some("revision-1"));
    assert!(after.attempt.created_at >= Some(after.attempt.reserved_at));
    assert_eq!(after.epoch, 1, "a pod moves no epoch");
    let retry = recorded(world.record_pod(run.id, 1, &pod(&run)).await.unwrap());
    assert_eq!(still(retry), still(after));
    let worker = Worker { capability: random(), ..world.work_on(&run).await };
    let late = recorded(world.record_pod(run.id, 1, &pod(&run)).await.unwrap());
    assert_eq!(late.attempt.state, AttemptState::Attached, "{worker:?}");
}

async fn a_second_pod_is_refused(world: &World) {
    let run = world.run().await;
    recorded(world.record_pod(run.id, 1, &pod(&run)).await.unwrap());
    let other = PodRecord { uid: "another".into(), ..pod(&run) };
    let stands = refused(world.record_pod(run.id, 1, &other).await.unwrap());
    assert_eq!(stands.attempt.pod_uid, Some(pod(&run).uid));
}

async fn a_pod_of_another_attempt_is_refused(world: &World) {
    let run = world.run().await;
    let ahead = refused(world.record_pod(run.id, 2, &pod(&run)).await.unwrap());
    assert_eq!(ahead.attempt.state, AttemptState::Reserved);
    world.end_attempt(run.id, &ending(1, Class::Disruption), &Then::Reserve).await.unwrap();
    let behind = refused(world.record_pod(run.id, 1, &pod(&run)).await.unwrap());
    assert_eq!((behind.attempt.number, behind.attempt.state), (2, AttemptState::Reserved));
}

async fn a_pod_is_refused_once_the_attempt_has_ended(world: &World) {
    let run = world.run().await;
    world.end_attempt(run.id, &ending(1, Class::Disruption), &Then::Nothing).await.unwrap();
    let stands = refused(world.record_pod(run.id, 1, &pod(&run)).await.unwrap());
    assert_eq!((stands.attempt.number, stands.attempt.state), (1, AttemptState::Ended));
    assert_eq!(stands.attempt.pod_uid, None);
}

async fn an_image_named_by_digest_is_identified_with_its_pod(world: &World) {
    let run = world.run().await;
    let after = recorded(world.record_pod(run.id, 1, &pod(&run)).await.unwrap());
    assert_eq!(after.attempt.identity, Some(identity(Verdict::Accepted)));
}

async fn only_the_first_identity_counts(world: &World) {
    let run = world.run().await;
    let unknown = PodRecord { identity: None, ..pod(&run) };
    let before = recorded(world.record_pod(run.id, 1, &unknown).await.unwrap());
    assert_eq!(before.attempt.identity, None);
    let allowed = identity(Verdict::Allowed);
    let first = recorded(world.record_identity(run.id, 1, &allowed).await.unwrap());
    assert_eq!(first.attempt.identity, Some(allowed.clone()));
    let second = recorded(world.record_identity(run.id, 1, &identity(Verdict::Refused)).await.unwrap());
    assert_eq!(second.attempt.identity, Some(allowed.clone()));
    let third = recorded(world.record_pod(run.id, 1, &pod(&run)).await.unwrap());
    assert_eq!(third.attempt.identity, Some(allowed));
}

async fn only_the_first_scheduling_counts(world: &World) {
    let run = world.run().await;
    recorded(world.record_pod(run.id, 1, &pod(&run)).await.unwrap());
    let first = recorded(world.record_scheduled(run.id, 1, "node-a").await.unwrap());
    assert_eq!(first.attempt.node.as_deref(), Some("node-a"));
    assert!(first.attempt.scheduled_at.is_some());
    pause(5).await;
    let second = recorded(world.record_scheduled(run.id, 1, "node-b").await.unwrap());
    assert_eq!(still(second), still(first));
}

async fn facts_of_an_earlier_attempt_are_refused(world: &World) {
    let worker = world.worker().await;
    let run = world.lose(&worker, Class::Disruption).await;
    refused(world.record_scheduled(run.id, 1, "node-a").await.unwrap());
    let stands = refused(world.record_identity(run.id, 1, &identity(Verdict::Refused)).await.unwrap());
    assert_eq!(still(stands), still(run));
}

async fn a_reserved_attempt_that_replaces_another_starts_clean(world: &World) {
    let worker = world.worker().await;
    world.heartbeats(&[(worker.run, worker.capability)]).await.unwrap();
    recorded(world.record_scheduled(worker.run, 1, "node-a").await.unwrap());
    world.turn(&worker, 1).await;
    let run = world.lose(&worker, Class::Disruption).await;
    let attempt = &run.attempt;
    assert_eq!((attempt.number, attempt.state, attempt.epoch), (2, AttemptState::Reserved, 2));
    assert_eq!((run.epoch, attempt.turn_at_start), (2, 1));
    assert_eq!((&attempt.pod_uid, &attempt.pod_name, &attempt.node), (&None, &None, &None));
    assert_eq!((&attempt.revision, &attempt.identity, attempt.spent), (&None, &None, false));
    assert_eq!((attempt.created_at, attempt.scheduled_at, attempt.attached_at), (None, None, None));
    assert_eq!((attempt.lease_renewed_at, attempt.ended_at, &attempt.end), (None, None, &None));
    let ended = &run.past[0];
    assert_eq!((ended.number, ended.state, ended.epoch), (1, AttemptState::Ended, 1));
    assert_eq!((ended.turn_at_start, ended.turn_at_end), (0, Some(1)));
    assert_eq!(ended.node.as_deref(), Some("node-a"));
    assert!(ended.lease_renewed_at.is_some() && ended.ended_at.is_some());
    let end = ended.end.as_ref().unwrap();
    assert_eq!(
        (end.cause.as_str(), end.exit_code, end.message.as_str()),
        ("Evicted", Some(137), "the last words")
    );
    assert_eq!((end.class, end.charged, end.progress), (Class::Disruption, false, true));
    assert_eq!(still(world.of(&worker).await), still(run), "and a lookup shows the same");
}

async fn the_head_names_the_identity_of_the_attempt_that_committed_it(world: &World) {
    let mut worker = world.worker().await;
    world.turn(&worker, 1).await;
    for _ in 0..13 {
        worker = world.next(&worker).await;
    }
    let head = world.of(&worker).await.head.unwrap();
    assert_eq!((head.turn, head.attempt, head.epoch), (1, 1, 1));
    assert_eq!(head.revision.as_deref(), Some("revision-1"));
    assert_eq!(head.identity, Some(identity(Verdict::Accepted)));
    world.turn(&worker, 2).await;
    let head = world.of(&worker).await.head.unwrap();
    assert_eq!((head.attempt, head.revision.as_deref()), (14, Some("revision-14")));
}

async fn only_eleven_past_attempts_are_shown_the_latest_first(world: &World) {
    let mut run = world.run().await;
    for number in 1..=13 {
        run = world.end_attempt(run.id, &ending(number, Class::Crash), &Then::Reserve).await.unwrap();
    }
    assert_eq!(run.attempt.number, 14);
    let numbers: Vec<_> = run.past.iter().map(|attempt| attempt.number).collect();
    assert_eq!(numbers, (3..=13).rev().collect::<Vec<_>>());
}
