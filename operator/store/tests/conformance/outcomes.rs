//! Tool calls after their effect: results that are known, and those that nobody knows.

use dalsegno_protocol::{CompleteOutcome, Policy};
use dalsegno_store::{CallFilter, Claimed, Class, Commit, Committed, Complete, Completed, Then};
use uuid::Uuid;

use crate::faces::on_every_face;
use crate::world::*;

on_every_face! {
    a_call_completes_once,
    a_call_completes_only_under_its_claim,
    completed_calls_of_the_open_turn_are_listed,
    unsettled_calls_are_counted_and_listed_from_the_end_of_their_attempt,
    unsettled_calls_stop_commits_but_not_those_that_change_nothing,
    taking_a_call_over_unblocks_commits,
}

const POLICIES: [Policy; 4] = [Policy::RetrySameKey, Policy::Probe, Policy::Ask, Policy::ReadOnly];

async fn a_call_completes_once(world: &World) {
    let worker = world.worker().await;
    let claim = world.start_call(&worker, "pay", Policy::Probe).await;
    let complete = worker.complete(&claim);
    assert!(matches!(world.complete(&complete).await.unwrap(), Completed::Ok));
    assert!(matches!(world.complete(&complete).await.unwrap(), Completed::Duplicate));
    for other in [
        Complete { outcome: CompleteOutcome::Failed, ..worker.complete(&claim) },
        Complete { result: Some(json("2")), ..worker.complete(&claim) },
        Complete { result: None, ..worker.complete(&claim) },
    ] {
        let answer = world.complete(&other).await.unwrap();
        assert!(matches!(answer, Completed::Conflict(_)), "{answer:?}");
    }
    assert_eq!(world.of(&worker).await.calls.completed, 1);
    let failed = world.start_call(&worker, "ship", Policy::Probe).await;
    let failing = Complete { outcome: CompleteOutcome::Failed, result: None, ..worker.complete(&failed) };
    assert!(matches!(world.complete(&failing).await.unwrap(), Completed::Ok));
    assert!(matches!(world.complete(&failing).await.unwrap(), Completed::Duplicate));
    assert_eq!(world.of(&worker).await.calls.completed, 2, "a failed call's outcome is known, too");
    ok(world.finish(&worker.finish()).await.unwrap());
    assert!(matches!(world.complete(&complete).await.unwrap(), Completed::Duplicate), "also after the end");
}

async fn a_call_completes_only_under_its_claim(world: &World) {
    let worker = world.worker().await;
    ok(world
        .commit(&Commit { calls: vec![planned("planned", Policy::Probe)], ..worker.plan(1) })
        .await
        .unwrap());
    let claim = world.start_call(&worker, "pay", Policy::Probe).await;
    let other_claim = Complete { claim_id: Uuid::new_v4(), ..worker.complete(&claim) };
    let answer = world.complete(&other_claim).await.unwrap();
    assert!(matches!(answer, Completed::Conflict(_)), "{answer:?}");
    let never_claimed = Complete { id: "planned".into(), ..worker.complete(&claim) };
    let answer = world.complete(&never_claimed).await.unwrap();
    assert!(matches!(answer, Completed::Conflict(_)), "{answer:?}");
    let unknown = Complete { id: "nothing".into(), ..worker.complete(&claim) };
    let answer = world.complete(&unknown).await.unwrap();
    assert!(matches!(answer, Completed::NoSuchCall), "{answer:?}");
    let nowhere = Complete { run: Uuid::now_v7(), ..worker.complete(&claim) };
    let answer = world.complete(&nowhere).await.unwrap();
    assert!(matches!(answer, Completed::NotFound), "{answer:?}");
    let stranger = Complete { capability: random(), ..worker.complete(&claim) };
    let answer = world.complete(&stranger).await.unwrap();
    assert!(matches!(answer, Completed::Fenced), "{answer:?}");
    let later = world.next(&worker).await;
    let answer = world.complete(&later.complete(&claim)).await.unwrap();
    assert!(matches!(answer, Completed::Conflict(_)), "a claim of an attempt that is over: {answer:?}");
    assert_eq!(world.of(&worker).await.calls.completed, 0);
}

