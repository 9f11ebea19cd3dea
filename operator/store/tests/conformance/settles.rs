//! Calls whose outcome nobody knew, and somebody found out.

use dalsegno_protocol::{CallOutcome, CallState, Policy};
use dalsegno_store::{CallFilter, Class, Commit, Completed, Settle, SettledBy, Then};
use uuid::Uuid;

use crate::faces::on_every_face;
use crate::world::*;

on_every_face! {
    a_worker_settles_by_every_policy_but_ask,
    a_person_settles_by_any_policy,
    settling_again_is_a_duplicate_and_otherwise_a_conflict,
    a_held_run_is_settled_by_a_person,
    a_worker_settles_a_call_whose_claim_it_lost,
    a_person_leaves_the_calls_of_a_live_attempt_alone,
    a_call_that_was_never_claimed_is_nobodys_to_settle,
    a_run_that_is_over_is_settled_no_more,
    what_is_not_there_is_not_settled,
}

const POLICIES: [Policy; 4] = [Policy::RetrySameKey, Policy::Probe, Policy::Ask, Policy::ReadOnly];

async fn a_worker_settles_by_every_policy_but_ask(world: &World) {
    for policy in POLICIES {
        let worker = world.worker().await;
        world.start_call(&worker, "pay", policy).await;
        let worker = world.next(&worker).await;
        let answer = world.settle(&worker.settle("pay")).await.unwrap();
        let run = world.of(&worker).await;
        if policy == Policy::Ask {
            assert!(matches!(answer, Completed::Conflict(_)), "{answer:?}");
            assert_eq!(run.calls.unsettled, [(Policy::Ask, 1)].into());
        } else {
            assert!(matches!(answer, Completed::Ok), "{policy:?}: {answer:?}");
            assert!(run.calls.unsettled.is_empty());
            assert_eq!(run.calls.completed, 1);
        }
    }
}

async fn a_person_settles_by_any_policy(world: &World) {
    for policy in POLICIES {
        let worker = world.worker().await;
        world.start_call(&worker, "pay", policy).await;
        let worker = world.next(&worker).await;
        let failed =
            Settle { outcome: CallOutcome::Failed, result: None, ..person_settles(worker.run, "pay") };
        assert!(matches!(world.settle(&failed).await.unwrap(), Completed::Ok), "{policy:?}");
        let call = world.calls(worker.run, CallFilter::All).await.unwrap().remove(0);
        assert_eq!((call.state, call.result.is_none()), (CallState::Failed, true));
        let last = world.audit(worker.run).await.unwrap().pop().unwrap();
        assert_eq!((last.kind.as_str(), last.actor.as_str()), ("settled", "ada"));
        assert!(
            last.detail.contains("looked at the ledger") && last.detail.contains("pay"),
            "{}",
            last.detail
        );
    }
}

async fn settling_again_is_a_duplicate_and_otherwise_a_conflict(world: &World) {
    let worker = world.worker().await;
    world.start_call(&worker, "pay", Policy::Probe).await;
    let worker = world.next(&worker).await;
    let settle = worker.settle("pay");
    assert!(matches!(world.settle(&settle).await.unwrap(), Completed::Ok));
    let before = still(world.of(&worker).await);
    assert!(matches!(world.settle(&settle).await.unwrap(), Completed::Duplicate));
    assert!(matches!(world.settle(&person_settles(worker.run, "pay")).await.unwrap(), Completed::Duplicate));
    for other in [
        Settle { outcome: CallOutcome::Failed, ..worker.settle("pay") },
        Settle { result: None, ..worker.settle("pay") },
        Settle { outcome: CallOutcome::Failed, ..person_settles(worker.run, "pay") },
    ] {
        let answer = world.settle(&other).await.unwrap();
        assert!(matches!(answer, Completed::Conflict(_)), "{answer:?}");
    }
    assert_eq!(still(world.of(&worker).await), before);
}

async fn a_held_run_is_settled_by_a_person(world: &World) {
    let worker = world.worker().await;
    world.start_call(&worker, "pay", Policy::Ask).await;
    world.end_attempt(worker.run, &ending(1, Class::Crash), &Then::Nothing).await.unwrap();
    assert!(matches!(world.settle(&person_settles(worker.run, "pay")).await.unwrap(), Completed::Ok));
    let run = world.of(&worker).await;
    assert!(run.calls.unsettled.is_empty());
    assert_eq!(run.calls.completed, 1);
}

async fn a_worker_settles_a_call_whose_claim_it_lost(world: &World) {
    let worker = world.worker().await;
    world.start_call(&worker, "pay", Policy::Probe).await;
    assert!(matches!(world.settle(&worker.settle("pay")).await.unwrap(), Completed::Ok));
    let run = world.of(&worker).await;
    assert!(run.calls.unsettled.is_empty());
    assert_eq!(run.calls.completed, 1);
}

async fn a_person_leaves_the_calls_of_a_live_attempt_alone(world: &World) {
    let worker = world.worker().await;
    let claim = world.start_call(&worker, "pay", Policy::Ask).await;
    let answer = world.settle(&person_settles(worker.run, "pay")).await.unwrap();
    assert!(matches!(answer, Completed::Conflict(_)), "{answer:?}");
    assert!(matches!(world.complete(&worker.complete(&claim)).await.unwrap(), Completed::Ok));
}

async fn a_call_that_was_never_claimed_is_nobodys_to_settle(world: &World) {
    let worker = world.worker().await;
    ok(world.commit(&Commit { calls: vec![planned("pay", Policy::Probe)], ..worker.plan(1) }).await.unwrap());
    let worker = world.next(&worker).await;
    for settle in [worker.settle("pay"), person_settles(worker.run, "pay")] {
        let answer = world.settle(&settle).await.unwrap();
        assert!(matches!(answer, Completed::Conflict(_)), "{answer:?}");
    }
}

async fn a_run_that_is_over_is_settled_no_more(world: &World) {
    let worker = world.worker().await;
    world.start_call(&worker, "pay", Policy::ReadOnly).await;
    let worker = world.next(&worker).await;
    ok(world.finish(&worker.finish()).await.unwrap());
    for settle in [worker.settle("pay"), person_settles(worker.run, "pay")] {
        let answer = world.settle(&settle).await.unwrap();
        assert!(matches!(answer, Completed::Finished), "{answer:?}");
    }
    world.mark_deleted(&worker.object_uid).await.unwrap();
    let answer = world.settle(&person_settles(worker.run, "pay")).await.unwrap();
    assert!(matches!(answer, Completed::Finished), "{answer:?}");
}

async fn what_is_not_there_is_not_settled(world: &World) {
    let worker = world.worker().await;
    for settle in [worker.settle("nothing"), person_settles(worker.run, "nothing")] {
        assert!(matches!(world.settle(&settle).await.unwrap(), Completed::NoSuchCall));
    }
    let nowhere = person_settles(Uuid::now_v7(), "nothing");
    assert!(matches!(world.settle(&nowhere).await.unwrap(), Completed::NotFound));
    let stranger = Settle { by: SettledBy::Worker(random()), ..worker.settle("nothing") };
    assert!(matches!(world.settle(&stranger).await.unwrap(), Completed::Fenced));
}
