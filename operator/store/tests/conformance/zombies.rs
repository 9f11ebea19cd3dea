//! A worker whose attempt has ended writes nothing, whatever it tries and however late.

use dalsegno_protocol::Policy;
use dalsegno_store::{Acknowledged, Attached, Beat, Claimed, Class, Committed, Completed, OnPrior, Then};

use crate::faces::on_every_face;
use crate::world::*;

on_every_face! {
    after_a_replacement_every_write_is_fenced,
    after_an_end_without_a_successor_every_write_is_fenced,
    after_the_operators_finish_every_write_is_fenced,
    after_deletion_every_write_is_fenced,
    after_abandonment_every_write_is_fenced,
    after_adoption_every_write_is_fenced,
    after_an_acknowledged_cancel_every_write_is_fenced,
}

/// A worker with a turn, a claim and a completed call behind it.
async fn seasoned(world: &World, new: &dalsegno_store::NewRun) -> Worker {
    let worker = world.work_on(&world.take_up(new).await).await;
    world.heartbeats(&[(worker.run, worker.capability)]).await.unwrap();
    world.turn(&worker, 1).await;
    world.start_call(&worker, "open", Policy::RetrySameKey).await;
    worker
}

/// Every write that a worker can make, and that none of them leaves a trace.
async fn assert_fenced(world: &World, zombie: &Worker) {
    let before = still(world.find_run(zombie).await);
    let calls = world.call_ids(zombie.run, dalsegno_store::CallFilter::All).await;
    let audit = world.audit(zombie.run).await.unwrap();

    for commit in [zombie.plan(2), zombie.result(2), zombie.result(1)] {
        assert_eq!(world.commit(&commit).await.unwrap(), Committed::Fenced { committed: false });
    }
    assert_eq!(world.finish(&zombie.finish()).await.unwrap(), Committed::Fenced { committed: false });
    let beats = world.heartbeats(&[(zombie.run, zombie.capability)]).await.unwrap();
    assert_eq!(beats, [Beat::Fenced]);
    for id in ["open", "new"] {
        let claimed = world.claim(&zombie.claim(id, Policy::RetrySameKey)).await.unwrap();
        assert!(matches!(claimed, Claimed::Fenced), "{claimed:?}");
        let claim = zombie.claim(id, Policy::RetrySameKey);
        let completed = world.complete(&zombie.complete(&claim)).await.unwrap();
        assert!(matches!(completed, Completed::Fenced), "{completed:?}");
        let settled = world.settle(&zombie.settle(id)).await.unwrap();
        assert!(matches!(settled, Completed::Fenced), "{settled:?}");
    }
    let attached = world.attach(zombie.run, &zombie.pod_uid, &zombie.capability).await.unwrap();
    assert!(!matches!(attached, Attached::Ok(_) | Attached::Spent), "{attached:?}");
    assert!(!world.is_current(zombie.run, &zombie.capability).await.unwrap());

    assert_eq!(still(world.find_run(zombie).await), before);
    assert_eq!(world.call_ids(zombie.run, dalsegno_store::CallFilter::All).await, calls);
    assert_eq!(world.audit(zombie.run).await.unwrap(), audit);
}

impl World {
    /// The run by its id, whoever owns it now.
    async fn find_run(&self, worker: &Worker) -> dalsegno_store::RunRecord {
        let name = format!("run-{}", worker.run);
        let found = self.find("agents", &name).await.unwrap();
        found.into_iter().find(|run| run.id == worker.run).unwrap()
    }
}

async fn after_a_replacement_every_write_is_fenced(world: &World) {
    let zombie = seasoned(world, &new_run()).await;
    let run = world.lose(&zombie, Class::Disruption).await;
    assert_fenced(world, &zombie).await;
    let next = world.work_on(&run).await;
    assert_fenced(world, &zombie).await;
    world.start_call(&next, "open", Policy::RetrySameKey).await;
    world.turn(&next, 2).await;
    assert_eq!(world.acknowledge_cancel(zombie.run, &zombie.capability).await.unwrap(), Acknowledged::Fenced);
}

async fn after_an_end_without_a_successor_every_write_is_fenced(world: &World) {
    let zombie = seasoned(world, &new_run()).await;
    world.end_attempt(zombie.run, &ending(1, Class::Crash), &Then::Nothing).await.unwrap();
    assert_fenced(world, &zombie).await;
}

async fn after_the_operators_finish_every_write_is_fenced(world: &World) {
    let zombie = seasoned(world, &new_run()).await;
    let over = Then::Finish(succeeded());
    world.end_attempt(zombie.run, &ending(1, Class::Crash), &over).await.unwrap();
    assert_fenced(world, &zombie).await;
}

async fn after_deletion_every_write_is_fenced(world: &World) {
    let zombie = seasoned(world, &new_run()).await;
    world.mark_deleted(&zombie.object_uid).await.unwrap();
    assert_fenced(world, &zombie).await;
}

async fn after_abandonment_every_write_is_fenced(world: &World) {
    let new = new_run();
    let zombie = seasoned(world, &new).await;
    world.take_up(&namesake(&new, OnPrior::Ignore)).await;
    assert_fenced(world, &zombie).await;
}

async fn after_adoption_every_write_is_fenced(world: &World) {
    let new = new_run();
    let zombie = seasoned(world, &new).await;
    world.take_up(&namesake(&new, OnPrior::Adopt)).await;
    assert_fenced(world, &zombie).await;
}

async fn after_an_acknowledged_cancel_every_write_is_fenced(world: &World) {
    let zombie = seasoned(world, &new_run()).await;
    world.request_cancel(zombie.run).await.unwrap();
    let acknowledged = world.acknowledge_cancel(zombie.run, &zombie.capability).await.unwrap();
    assert_eq!(acknowledged, Acknowledged::Cancelled);
    assert_fenced(world, &zombie).await;
}
