//! Prior runs: a run of the same namespace and name that belongs to another object.

use dalsegno_model::{
    AttemptState, Cause, Class, Created, Deadlines, Lifecycle, LookUp, NewRun, NextStep, OnPrior, PriorRun,
};
use dalsegno_protocol::Policy;

use crate::context::*;
use crate::engines::on_every_engine;

on_every_engine! {
    a_prior_run_holds_the_new_one_and_is_not_changed,
    a_finished_or_held_prior_run_holds_the_new_one_too,
    a_deleted_run_is_no_prior_run,
    a_run_of_another_name_or_namespace_is_no_prior_run,
    an_adopted_run_continues_from_its_head_in_a_new_epoch,
    adopting_again_changes_nothing,
    adoption_applies_the_new_objects_settings,
    an_adopted_runs_open_calls_are_unsettled,
    a_held_run_is_adopted_with_a_new_attempt,
    a_finished_run_is_adopted_and_stays_finished,
    a_run_of_another_tenant_is_not_adopted,
    adopting_a_namespace_makes_its_runs_adoptable,
    an_ignored_run_is_abandoned_and_a_new_one_begins,
}

async fn prior(cx: &TestContext, new: &NewRun) -> PriorRun {
    match cx.create_run(new).await.unwrap() {
        Created::Prior(prior) => prior,
        Created::Run(run) => panic!("there was no prior run: {run:?}"),
    }
}

async fn a_prior_run_holds_the_new_one_and_is_not_changed(cx: &TestContext) {
    let new = new_run();
    let worker = cx.start_worker(&cx.create(&new).await).await;
    cx.commit_turn(&worker, 1).await;
    cx.commit_turn(&worker, 2).await;
    let before = without_times(cx.run_of(&worker).await);
    let later = namesake(&new, OnPrior::Hold);
    let expected = PriorRun {
        id: new.id,
        object_uid: new.object_uid.clone(),
        tenant: new.tenant.clone(),
        asked_by: new.tenant.clone(),
        turn: 2,
    };
    assert_eq!(prior(cx, &later).await, expected);
    assert_eq!(prior(cx, &later).await, expected);
    assert_eq!(without_times(cx.run_of(&worker).await), before);
    assert!(matches!(cx.find_by_object(&later.object_uid).await.unwrap(), LookUp::NotFound { .. }));
    cx.commit_turn(&worker, 3).await;
}

async fn a_finished_or_held_prior_run_holds_the_new_one_too(cx: &TestContext) {
    let new = new_run();
    let worker = cx.start_worker(&cx.create(&new).await).await;
    cx.end_attempt(worker.run, &ending(1, Class::Crash), &NextStep::Nothing).await.unwrap();
    assert_eq!(prior(cx, &namesake(&new, OnPrior::Hold)).await.turn, 0);
    let run = cx.end_attempt(worker.run, &ending(1, Class::Crash), &NextStep::Reserve).await.unwrap();
    ok(cx.finish(&cx.start_worker(&run).await.finish()).await.unwrap());
    assert_eq!(prior(cx, &namesake(&new, OnPrior::Hold)).await.id, new.id);
}

async fn a_deleted_run_is_no_prior_run(cx: &TestContext) {
    for finished in [false, true] {
        let new = new_run();
        let worker = cx.start_worker(&cx.create(&new).await).await;
        cx.commit_turn(&worker, 1).await;
        if finished {
            ok(cx.finish(&worker.finish()).await.unwrap());
        }
        cx.mark_deleted(&new.object_uid).await.unwrap();
        for on_prior in [OnPrior::Hold, OnPrior::Adopt, OnPrior::Ignore] {
            let later = namesake(&new, on_prior);
            let run = cx.create(&later).await;
            assert_eq!(
                (run.id, run.head, run.attempt.number),
                (later.id, None, 1),
                "it inherits nothing from the old run"
            );
            cx.mark_deleted(&later.object_uid).await.unwrap();
        }
    }
}

async fn a_run_of_another_name_or_namespace_is_no_prior_run(cx: &TestContext) {
    let new = new_run();
    cx.create(&new).await;
    cx.create(&NewRun { name: "another".into(), ..namesake(&new, OnPrior::Hold) }).await;
    cx.create(&NewRun { namespace: "another".into(), ..namesake(&new, OnPrior::Hold) }).await;
}

async fn an_adopted_run_continues_from_its_head_in_a_new_epoch(cx: &TestContext) {
    let new = new_run();
    let worker = cx.start_worker(&cx.create(&new).await).await;
    cx.commit_turn(&worker, 1).await;
    let later = namesake(&new, OnPrior::Adopt);
    let run = cx.create(&later).await;
    assert_eq!((run.id, &run.object_uid), (new.id, &later.object_uid));
    assert_eq!((run.epoch, run.lifecycle), (2, Lifecycle::Live));
    assert_eq!((run.attempt.number, run.attempt.state, run.attempt.epoch), (2, AttemptState::Reserved, 2));
    assert_eq!(run.head.as_ref().unwrap().turn, 1);
    let end = run.past[0].end.clone().unwrap();
    assert_eq!((end.cause.as_str(), end.class, end.charged), ("Adopted", Class::Neutral, false));
    assert!(matches!(cx.find_by_object(&new.object_uid).await.unwrap(), LookUp::NotFound { .. }));
    let adopted = cx.start_worker(&run).await;
    cx.commit_turn(&adopted, 2).await;
}

async fn adopting_again_changes_nothing(cx: &TestContext) {
    let new = new_run();
    cx.start_worker(&cx.create(&new).await).await;
    let later = namesake(&new, OnPrior::Adopt);
    let first = cx.create(&later).await;
    assert_eq!(without_times(cx.create(&later).await), without_times(first));
}

