//! Creating runs, and what is recorded of an attempt before its worker attaches.

use dalsegno_model::{AttemptState, Class, Counters, Error, Identity, LookUp, NextStep, PodRecord, Verdict};
use uuid::Uuid;

use crate::context::*;
use crate::engines::on_every_engine;

on_every_engine! {
    a_new_run_has_its_first_attempt_reserved,
    creating_a_run_again_returns_its_row,
    an_unknown_object_is_not_found_in_a_store_with_an_id,
    a_run_is_found_by_its_id_and_by_its_object_uid,
    calls_on_an_unknown_run_fail,
    a_pod_is_recorded_once_and_may_be_recorded_again,
    a_second_pod_is_refused,
    a_pod_of_another_attempt_is_refused,
    a_pod_is_refused_once_the_attempt_has_ended,
    an_image_named_by_digest_is_identified_with_its_pod,
    only_the_first_identity_counts,
    only_the_first_scheduling_counts,
    facts_about_an_earlier_attempt_are_refused,
    a_replacement_attempt_starts_without_the_old_pods_facts,
    the_head_names_the_identity_of_the_attempt_that_committed_it,
    the_latest_eleven_past_attempts_are_listed_newest_first,
}

async fn a_new_run_has_its_first_attempt_reserved(cx: &TestContext) {
    let new = new_run();
    let run = cx.create(&dalsegno_model::NewRun { reset_generation: 3, ..new.clone() }).await;
    assert_eq!((run.id, &run.tenant, &run.namespace), (new.id, &new.tenant, &new.namespace));
    assert_eq!((&run.name, &run.object_uid), (&new.name, &new.object_uid));
    assert_eq!(run.store_id, cx.id().await.unwrap());
    assert_eq!(run.lifecycle, dalsegno_model::Lifecycle::Live);
    assert_eq!((run.epoch, run.attempt.number, run.attempt.state), (1, 1, AttemptState::Reserved));
    assert_eq!((run.attempt.epoch, run.attempt.turn_at_start), (1, 0));
    assert_eq!(run.attempt.reserved_at, run.created_at);
    assert!(run.past.is_empty() && run.head.is_none() && run.finish.is_none() && run.cancel.is_none());
    assert_eq!(run.counters, Counters::default());
    assert_eq!((run.observed_reset_generation, run.reset_attempt), (3, 0));
    assert_eq!(run.deadlines, LONG_DEADLINES);
    assert!(run.calls.unsettled.is_empty() && run.usage.is_zero());
}

async fn creating_a_run_again_returns_its_row(cx: &TestContext) {
    let new = new_run();
    let first = cx.create(&new).await;
    let retry = dalsegno_model::NewRun { id: Uuid::now_v7(), reset_generation: 9, ..new.clone() };
    assert_eq!(without_times(cx.create(&retry).await), without_times(first));
    let worker = cx.start_worker(&cx.run_by_uid(&new.object_uid).await).await;
    ok(cx.finish(&worker.finish()).await.unwrap());
    assert_eq!(
        without_times(cx.create(&new).await),
        without_times(cx.run_of(&worker).await),
        "also after the finish"
    );
    cx.mark_deleted(&new.object_uid).await.unwrap();
    assert_eq!(
        without_times(cx.create(&new).await),
        without_times(cx.run_of(&worker).await),
        "also after the deletion"
    );
}

async fn an_unknown_object_is_not_found_in_a_store_with_an_id(cx: &TestContext) {
    match cx.find_by_object("nobody").await.unwrap() {
        LookUp::NotFound { store_id, now } => {
            assert_eq!(store_id, cx.id().await.unwrap());
            assert!(!store_id.is_nil());
            assert!(now.as_millisecond() > 1_700_000_000_000);
        }
        LookUp::Found(run) => panic!("found {run:?}"),
    }
}

