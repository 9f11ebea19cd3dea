//! The charge of an attempt that has ended is taken back.

use dalsegno_model::audit::kind;
use dalsegno_model::{Cause, Class, Forgiveness, Lifecycle, NextStep, RunRecord};

use crate::context::*;
use crate::engines::on_every_engine;

on_every_engine! {
    a_forgiven_crash_counts_as_a_disruption_and_only_once,
    the_counters_are_as_if_the_end_had_been_a_disruption,
    an_end_that_was_not_charged_or_that_a_budget_forgave_is_not_changed,
    the_end_of_a_finished_run_is_not_changed,
}

fn node_lost(attempt: i32) -> Forgiveness {
    Forgiveness { attempt, cause: Cause::NodeLost, message: "the node was lost".into() }
}

fn counters(run: &RunRecord) -> (i32, i32, i32, i32) {
    let it = run.counters;
    (it.recovery_attempts, it.attempts_without_progress, it.disruptions, it.disruptions_without_progress)
}

async fn a_forgiven_crash_counts_as_a_disruption_and_only_once(cx: &TestContext) {
    let run = cx.run().await;
    let before = cx.end_and_reserve(&cx.start_worker(&run).await, Class::Crash).await;
    assert_eq!(counters(&before), (1, 1, 0, 0));
    let next = cx.start_worker(&before).await;
    let after = cx.forgive_end(run.id, &node_lost(1)).await.unwrap();
    assert_eq!(counters(&after), (0, 0, 1, 1));
    let end = after.past[0].end.clone().unwrap();
    assert_eq!((end.cause, end.class, end.charged), (Cause::NodeLost, Class::Disruption, false));
    assert_eq!((end.message.as_str(), end.exit_code), ("the node was lost", Some(137)));
    assert_eq!((after.epoch, after.attempt.number), (before.epoch, 2));
    cx.commit_turn(&next, 1).await;
    let again = cx.forgive_end(run.id, &node_lost(1)).await.unwrap();
    assert_eq!(counters(&again), (0, 0, 1, 1), "it was forgiven already");
    let audit = cx.audit(run.id).await.unwrap();
    assert_eq!(audit.iter().filter(|it| it.kind == kind::FORGIVEN).count(), 1, "{audit:?}");
    cx.assert_audit_is_valid(run.id).await;
}

async fn the_counters_are_as_if_the_end_had_been_a_disruption(cx: &TestContext) {
    use Class::{Crash, CrashWithoutProgress, Disruption, Neutral};
    // The class of three ends, and whether each attempt commits a turn.
    let table = [
        [(Crash, false), (Crash, false), (Crash, false)],
        [(Crash, false), (Crash, true), (Disruption, false)],
        [(CrashWithoutProgress, false), (Crash, true), (Crash, false)],
        [(Crash, true), (Disruption, false), (Neutral, false)],
        [(Crash, true), (Crash, true), (Crash, true)],
    ];
    for ends in table {
        for forgiven in 0..3_usize {
            if !matches!(ends[forgiven].0, Crash | CrashWithoutProgress) {
                continue;
            }
            let play = async |forgives: bool| {
                let (mut run, mut turn) = (cx.run().await, 0);
                for (number, (class, progress)) in ends.into_iter().enumerate() {
                    let worker = cx.start_worker(&run).await;
                    if progress {
                        turn += 1;
                        cx.commit_turn(&worker, turn).await;
                    }
                    let is_disruption = number == forgiven && !forgives;
                    run = cx.end_and_reserve(&worker, if is_disruption { Disruption } else { class }).await;
                }
                let number = i32::try_from(forgiven).unwrap() + 1;
                if forgives { cx.forgive_end(run.id, &node_lost(number)).await.unwrap() } else { run }
            };
            let (forgiven_later, disrupted) = (play(true).await, play(false).await);
            assert_eq!(counters(&forgiven_later), counters(&disrupted), "{ends:?}, attempt {}", forgiven + 1);
        }
    }
}

async fn an_end_that_was_not_charged_or_that_a_budget_forgave_is_not_changed(cx: &TestContext) {
    let run = cx.run().await;
    let run = cx.end_and_reserve(&cx.start_worker(&run).await, Class::Disruption).await;
    let before = cx.end_and_reserve(&cx.start_worker(&run).await, Class::Crash).await;
    for number in [1, 3, 99] {
        let after = cx.forgive_end(run.id, &node_lost(number)).await.unwrap();
        assert_eq!(without_times(after), without_times(before.clone()), "attempt {number}");
    }
    let before = cx.reset_budget(run.id, 0, 1).await.unwrap();
    let after = cx.forgive_end(run.id, &node_lost(2)).await.unwrap();
    assert_eq!(without_times(after), without_times(before));
}

async fn the_end_of_a_finished_run_is_not_changed(cx: &TestContext) {
    let worker = cx.worker().await;
    let then = NextStep::Finish(succeeded());
    let before = cx.end_attempt(worker.run, &ending(1, Class::Crash), &then).await.unwrap();
    assert_eq!(before.lifecycle, Lifecycle::Finished);
    let after = cx.forgive_end(worker.run, &node_lost(1)).await.unwrap();
    assert_eq!(without_times(after), without_times(before));
}
