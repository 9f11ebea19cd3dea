//! Tools that refuse a call's key: recorded, in the way of every boundary, and a person's to settle.

use dalsegno_protocol::{CallState, CompleteOutcome, Policy};
use dalsegno_store::{CallFilter, Claimed, Class, Committed, Complete, Completed, RecordBatch, Written};
use uuid::Uuid;

use crate::faces::on_every_face;
use crate::world::*;

on_every_face! {
    a_refused_key_is_recorded_and_told_in_the_audit,
    nothing_is_committed_until_a_person_has_settled_it,
    a_refused_key_outlives_its_attempt,
    a_call_whose_key_was_refused_is_nobody_elses_to_end,
}

/// A call that is started, and what its tool says of the key.
async fn refused(world: &World, worker: &Worker, policy: Policy) -> Complete {
    let claim = world.start_call(worker, "pay", policy).await;
    let result = Some(json(r#"{"status":  422}"#));
    Complete { outcome: CompleteOutcome::KeyRefused, result, ..worker.complete(&claim) }
}

async fn keys_refused(world: &World, worker: &Worker) -> i64 {
    world.of(worker).await.calls.keys_refused
}

async fn a_refused_key_is_recorded_and_told_in_the_audit(world: &World) {
    let worker = world.worker().await;
    let refused = refused(world, &worker, Policy::RetrySameKey).await;
    assert!(matches!(world.complete(&refused).await.unwrap(), Completed::Ok));
    let call = world.calls(worker.run, CallFilter::All).await.unwrap().remove(0);
    assert_eq!(call.state, CallState::KeyRefused);
    assert_eq!(call.result.unwrap().get(), r#"{"status":  422}"#);
    let run = world.of(&worker).await;
    assert_eq!((run.calls.keys_refused, run.calls.completed), (1, 0));
    let rows = world.audit(worker.run).await.unwrap();
    let last = rows.last().unwrap();
    assert_eq!((last.kind.as_str(), last.actor.as_str()), ("key-refused", "worker"));
    assert!(last.detail.contains("pay") && !last.detail.contains("key-of-pay"), "{}", last.detail);
    world.proves_itself(worker.run).await;
    assert!(matches!(world.complete(&refused).await.unwrap(), Completed::Duplicate));
    assert_eq!(still(world.of(&worker).await), still(run), "and its retry changes nothing");
    assert!(matches!(
        world.claim(&worker.claim("pay", Policy::RetrySameKey)).await.unwrap(),
        Claimed::Uncertain(_)
    ));
}

async fn nothing_is_committed_until_a_person_has_settled_it(world: &World) {
    for policy in [Policy::RetrySameKey, Policy::ReadOnly] {
        let worker = world.worker().await;
        world.complete(&refused(world, &worker, policy).await).await.unwrap();
        assert_eq!(world.commit(&worker.result(1)).await.unwrap(), Committed::UnsettledCalls);
        assert_eq!(world.finish(&worker.finish()).await.unwrap(), Committed::UnsettledCalls);
        let (run, capability) = (worker.run, worker.capability);
        let operations = Vec::new();
        let batch = RecordBatch { run, capability, batch_id: Uuid::new_v4(), digest: random(), operations };
        assert!(matches!(world.write_records(&batch).await.unwrap(), Written::UnsettledCalls));
        assert!(matches!(world.settle(&person_settles(worker.run, "pay")).await.unwrap(), Completed::Ok));
        assert_eq!(keys_refused(world, &worker).await, 0);
        world.turn(&worker, 1).await;
    }
}

async fn a_refused_key_outlives_its_attempt(world: &World) {
    let worker = world.worker().await;
    world.complete(&refused(world, &worker, Policy::Probe).await).await.unwrap();
    let run = world.lose(&worker, Class::Neutral).await;
    assert_eq!((run.calls.keys_refused, run.calls.unsettled), (1, [(Policy::Probe, 1)].into()));
    assert!(matches!(world.settle(&person_settles(worker.run, "pay")).await.unwrap(), Completed::Ok));
    let run = world.of(&worker).await;
    assert_eq!((run.calls.keys_refused, run.calls.unsettled.len(), run.calls.completed), (0, 0, 1));
    let worker = world.work_on(&run).await;
    let Claimed::Done(call) = world.claim(&worker.claim("pay", Policy::Probe)).await.unwrap() else {
        panic!()
    };
    assert_eq!((call.state, call.result.unwrap().get()), (CallState::Completed, r#"{"found":  1}"#));
}

async fn a_call_whose_key_was_refused_is_nobody_elses_to_end(world: &World) {
    let worker = world.worker().await;
    let refused = refused(world, &worker, Policy::Probe).await;
    world.complete(&refused).await.unwrap();
    let other = Complete { outcome: CompleteOutcome::Completed, ..refused };
    let Completed::Conflict(why) = world.complete(&other).await.unwrap() else { panic!() };
    assert!(why.contains("only a person"), "{why}");
    let Completed::Conflict(why) = world.settle(&worker.settle("pay")).await.unwrap() else { panic!() };
    assert!(why.contains("only a person"), "{why}");
    assert_eq!(keys_refused(world, &worker).await, 1);
}
