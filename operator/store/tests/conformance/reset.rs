//! Fresh budgets and new deadlines.

use dalsegno_store::{Class, Counters, Deadlines};

use crate::faces::on_every_face;
use crate::world::*;

on_every_face! {
    a_fresh_budget_forgives_the_past_and_keeps_the_totals,
    a_budget_is_granted_once,
    a_lower_generation_grants_nothing,
    new_deadlines_are_obeyed_at_once,
}

async fn a_fresh_budget_forgives_the_past_and_keeps_the_totals(world: &World) {
    let run = world.run().await;
    let run = world.lose(&world.work_on(&run).await, Class::Crash).await;
    let run = world.lose(&world.work_on(&run).await, Class::Disruption).await;
    let after = world.reset_budget(run.id, 0, 4).await.unwrap();
    let expected = Counters {
        recovery_attempts: 1,
        recovery_attempts_base: 1,
        attempts_without_progress: 0,
        disruptions: 1,
        disruptions_base: 1,
        disruptions_without_progress: 0,
    };
    assert_eq!(after.counters, expected);
    assert_eq!((after.observed_reset_generation, after.reset_attempt), (4, 2));
    assert_eq!((after.epoch, after.attempt.number), (run.epoch, 3), "a budget moves nothing else");
}

async fn a_budget_is_granted_once(world: &World) {
    let run = world.run().await;
    let run = world.lose(&world.work_on(&run).await, Class::Crash).await;
    world.reset_budget(run.id, 0, 1).await.unwrap();
    let run = world.lose(&world.work_on(&run).await, Class::Crash).await;
    let again = world.reset_budget(run.id, 0, 1).await.unwrap();
    assert_eq!(still(again), still(run), "the second call finds another generation there");
}

async fn a_lower_generation_grants_nothing(world: &World) {
    let new = dalsegno_store::NewRun { reset_generation: 5, ..new_run() };
    let before = world.take_up(&new).await;
    for to in [4, 5] {
        assert_eq!(still(world.reset_budget(before.id, 5, to).await.unwrap()), still(before.clone()));
    }
}

async fn new_deadlines_are_obeyed_at_once(world: &World) {
    let worker = world.worker().await;
    let deadlines = Deadlines { heartbeat_ms: 7_000, start_ms: 8_000, progress_ms: 9_000 };
    let run = world.set_deadlines(worker.run, &deadlines).await.unwrap();
    assert_eq!(run.deadlines, deadlines);
    assert_eq!(world.turn(&worker, 1).await.asked.lease_ms, 7_000);
    assert_eq!(
        still(world.set_deadlines(worker.run, &deadlines).await.unwrap()),
        still(world.of(&worker).await)
    );
}
