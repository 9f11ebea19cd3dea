//! Fresh recovery budgets and changed deadlines.

use dalsegno_model::{Class, Counters, Deadlines};

use crate::context::*;
use crate::engines::on_every_engine;

on_every_engine! {
    a_fresh_budget_resets_the_counters_and_keeps_the_totals,
    a_budget_is_granted_once,
    a_lower_generation_grants_nothing,
    new_deadlines_apply_at_once,
}

async fn a_fresh_budget_resets_the_counters_and_keeps_the_totals(cx: &TestContext) {
    let run = cx.run().await;
    let run = cx.end_and_reserve(&cx.start_worker(&run).await, Class::Crash).await;
    let run = cx.end_and_reserve(&cx.start_worker(&run).await, Class::Disruption).await;
    let after = cx.reset_budget(run.id, 0, 4).await.unwrap();
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
    assert_eq!((after.epoch, after.attempt.number), (run.epoch, 3), "nothing else changes");
}

async fn a_budget_is_granted_once(cx: &TestContext) {
    let run = cx.run().await;
    let run = cx.end_and_reserve(&cx.start_worker(&run).await, Class::Crash).await;
    cx.reset_budget(run.id, 0, 1).await.unwrap();
    let run = cx.end_and_reserve(&cx.start_worker(&run).await, Class::Crash).await;
    let again = cx.reset_budget(run.id, 0, 1).await.unwrap();
    assert_eq!(without_times(again), without_times(run), "the second call finds a newer generation");
}

async fn a_lower_generation_grants_nothing(cx: &TestContext) {
    let new = dalsegno_model::NewRun { reset_generation: 5, ..new_run() };
    let before = cx.create(&new).await;
    for to in [4, 5] {
        assert_eq!(
            without_times(cx.reset_budget(before.id, 5, to).await.unwrap()),
            without_times(before.clone())
        );
    }
}

async fn new_deadlines_apply_at_once(cx: &TestContext) {
    let worker = cx.worker().await;
    let deadlines = Deadlines { heartbeat_ms: 7_000, start_ms: 8_000, progress_ms: 9_000, suspend_ms: 9_000 };
    let run = cx.set_deadlines(worker.run, &deadlines).await.unwrap();
    assert_eq!(run.deadlines, deadlines);
    assert_eq!(cx.commit_turn(&worker, 1).await.signals.lease_ms, 7_000);
    assert_eq!(
        without_times(cx.set_deadlines(worker.run, &deadlines).await.unwrap()),
        without_times(cx.run_of(&worker).await)
    );
}