async fn completed_calls_of_the_open_turn_are_listed(world: &World) {
    let worker = world.worker().await;
    let old = world.start_call(&worker, "old", Policy::Probe).await;
    world.complete(&worker.complete(&old)).await.unwrap();
    assert_eq!(world.call_ids(worker.run, CallFilter::OpenTurn).await, ["old"]);
    world.turn(&worker, 1).await;
    assert!(world.call_ids(worker.run, CallFilter::OpenTurn).await.is_empty());
    ok(world
        .commit(&Commit { calls: vec![planned("planned", Policy::Probe)], ..worker.plan(2) })
        .await
        .unwrap());
    let done = world.start_call(&worker, "done", Policy::Probe).await;
    world.complete(&worker.complete(&done)).await.unwrap();
    let failed = world.start_call(&worker, "failed", Policy::Probe).await;
    world.complete(&Complete { outcome: CompleteOutcome::Failed, ..worker.complete(&failed) }).await.unwrap();
    world.start_call(&worker, "started", Policy::Probe).await;
    assert_eq!(world.call_ids(worker.run, CallFilter::OpenTurn).await, ["done", "failed"]);
    world.next(&worker).await;
    assert_eq!(
        world.call_ids(worker.run, CallFilter::OpenTurn).await,
        ["done", "failed"],
        "for the next attempt"
    );
}

async fn unsettled_calls_are_counted_and_listed_from_the_end_of_their_attempt(world: &World) {
    let worker = world.worker().await;
    for (id, policy) in
        [("a", Policy::Ask), ("b", Policy::Probe), ("c", Policy::Ask), ("d", Policy::ReadOnly)]
    {
        world.start_call(&worker, id, policy).await;
    }
    let done = world.start_call(&worker, "e", Policy::RetrySameKey).await;
    world.complete(&worker.complete(&done)).await.unwrap();
    assert!(world.of(&worker).await.calls.unsettled.is_empty(), "they are this attempt's");
    assert!(world.call_ids(worker.run, CallFilter::Unsettled).await.is_empty());
    let held = world.end_attempt(worker.run, &ending(1, Class::Crash), &Then::Nothing).await.unwrap();
    let expected = [(Policy::Probe, 1), (Policy::Ask, 2), (Policy::ReadOnly, 1)].into();
    assert_eq!(held.calls.unsettled, expected);
    assert_eq!(world.call_ids(worker.run, CallFilter::Unsettled).await, ["a", "b", "c", "d"]);
    let run = world.end_attempt(worker.run, &ending(1, Class::Crash), &Then::Reserve).await.unwrap();
    assert_eq!(run.calls.unsettled, expected);
    assert_eq!(world.call_ids(worker.run, CallFilter::Unsettled).await, ["a", "b", "c", "d"]);
}

async fn unsettled_calls_stop_commits_but_not_those_that_change_nothing(world: &World) {
    for policy in POLICIES {
        let worker = world.worker().await;
        world.start_call(&worker, "pay", policy).await;
        ok(world.commit(&worker.plan(1)).await.unwrap());
        let worker = world.next(&worker).await;
        let answer = world.commit(&worker.result(1)).await.unwrap();
        match policy {
            Policy::ReadOnly => assert!(matches!(answer, Committed::Ok(_)), "{answer:?}"),
            _ => {
                assert_eq!(answer, Committed::UnsettledCalls, "{policy:?}");
                world.settle(&person_settles(worker.run, "pay")).await.unwrap();
                world.turn(&worker, 1).await;
            }
        }
    }
}

async fn taking_a_call_over_unblocks_commits(world: &World) {
    let worker = world.worker().await;
    world.start_call(&worker, "pay", Policy::RetrySameKey).await;
    let worker = world.next(&worker).await;
    let claim = worker.claim("pay", Policy::RetrySameKey);
    for _ in 0..2 {
        assert!(matches!(world.claim(&claim).await.unwrap(), Claimed::Go(_)));
        assert!(world.of(&worker).await.calls.unsettled.is_empty(), "counted down once");
    }
    world.turn(&worker, 1).await;
    let run = world.lose(&worker, Class::Crash).await;
    assert_eq!(
        run.calls.unsettled,
        [(Policy::RetrySameKey, 1)].into(),
        "unsettled again with its attempt's end"
    );
}
