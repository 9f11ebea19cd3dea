//! A run of the same namespace and name that belongs to another object.

use dalsegno_protocol::Policy;
use dalsegno_store::{
    AttemptState, Cause, Class, Created, Deadlines, Lifecycle, LookUp, NewRun, OnPrior, PriorRun, Then,
};

use crate::faces::on_every_face;
use crate::world::*;

on_every_face! {
    a_prior_run_holds_and_is_not_touched,
    a_finished_or_held_prior_run_holds_too,
    a_run_that_was_deleted_on_purpose_is_no_prior_run,
    a_run_of_another_name_or_namespace_is_no_prior_run,
    an_adopted_run_goes_on_from_its_head_under_a_new_epoch,
    adopting_again_returns_the_row,
    adoption_takes_the_new_objects_wishes,
    an_adopted_runs_open_calls_are_unsettled,
    a_held_run_is_adopted_with_a_fresh_attempt,
    a_finished_run_is_adopted_and_stays_finished,
    a_run_of_another_tenant_is_not_adopted,
    an_adopted_namespace_makes_its_runs_adoptable,
    an_ignored_run_is_abandoned_and_another_begins,
}

async fn prior(world: &World, new: &NewRun) -> PriorRun {
    match world.create_run(new).await.unwrap() {
        Created::Prior(prior) => prior,
        Created::Run(run) => panic!("nothing stood in the way: {run:?}"),
    }
}

async fn a_prior_run_holds_and_is_not_touched(world: &World) {
    let new = new_run();
    let worker = world.work_on(&world.take_up(&new).await).await;
    world.turn(&worker, 1).await;
    world.turn(&worker, 2).await;
    let before = still(world.of(&worker).await);
    let later = namesake(&new, OnPrior::Hold);
    let expected = PriorRun {
        id: new.id,
        object_uid: new.object_uid.clone(),
        tenant: new.tenant.clone(),
        asked_by: new.tenant.clone(),
        turn: 2,
    };
    assert_eq!(prior(world, &later).await, expected);
    assert_eq!(prior(world, &later).await, expected);
    assert_eq!(still(world.of(&worker).await), before);
    assert!(matches!(world.look_up(&later.object_uid).await.unwrap(), LookUp::NotFound { .. }));
    world.turn(&worker, 3).await;
}

async fn a_finished_or_held_prior_run_holds_too(world: &World) {
    let new = new_run();
    let worker = world.work_on(&world.take_up(&new).await).await;
    world.end_attempt(worker.run, &ending(1, Class::Crash), &Then::Nothing).await.unwrap();
    assert_eq!(prior(world, &namesake(&new, OnPrior::Hold)).await.turn, 0);
    let run = world.end_attempt(worker.run, &ending(1, Class::Crash), &Then::Reserve).await.unwrap();
    ok(world.finish(&world.work_on(&run).await.finish()).await.unwrap());
    assert_eq!(prior(world, &namesake(&new, OnPrior::Hold)).await.id, new.id);
}

async fn a_run_that_was_deleted_on_purpose_is_no_prior_run(world: &World) {
    for finished in [false, true] {
        let new = new_run();
        let worker = world.work_on(&world.take_up(&new).await).await;
        world.turn(&worker, 1).await;
        if finished {
            ok(world.finish(&worker.finish()).await.unwrap());
        }
        world.mark_deleted(&new.object_uid).await.unwrap();
        for on_prior in [OnPrior::Hold, OnPrior::Adopt, OnPrior::Ignore] {
            let later = namesake(&new, on_prior);
            let run = world.take_up(&later).await;
            assert_eq!(
                (run.id, run.head, run.attempt.number),
                (later.id, None, 1),
                "with nothing of the old"
            );
            world.mark_deleted(&later.object_uid).await.unwrap();
        }
    }
}

async fn a_run_of_another_name_or_namespace_is_no_prior_run(world: &World) {
    let new = new_run();
    world.take_up(&new).await;
    world.take_up(&NewRun { name: "another".into(), ..namesake(&new, OnPrior::Hold) }).await;
    world.take_up(&NewRun { namespace: "another".into(), ..namesake(&new, OnPrior::Hold) }).await;
}

async fn an_adopted_run_goes_on_from_its_head_under_a_new_epoch(world: &World) {
    let new = new_run();
    let worker = world.work_on(&world.take_up(&new).await).await;
    world.turn(&worker, 1).await;
    let later = namesake(&new, OnPrior::Adopt);
    let run = world.take_up(&later).await;
    assert_eq!((run.id, &run.object_uid), (new.id, &later.object_uid));
    assert_eq!((run.epoch, run.lifecycle), (2, Lifecycle::Live));
    assert_eq!((run.attempt.number, run.attempt.state, run.attempt.epoch), (2, AttemptState::Reserved, 2));
    assert_eq!(run.head.as_ref().unwrap().turn, 1);
    let end = run.past[0].end.clone().unwrap();
    assert_eq!((end.cause.as_str(), end.class, end.charged), ("Adopted", Class::Neutral, false));
    assert!(matches!(world.look_up(&new.object_uid).await.unwrap(), LookUp::NotFound { .. }));
    let adopted = world.work_on(&run).await;
    world.turn(&adopted, 2).await;
}

async fn adopting_again_returns_the_row(world: &World) {
    let new = new_run();
    world.work_on(&world.take_up(&new).await).await;
    let later = namesake(&new, OnPrior::Adopt);
    let first = world.take_up(&later).await;
    assert_eq!(still(world.take_up(&later).await), still(first));
}

