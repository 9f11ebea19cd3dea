//! One query for all runs: what changed since the last one.

use dalsegno_protocol::Policy;
use dalsegno_store::Class;
use jiff::Timestamp;

use crate::faces::on_every_face;
use crate::world::*;

on_every_face! {
    the_pulse_tells_the_stores_clock_id_and_active_runs,
    transitions_of_workers_are_told_from_moved_heads,
    what_did_not_change_is_not_listed,
}

/// What the pulse says of this run since then: `Some(true)` a transition, `Some(false)` its head moved.
async fn changed(world: &World, worker: &Worker, since: Timestamp) -> Option<bool> {
    let pulse = world.pulse(since).await.unwrap();
    let mine: Vec<_> =
        pulse.changed.iter().filter(|changed| changed.object.uid == worker.object_uid).collect();
    assert!(mine.len() <= 1, "{mine:?}");
    mine.first().map(|changed| changed.transition)
}

/// A time after all that has happened.
async fn mark(world: &World) -> Timestamp {
    pause(5).await;
    let now = world.pulse(Timestamp::now()).await.unwrap().now;
    pause(5).await;
    now
}

async fn the_pulse_tells_the_stores_clock_id_and_active_runs(world: &World) {
    let before = world.pulse(Timestamp::UNIX_EPOCH).await.unwrap();
    assert_eq!(before.store_id, world.id().await.unwrap());
    assert_eq!((before.active, before.changed.len(), before.expired.len()), (0, 0, 0));
    world.run().await;
    let worker = world.worker().await;
    let over = world.worker().await;
    ok(world.finish(&over.finish()).await.unwrap());
    let after = world.pulse(Timestamp::UNIX_EPOCH).await.unwrap();
    assert_eq!(after.active, 1);
    assert!(after.now >= before.now);
    world.lose(&worker, Class::Disruption).await;
    assert_eq!(world.pulse(Timestamp::UNIX_EPOCH).await.unwrap().active, 0);
}

async fn transitions_of_workers_are_told_from_moved_heads(world: &World) {
    let worker = world.worker().await;
    assert_eq!(changed(world, &worker, Timestamp::UNIX_EPOCH).await, Some(true), "attached");

    let since = mark(world).await;
    world.turn(&worker, 1).await;
    assert_eq!(changed(world, &worker, since).await, Some(false), "only its head moved");

    let since = mark(world).await;
    world.attach(worker.run, &worker.pod_uid, &random()).await.unwrap();
    assert_eq!(changed(world, &worker, since).await, Some(true), "spent");

    world.start_call(&worker, "pay", Policy::Ask).await;
    let worker = world.next(&worker).await;
    let since = mark(world).await;
    world.settle(&person_settles(worker.run, "pay")).await.unwrap();
    assert_eq!(changed(world, &worker, since).await, Some(true), "settled");

    let since = mark(world).await;
    ok(world.finish(&worker.finish()).await.unwrap());
    assert_eq!(changed(world, &worker, since).await, Some(true), "finished");

    let worker = world.worker().await;
    world.request_cancel(worker.run).await.unwrap();
    let since = mark(world).await;
    world.acknowledge_cancel(worker.run, &worker.capability).await.unwrap();
    assert_eq!(changed(world, &worker, since).await, Some(true), "cancelled");

    let worker = world.worker().await;
    let since = mark(world).await;
    let last = dalsegno_store::Commit { finish: Some(succeeded()), ..worker.result(1) };
    ok(world.commit(&last).await.unwrap());
    assert_eq!(changed(world, &worker, since).await, Some(true), "finished with a boundary");
}

async fn what_did_not_change_is_not_listed(world: &World) {
    let worker = world.worker().await;
    let commit = worker.result(1);
    ok(world.commit(&commit).await.unwrap());
    let since = mark(world).await;
    world.commit(&commit).await.unwrap();
    world.commit(&remade(&commit)).await.unwrap();
    world.heartbeats(&[(worker.run, worker.capability)]).await.unwrap();
    attached(world.attach(worker.run, &worker.pod_uid, &worker.capability).await.unwrap());
    assert_eq!(changed(world, &worker, since).await, None);
}