async fn a_run_is_found_by_its_id_and_by_its_object_uid(cx: &TestContext) {
    let run = cx.run().await;
    let read = cx.get_run(run.id).await.unwrap().expect("the run");
    assert_eq!(without_times(read), without_times(cx.run_by_uid(&run.object_uid).await));
    assert!(cx.get_run(Uuid::now_v7()).await.unwrap().is_none());
}

async fn calls_on_an_unknown_run_fail(cx: &TestContext) {
    let unknown = Uuid::now_v7();
    let ended = cx.end_attempt(unknown, &ending(1, Class::Crash), &NextStep::Reserve).await;
    let cancelled = cx.request_cancel(unknown).await;
    let (suspended, resumed) = (cx.suspend(unknown).await, cx.resume(unknown).await);
    let reset = cx.reset_budget(unknown, 0, 1).await;
    let set = cx.set_deadlines(unknown, &LONG_DEADLINES).await;
    for answer in [ended, cancelled, suspended, resumed, reset, set] {
        assert!(matches!(answer, Err(Error::Corrupt { .. })), "{answer:?}");
    }
    let identified = cx.record_identity(unknown, 1, &identity(Verdict::Accepted)).await;
    assert!(matches!(identified, Err(Error::Corrupt { .. })), "{identified:?}");
}

async fn a_pod_is_recorded_once_and_may_be_recorded_again(cx: &TestContext) {
    let run = cx.run().await;
    let after = recorded(cx.record_pod(run.id, 1, &pod(&run)).await.unwrap());
    assert_eq!(after.attempt.state, AttemptState::Created);
    assert_eq!(after.attempt.pod_uid, Some(pod(&run).uid));
    assert_eq!(after.attempt.pod_name, Some(pod(&run).name));
    assert_eq!(after.attempt.revision.as_deref(), Some("revision-1"));
    assert!(after.attempt.created_at >= Some(after.attempt.reserved_at));
    assert_eq!(after.epoch, 1, "a pod moves no epoch");
    let retry = recorded(cx.record_pod(run.id, 1, &pod(&run)).await.unwrap());
    assert_eq!(without_times(retry), without_times(after));
    let worker = Worker { capability: random_digest(), ..cx.start_worker(&run).await };
    let late = recorded(cx.record_pod(run.id, 1, &pod(&run)).await.unwrap());
    assert_eq!(late.attempt.state, AttemptState::Attached, "{worker:?}");
}

async fn a_second_pod_is_refused(cx: &TestContext) {
    let run = cx.run().await;
    recorded(cx.record_pod(run.id, 1, &pod(&run)).await.unwrap());
    let other = PodRecord { uid: "another".into(), ..pod(&run) };
    let row = refused(cx.record_pod(run.id, 1, &other).await.unwrap());
    assert_eq!(row.attempt.pod_uid, Some(pod(&run).uid));
}

async fn a_pod_of_another_attempt_is_refused(cx: &TestContext) {
    let run = cx.run().await;
    let ahead = refused(cx.record_pod(run.id, 2, &pod(&run)).await.unwrap());
    assert_eq!(ahead.attempt.state, AttemptState::Reserved);
    cx.end_attempt(run.id, &ending(1, Class::Disruption), &NextStep::Reserve).await.unwrap();
    let behind = refused(cx.record_pod(run.id, 1, &pod(&run)).await.unwrap());
    assert_eq!((behind.attempt.number, behind.attempt.state), (2, AttemptState::Reserved));
}

async fn a_pod_is_refused_once_the_attempt_has_ended(cx: &TestContext) {
    let run = cx.run().await;
    cx.end_attempt(run.id, &ending(1, Class::Disruption), &NextStep::Nothing).await.unwrap();
    let row = refused(cx.record_pod(run.id, 1, &pod(&run)).await.unwrap());
    assert_eq!((row.attempt.number, row.attempt.state), (1, AttemptState::Ended));
    assert_eq!(row.attempt.pod_uid, None);
}

async fn an_image_named_by_digest_is_identified_with_its_pod(cx: &TestContext) {
    let run = cx.run().await;
    let after = recorded(cx.record_pod(run.id, 1, &pod(&run)).await.unwrap());
    assert_eq!(after.attempt.identity, Some(identity(Verdict::Accepted)));
}