async fn adoption_applies_the_new_objects_settings(cx: &TestContext) {
    for (generation, observed) in [(1, 3), (5, 5)] {
        let new = NewRun { reset_generation: 3, ..new_run() };
        cx.create(&new).await;
        let deadlines =
            Deadlines { heartbeat_ms: 1_001, start_ms: 1_002, progress_ms: 1_003, suspend_ms: 1_003 };
        let later = NewRun { reset_generation: generation, deadlines, ..namesake(&new, OnPrior::Adopt) };
        let run = cx.create(&later).await;
        assert_eq!((run.deadlines, run.observed_reset_generation), (deadlines, observed));
    }
}

async fn an_adopted_runs_open_calls_are_unsettled(cx: &TestContext) {
    let new = new_run();
    let worker = cx.start_worker(&cx.create(&new).await).await;
    cx.start_call(&worker, "pay", Policy::Ask).await;
    let run = cx.create(&namesake(&new, OnPrior::Adopt)).await;
    assert_eq!(run.calls.unsettled, [(Policy::Ask, 1)].into());
}

async fn a_held_run_is_adopted_with_a_new_attempt(cx: &TestContext) {
    let new = new_run();
    let run = cx.create(&new).await;
    cx.end_attempt(run.id, &ending(1, Class::Crash), &NextStep::Nothing).await.unwrap();
    let run = cx.create(&namesake(&new, OnPrior::Adopt)).await;
    assert_eq!((run.epoch, run.attempt.number, run.attempt.state), (3, 2, AttemptState::Reserved));
    let end = run.past[0].end.clone().unwrap();
    assert_eq!((end.cause.as_str(), end.class), ("Evicted", Class::Crash), "the recorded end stays");
    assert_eq!(run.counters.recovery_attempts, 1);
}

async fn a_finished_run_is_adopted_and_stays_finished(cx: &TestContext) {
    let new = new_run();
    let worker = cx.start_worker(&cx.create(&new).await).await;
    cx.commit_turn(&worker, 1).await;
    ok(cx.finish(&worker.finish()).await.unwrap());
    let later = namesake(&new, OnPrior::Adopt);
    let run = cx.create(&later).await;
    assert_eq!((run.id, &run.object_uid, run.lifecycle), (new.id, &later.object_uid, Lifecycle::Finished));
    assert_eq!((run.epoch, run.attempt.number), (2, 1), "fenced, without a new attempt");
    assert_eq!(run.finish.unwrap().reason, "GoalReached");
}

async fn a_run_of_another_tenant_is_not_adopted(cx: &TestContext) {
    let new = new_run();
    let before = cx.create(&new).await;
    let other_tenant = NewRun { tenant: "tenant-2".into(), ..namesake(&new, OnPrior::Adopt) };
    let PriorRun { tenant, asked_by, .. } = prior(cx, &other_tenant).await;
    assert_eq!((tenant.as_str(), asked_by.as_str()), ("tenant-1", "tenant-2"));
    assert_eq!(without_times(cx.run_by_uid(&new.object_uid).await), without_times(before));
}

async fn adopting_a_namespace_makes_its_runs_adoptable(cx: &TestContext) {
    let new = NewRun { tenant: "old-uid".into(), ..new_run() };
    let other = NewRun { tenant: "old-uid".into(), ..new_run() };
    let elsewhere = new_run();
    for run in [&new, &other, &elsewhere] {
        cx.create(run).await;
    }
    assert_eq!(cx.adopt_namespace("old-uid", "new-uid").await.unwrap(), 2);
    assert_eq!(cx.adopt_namespace("old-uid", "new-uid").await.unwrap(), 0, "once");
    assert_eq!(cx.adopt_namespace("new-uid", "new-uid").await.unwrap(), 0, "to itself");
    assert_eq!(cx.run_by_uid(&other.object_uid).await.tenant, "new-uid");
    assert_eq!(cx.run_by_uid(&elsewhere.object_uid).await.tenant, "tenant-1");
    let last = cx.audit(new.id).await.unwrap().pop().unwrap();
    assert_eq!((last.kind.as_str(), last.actor.as_str()), ("namespace-adopted", "ada"));
    assert!(last.detail.contains("restored"), "{}", last.detail);
    let later = NewRun { tenant: "new-uid".into(), ..namesake(&new, OnPrior::Adopt) };
    assert_eq!(cx.create(&later).await.id, new.id);
}

async fn an_ignored_run_is_abandoned_and_a_new_one_begins(cx: &TestContext) {
    let new = new_run();
    let worker = cx.start_worker(&cx.create(&new).await).await;
    cx.commit_turn(&worker, 1).await;
    let other_tenant = NewRun { tenant: "tenant-2".into(), ..namesake(&new, OnPrior::Ignore) };
    let run = cx.create(&other_tenant).await;
    assert_eq!((run.id, run.attempt.number, run.head.clone()), (other_tenant.id, 1, None));
    let old = cx.run_by_uid(&new.object_uid).await;
    assert_eq!((old.lifecycle, old.epoch, old.attempt.state), (Lifecycle::Abandoned, 2, AttemptState::Ended));
    assert_eq!(old.attempt.end.unwrap().cause, Cause::Abandoned);
    assert_eq!(without_times(cx.create(&other_tenant).await), without_times(run));
    let ids: Vec<_> =
        cx.find(&new.namespace, &new.name).await.unwrap().into_iter().map(|run| run.id).collect();
    assert_eq!(ids, [other_tenant.id, new.id], "both are found, newest first");
    let third = namesake(&new, OnPrior::Hold);
    assert_eq!(prior(cx, &third).await.id, other_tenant.id, "an abandoned run is no prior run");
}