async fn adoption_takes_the_new_objects_wishes(world: &World) {
    for (generation, observed) in [(1, 3), (5, 5)] {
        let new = NewRun { reset_generation: 3, ..new_run() };
        world.take_up(&new).await;
        let deadlines = Deadlines { heartbeat_ms: 1_001, start_ms: 1_002, progress_ms: 1_003 };
        let later = NewRun { reset_generation: generation, deadlines, ..namesake(&new, OnPrior::Adopt) };
        let run = world.take_up(&later).await;
        assert_eq!((run.deadlines, run.observed_reset_generation), (deadlines, observed));
    }
}

async fn an_adopted_runs_open_calls_are_unsettled(world: &World) {
    let new = new_run();
    let worker = world.work_on(&world.take_up(&new).await).await;
    world.start_call(&worker, "pay", Policy::Ask).await;
    let run = world.take_up(&namesake(&new, OnPrior::Adopt)).await;
    assert_eq!(run.calls.unsettled, [(Policy::Ask, 1)].into());
}

async fn a_held_run_is_adopted_with_a_fresh_attempt(world: &World) {
    let new = new_run();
    let run = world.take_up(&new).await;
    world.end_attempt(run.id, &ending(1, Class::Crash), &Then::Nothing).await.unwrap();
    let run = world.take_up(&namesake(&new, OnPrior::Adopt)).await;
    assert_eq!((run.epoch, run.attempt.number, run.attempt.state), (3, 2, AttemptState::Reserved));
    let end = run.past[0].end.clone().unwrap();
    assert_eq!((end.cause.as_str(), end.class), ("Evicted", Class::Crash), "what was ended stays as it was");
    assert_eq!(run.counters.recovery_attempts, 1);
}

async fn a_finished_run_is_adopted_and_stays_finished(world: &World) {
    let new = new_run();
    let worker = world.work_on(&world.take_up(&new).await).await;
    world.turn(&worker, 1).await;
    ok(world.finish(&worker.finish()).await.unwrap());
    let later = namesake(&new, OnPrior::Adopt);
    let run = world.take_up(&later).await;
    assert_eq!((run.id, &run.object_uid, run.lifecycle), (new.id, &later.object_uid, Lifecycle::Finished));
    assert_eq!((run.epoch, run.attempt.number), (2, 1), "fenced, and no further attempt");
    assert_eq!(run.finish.unwrap().reason, "GoalReached");
}

async fn a_run_of_another_tenant_is_not_adopted(world: &World) {
    let new = new_run();
    let before = world.take_up(&new).await;
    let stranger = NewRun { tenant: "tenant-2".into(), ..namesake(&new, OnPrior::Adopt) };
    let PriorRun { tenant, asked_by, .. } = prior(world, &stranger).await;
    assert_eq!((tenant.as_str(), asked_by.as_str()), ("tenant-1", "tenant-2"));
    assert_eq!(still(world.look(&new.object_uid).await), still(before));
}

async fn an_adopted_namespace_makes_its_runs_adoptable(world: &World) {
    let new = NewRun { tenant: "old-uid".into(), ..new_run() };
    let other = NewRun { tenant: "old-uid".into(), ..new_run() };
    let elsewhere = new_run();
    for run in [&new, &other, &elsewhere] {
        world.take_up(run).await;
    }
    assert_eq!(world.adopt_namespace("old-uid", "new-uid", "ada", "restored").await.unwrap(), 2);
    assert_eq!(world.adopt_namespace("old-uid", "new-uid", "ada", "restored").await.unwrap(), 0, "once");
    assert_eq!(world.adopt_namespace("new-uid", "new-uid", "ada", "restored").await.unwrap(), 0, "to itself");
    assert_eq!(world.look(&other.object_uid).await.tenant, "new-uid");
    assert_eq!(world.look(&elsewhere.object_uid).await.tenant, "tenant-1");
    let last = world.audit(new.id).await.unwrap().pop().unwrap();
    assert_eq!((last.kind.as_str(), last.actor.as_str()), ("namespace-adopted", "ada"));
    assert!(last.detail.contains("restored"), "{}", last.detail);
    let later = NewRun { tenant: "new-uid".into(), ..namesake(&new, OnPrior::Adopt) };
    assert_eq!(world.take_up(&later).await.id, new.id);
}

async fn an_ignored_run_is_abandoned_and_another_begins(world: &World) {
    let new = new_run();
    let worker = world.work_on(&world.take_up(&new).await).await;
    world.turn(&worker, 1).await;
    let stranger = NewRun { tenant: "tenant-2".into(), ..namesake(&new, OnPrior::Ignore) };
    let run = world.take_up(&stranger).await;
    assert_eq!((run.id, run.attempt.number, run.head.clone()), (stranger.id, 1, None));
    let old = world.look(&new.object_uid).await;
    assert_eq!((old.lifecycle, old.epoch, old.attempt.state), (Lifecycle::Abandoned, 2, AttemptState::Ended));
    assert_eq!(old.attempt.end.unwrap().cause, Cause::Abandoned);
    assert_eq!(still(world.take_up(&stranger).await), still(run));
    let ids: Vec<_> =
        world.find(&new.namespace, &new.name).await.unwrap().into_iter().map(|run| run.id).collect();
    assert_eq!(ids, [stranger.id, new.id], "people find both, the newest first");
    let third = namesake(&new, OnPrior::Hold);
    assert_eq!(prior(world, &third).await.id, stranger.id, "an abandoned run stands in nobody's way");
}