async fn only_the_first_identity_counts(cx: &TestContext) {
    let run = cx.run().await;
    let unknown = PodRecord { identity: None, ..pod(&run) };
    let before = recorded(cx.record_pod(run.id, 1, &unknown).await.unwrap());
    assert_eq!(before.attempt.identity, None);
    let allowed = Identity { in_registry: Some(false), ..identity(Verdict::Allowed) };
    let first = recorded(cx.record_identity(run.id, 1, &allowed).await.unwrap());
    assert_eq!(first.attempt.identity, Some(allowed.clone()));
    let second = recorded(cx.record_identity(run.id, 1, &identity(Verdict::Refused)).await.unwrap());
    assert_eq!(second.attempt.identity, Some(allowed.clone()));
    let third = recorded(cx.record_pod(run.id, 1, &pod(&run)).await.unwrap());
    assert_eq!(third.attempt.identity, Some(allowed));
}

async fn only_the_first_scheduling_counts(cx: &TestContext) {
    let run = cx.run().await;
    recorded(cx.record_pod(run.id, 1, &pod(&run)).await.unwrap());
    let first = recorded(cx.record_scheduled(run.id, 1, "node-a").await.unwrap());
    assert_eq!(first.attempt.node.as_deref(), Some("node-a"));
    assert!(first.attempt.scheduled_at.is_some());
    sleep_ms(5).await;
    let second = recorded(cx.record_scheduled(run.id, 1, "node-b").await.unwrap());
    assert_eq!(without_times(second), without_times(first));
}

async fn facts_about_an_earlier_attempt_are_refused(cx: &TestContext) {
    let worker = cx.worker().await;
    let run = cx.end_and_reserve(&worker, Class::Disruption).await;
    refused(cx.record_scheduled(run.id, 1, "node-a").await.unwrap());
    let row = refused(cx.record_identity(run.id, 1, &identity(Verdict::Refused)).await.unwrap());
    assert_eq!(without_times(row), without_times(run));
}

async fn a_replacement_attempt_starts_without_the_old_pods_facts(cx: &TestContext) {
    let worker = cx.worker().await;
    cx.heartbeats(&[(worker.run, worker.capability)]).await.unwrap();
    recorded(cx.record_scheduled(worker.run, 1, "node-a").await.unwrap());
    cx.commit_turn(&worker, 1).await;
    let run = cx.end_and_reserve(&worker, Class::Disruption).await;
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
    assert_eq!(without_times(cx.run_of(&worker).await), without_times(run), "a lookup returns the same");
}

async fn the_head_names_the_identity_of_the_attempt_that_committed_it(cx: &TestContext) {
    let mut worker = cx.worker().await;
    cx.commit_turn(&worker, 1).await;
    for _ in 0..13 {
        worker = cx.next_worker(&worker).await;
    }
    let head = cx.run_of(&worker).await.head.unwrap();
    assert_eq!((head.turn, head.attempt, head.epoch), (1, 1, 1));
    assert_eq!(head.revision.as_deref(), Some("revision-1"));
    assert_eq!(head.identity, Some(identity(Verdict::Accepted)));
    cx.commit_turn(&worker, 2).await;
    let head = cx.run_of(&worker).await.head.unwrap();
    assert_eq!((head.attempt, head.revision.as_deref()), (14, Some("revision-14")));
}

async fn the_latest_eleven_past_attempts_are_listed_newest_first(cx: &TestContext) {
    let mut run = cx.run().await;
    for number in 1..=13 {
        run = cx.end_attempt(run.id, &ending(number, Class::Crash), &NextStep::Reserve).await.unwrap();
    }
    assert_eq!(run.attempt.number, 14);
    let numbers: Vec<_> = run.past.iter().map(|attempt| attempt.number).collect();
    assert_eq!(numbers, (3..=13).rev().collect::<Vec<_>>());
}
