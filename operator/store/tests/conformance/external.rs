//! Runs whose agent keeps its own checkpoints: their workers start and end, and never attach.

use dalsegno_model::audit::kind;
use dalsegno_model::{
    Attached, AttemptState, Cause, Class, Created, NewRun, NextStep, OnPrior, RunOutcome, RunRecord,
};

use crate::context::*;
use crate::engines::on_every_engine;

on_every_engine! {
    a_worker_that_starts_counts_as_attached_and_nobody_can_attach,
    only_the_worker_of_an_external_run_is_started_by_the_operator,
    a_crash_of_an_external_worker_is_without_progress_and_its_success_ends_the_run,
    the_last_attempt_that_started_is_found_after_many_that_did_not,
    an_external_run_is_neither_adopted_nor_does_it_adopt,
}

fn external() -> NewRun {
    NewRun { is_external: true, ..new_run() }
}

/// A run whose pod is recorded.
async fn with_pod(cx: &TestContext, new: &NewRun) -> RunRecord {
    let run = cx.create(new).await;
    recorded(cx.record_pod(run.id, 1, &pod(&run)).await.unwrap())
}

async fn a_worker_that_starts_counts_as_attached_and_nobody_can_attach(cx: &TestContext) {
    let run = with_pod(cx, &external()).await;
    assert!(run.is_external);
    let uid = run.attempt.pod_uid.clone().unwrap();
    recorded(cx.record_identity(run.id, 1, &identity(dalsegno_model::Verdict::Accepted)).await.unwrap());
    assert!(matches!(cx.attach(run.id, &uid, &random_digest()).await.unwrap(), Attached::External));
    let started = recorded(cx.record_started(run.id, 1).await.unwrap());
    assert_eq!(started.attempt.state, AttemptState::Attached);
    assert!(started.attempt.attached_at.is_some());
    let again = recorded(cx.record_started(run.id, 1).await.unwrap());
    assert_eq!(again.attempt.attached_at, started.attempt.attached_at, "the first start counts");
    assert!(matches!(cx.attach(run.id, &uid, &random_digest()).await.unwrap(), Attached::External));
    let kinds: Vec<String> = cx.audit(run.id).await.unwrap().into_iter().map(|row| row.kind).collect();
    assert_eq!(kinds.iter().filter(|it| *it == kind::STARTED).count(), 1, "{kinds:?}");
    assert!(!kinds.iter().any(|it| it == kind::ATTACHED), "{kinds:?}");
}

async fn only_the_worker_of_an_external_run_is_started_by_the_operator(cx: &TestContext) {
    let run = with_pod(cx, &new_run()).await;
    let row = refused(cx.record_started(run.id, 1).await.unwrap());
    assert_eq!((row.attempt.state, row.is_external), (AttemptState::Created, false));
    let run = with_pod(cx, &external()).await;
    refused(cx.record_started(run.id, 2).await.unwrap());
}

async fn a_crash_of_an_external_worker_is_without_progress_and_its_success_ends_the_run(cx: &TestContext) {
    let run = with_pod(cx, &external()).await;
    recorded(cx.record_started(run.id, 1).await.unwrap());
    let row = cx.end_attempt(run.id, &ending(1, Class::Crash), &NextStep::Reserve).await.unwrap();
    assert_eq!((row.counters.recovery_attempts, row.counters.attempts_without_progress), (1, 1));
    assert_eq!((row.attempt.number, row.attempt.state), (2, AttemptState::Reserved));
    recorded(cx.record_pod(run.id, 2, &pod(&row)).await.unwrap());
    recorded(cx.record_started(run.id, 2).await.unwrap());
    let end = dalsegno_model::Ending { cause: Cause::Finished, ..ending(2, Class::Neutral) };
    let row = cx.end_attempt(run.id, &end, &NextStep::Finish(succeeded())).await.unwrap();
    assert_eq!(row.finish.unwrap().outcome, RunOutcome::Succeeded);
    assert_eq!(row.attempt.state, AttemptState::Ended);
}

async fn the_last_attempt_that_started_is_found_after_many_that_did_not(cx: &TestContext) {
    let new = external();
    let run = with_pod(cx, &new).await;
    recorded(cx.record_identity(run.id, 1, &identity(dalsegno_model::Verdict::Accepted)).await.unwrap());
    recorded(cx.record_started(run.id, 1).await.unwrap());
    for number in 1..=20 {
        let ended = cx.end_attempt(run.id, &ending(number, Class::Crash), &NextStep::Reserve).await.unwrap();
        recorded(cx.record_pod(run.id, number + 1, &pod(&ended)).await.unwrap());
    }
    let row = cx.run_by_uid(&new.object_uid).await;
    let started: Vec<_> = row.past.iter().filter(|it| it.attached_at.is_some()).collect();
    assert!(matches!(&started[..], [it] if it.number == 1 && it.identity.is_some()), "{started:?}");
    assert_eq!(row.head, None, "nothing is committed");
}

async fn an_external_run_is_neither_adopted_nor_does_it_adopt(cx: &TestContext) {
    for (first, second) in [(true, true), (true, false), (false, true)] {
        let new = NewRun { is_external: first, ..new_run() };
        cx.create(&new).await;
        let later = NewRun { is_external: second, ..namesake(&new, OnPrior::Adopt) };
        let answer = cx.create_run(&later).await.unwrap();
        assert!(matches!(answer, Created::Prior(_)), "{first} {second}: {answer:?}");
    }
}
