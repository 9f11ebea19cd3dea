//! Attach: a worker's process takes its attempt.

use dalsegno_model::{Attached, AttemptState, Class, NextStep, PodRecord, Verdict};
use uuid::Uuid;

use crate::context::*;
use crate::engines::on_every_engine;

on_every_engine! {
    an_unknown_run_is_not_found,
    an_unrecorded_pod_must_wait,
    a_pod_that_is_not_the_recorded_one_is_fenced,
    an_image_without_a_verdict_must_wait,
    a_refused_image_gets_the_reason,
    an_allowed_image_attaches,
    attaching_again_is_the_same_attach,
    a_second_instance_is_refused_as_spent_and_recorded_once,
    the_first_instance_goes_on_after_a_second_was_refused,
    a_pod_of_an_ended_attempt_is_fenced,
    finished_comes_before_the_version_verdict,
    the_capability_is_current_until_the_attempt_ends,
}

async fn an_unknown_run_is_not_found(cx: &TestContext) {
    let answer = cx.attach(Uuid::now_v7(), "pod", &random_digest()).await.unwrap();
    assert!(matches!(answer, Attached::NotFound), "{answer:?}");
}

async fn an_unrecorded_pod_must_wait(cx: &TestContext) {
    let run = cx.run().await;
    let answer = cx.attach(run.id, &pod(&run).uid, &random_digest()).await.unwrap();
    assert!(matches!(answer, Attached::NotRecorded), "{answer:?}");
}

async fn a_pod_that_is_not_the_recorded_one_is_fenced(cx: &TestContext) {
    let run = cx.run().await;
    recorded(cx.record_pod(run.id, 1, &pod(&run)).await.unwrap());
    let answer = cx.attach(run.id, "a look-alike", &random_digest()).await.unwrap();
    assert!(matches!(answer, Attached::Fenced), "{answer:?}");
}

async fn an_image_without_a_verdict_must_wait(cx: &TestContext) {
    let run = cx.run().await;
    recorded(cx.record_pod(run.id, 1, &PodRecord { identity: None, ..pod(&run) }).await.unwrap());
    let answer = cx.attach(run.id, &pod(&run).uid, &random_digest()).await.unwrap();
    assert!(matches!(answer, Attached::VersionPending), "{answer:?}");
    recorded(cx.record_identity(run.id, 1, &identity(Verdict::Accepted)).await.unwrap());
    attached(cx.attach(run.id, &pod(&run).uid, &random_digest()).await.unwrap());
}

async fn a_refused_image_gets_the_reason(cx: &TestContext) {
    let run = cx.run().await;
    let refused = PodRecord { identity: Some(identity(Verdict::Refused)), ..pod(&run) };
    recorded(cx.record_pod(run.id, 1, &refused).await.unwrap());
    match cx.attach(run.id, &refused.uid, &random_digest()).await.unwrap() {
        Attached::VersionIncompatible(why) => assert_eq!(why, "it is Refused"),
        other => panic!("{other:?}"),
    }
    assert_eq!(cx.run_by_uid(&run.object_uid).await.attempt.state, AttemptState::Created);
}

async fn an_allowed_image_attaches(cx: &TestContext) {
    let run = cx.run().await;
    let allowed = PodRecord { identity: Some(identity(Verdict::Allowed)), ..pod(&run) };
    recorded(cx.record_pod(run.id, 1, &allowed).await.unwrap());
    let run = attached(cx.attach(run.id, &allowed.uid, &random_digest()).await.unwrap());
    assert_eq!(run.attempt.state, AttemptState::Attached);
    assert!(run.attempt.attached_at.is_some());
    assert_eq!(run.attempt.lease_renewed_at, None, "only a heartbeat binds a lease");
    assert_eq!(run.epoch, 1, "an attach moves no epoch");
}

async fn attaching_again_is_the_same_attach(cx: &TestContext) {
    let worker = cx.worker().await;
    let before = cx.run_of(&worker).await;
    sleep_ms(5).await;
    let after = attached(cx.attach(worker.run, &worker.pod_uid, &worker.capability).await.unwrap());
    assert_eq!(without_times(after), without_times(before));
}

async fn a_second_instance_is_refused_as_spent_and_recorded_once(cx: &TestContext) {
    let worker = cx.worker().await;
    for _ in 0..2 {
        let answer = cx.attach(worker.run, &worker.pod_uid, &random_digest()).await.unwrap();
        assert!(matches!(answer, Attached::Spent), "{answer:?}");
    }
    assert!(cx.run_of(&worker).await.attempt.spent);
    let kinds: Vec<_> = cx.audit(worker.run).await.unwrap().into_iter().map(|row| row.kind).collect();
    assert_eq!(kinds.iter().filter(|kind| *kind == "spent").count(), 1, "{kinds:?}");
}

async fn the_first_instance_goes_on_after_a_second_was_refused(cx: &TestContext) {
    let worker = cx.worker().await;
    cx.attach(worker.run, &worker.pod_uid, &random_digest()).await.unwrap();
    cx.commit_turn(&worker, 1).await;
    attached(cx.attach(worker.run, &worker.pod_uid, &worker.capability).await.unwrap());
}

async fn a_pod_of_an_ended_attempt_is_fenced(cx: &TestContext) {
    let worker = cx.worker().await;
    let over = ending(1, Class::Disruption);
    cx.end_attempt(worker.run, &over, &NextStep::Nothing).await.unwrap();
    let answer = cx.attach(worker.run, &worker.pod_uid, &worker.capability).await.unwrap();
    assert!(matches!(answer, Attached::Fenced), "{answer:?}");
    let run = cx.end_attempt(worker.run, &over, &NextStep::Reserve).await.unwrap();
    recorded(cx.record_pod(run.id, 2, &pod(&run)).await.unwrap());
    for instance in [worker.capability, random_digest()] {
        let answer = cx.attach(worker.run, &worker.pod_uid, &instance).await.unwrap();
        assert!(matches!(answer, Attached::Fenced), "{answer:?}");
    }
}

async fn finished_comes_before_the_version_verdict(cx: &TestContext) {
    let worker = cx.worker().await;
    ok(cx.finish(&worker.finish()).await.unwrap());
    for instance in [worker.capability, random_digest()] {
        let answer = cx.attach(worker.run, &worker.pod_uid, &instance).await.unwrap();
        assert!(matches!(answer, Attached::Finished), "{answer:?}");
    }
}

async fn the_capability_is_current_until_the_attempt_ends(cx: &TestContext) {
    let worker = cx.worker().await;
    assert!(cx.is_current(worker.run, &worker.capability).await.unwrap());
    assert!(!cx.is_current(worker.run, &random_digest()).await.unwrap());
    assert!(!cx.is_current(Uuid::now_v7(), &worker.capability).await.unwrap());
    cx.end_and_reserve(&worker, Class::Disruption).await;
    assert!(!cx.is_current(worker.run, &worker.capability).await.unwrap());
}
