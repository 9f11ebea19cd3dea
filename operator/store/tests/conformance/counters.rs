//! How the end of an attempt is counted. The cases follow the table of `Class`.

use dalsegno_model::{AttemptState, Class, Completed, Counters, Lifecycle, NextStep, RunOutcome};
use dalsegno_protocol::Policy;

use crate::context::*;
use crate::engines::on_every_engine;

on_every_engine! {
    every_row_of_the_class_table_is_counted_as_documented,
    progress_is_a_new_highest_turn,
    progress_is_a_newly_completed_call,
    progress_counts_for_its_own_attempt_only,
    a_plan_of_a_new_turn_is_progress_and_its_result_is_not,
    a_settled_call_is_progress,
    ending_again_changes_nothing,
    ending_another_attempt_changes_nothing,
    an_attempt_may_end_without_a_successor_and_get_one_later,
    the_operator_may_end_the_run_with_the_attempt,
    a_finished_run_is_never_changed,
}

/// Counters after one crash and one disruption without progress, so that a case can see a reset of either.
const BEFORE: Counters = Counters {
    recovery_attempts: 1,
    recovery_attempts_base: 0,
    attempts_without_progress: 1,
    disruptions: 1,
    disruptions_base: 0,
    disruptions_without_progress: 1,
};

async fn every_row_of_the_class_table_is_counted_as_documented(cx: &TestContext) {
    use Class::*;
    // class, progress → recoveries, recoveries in a row, disruptions, disruptions in a row; resolved class, charged
    let table = [
        (Crash, false, (2, 2, 1, 1), Crash, true),
        (Crash, true, (2, 0, 1, 0), Crash, true),
        (Disruption, false, (1, 1, 2, 2), Disruption, false),
        (Disruption, true, (1, 0, 2, 0), Disruption, false),
        (CrashWithoutProgress, false, (2, 2, 1, 1), Crash, true),
        (CrashWithoutProgress, true, (1, 0, 2, 0), Disruption, false),
        (Neutral, false, (1, 1, 1, 1), Neutral, false),
        (Neutral, true, (1, 0, 1, 0), Neutral, false),
    ];
    for (class, progress, expected, resolved, charged) in table {
        let worker = cx.worker().await;
        let run = cx.end_and_reserve(&worker, Crash).await;
        let run = cx.end_and_reserve(&cx.start_worker(&run).await, Disruption).await;
        assert_eq!(run.counters, BEFORE);
        let worker = cx.start_worker(&run).await;
        if progress {
            cx.commit_turn(&worker, 1).await;
        }
        let run = cx.end_and_reserve(&worker, class).await;
        let counters = run.counters;
        let found = (
            counters.recovery_attempts,
            counters.attempts_without_progress,
            counters.disruptions,
            counters.disruptions_without_progress,
        );
        assert_eq!(found, expected, "{class:?}, progress {progress}");
        let end = run.past[0].end.clone().unwrap();
        assert_eq!((end.class, end.charged, end.progress), (resolved, charged, progress), "{class:?}");
    }
}

async fn progress_is_a_new_highest_turn(cx: &TestContext) {
    let worker = cx.worker().await;
    cx.commit_turn(&worker, 1).await;
    cx.commit_turn(&worker, 2).await;
    let run = cx.end_and_reserve(&worker, Class::Crash).await;
    assert_eq!(run.counters.attempts_without_progress, 0);
    assert_eq!((run.past[0].turn_at_start, run.past[0].turn_at_end), (0, Some(2)));
}

async fn progress_is_a_newly_completed_call(cx: &TestContext) {
    let worker = cx.worker().await;
    let claim = cx.start_call(&worker, "pay", Policy::RetrySameKey).await;
    assert!(matches!(cx.complete(&worker.complete(&claim)).await.unwrap(), Completed::Ok));
    let run = cx.end_and_reserve(&worker, Class::Crash).await;
    assert!(run.past[0].end.as_ref().unwrap().progress);
    assert_eq!(run.counters.attempts_without_progress, 0);

    let worker = cx.start_worker(&run).await;
    cx.start_call(&worker, "ship", Policy::RetrySameKey).await;
    let run = cx.end_and_reserve(&worker, Class::Crash).await;
    assert!(!run.past[0].end.as_ref().unwrap().progress, "a claim alone is no progress");
    assert_eq!(run.counters.attempts_without_progress, 1);
}

async fn progress_counts_for_its_own_attempt_only(cx: &TestContext) {
    let worker = cx.worker().await;
    cx.commit_turn(&worker, 1).await;
    let run = cx.end_and_reserve(&worker, Class::Crash).await;
    let run = cx.end_and_reserve(&cx.start_worker(&run).await, Class::Crash).await;
    assert!(!run.past[0].end.as_ref().unwrap().progress, "the turn was the first attempt's");
    assert_eq!((run.counters.recovery_attempts, run.counters.attempts_without_progress), (2, 1));
    assert_eq!((run.past[0].turn_at_start, run.past[0].turn_at_end), (1, Some(1)));
}

async fn a_plan_of_a_new_turn_is_progress_and_its_result_is_not(cx: &TestContext) {
    let worker = cx.worker().await;
    ok(cx.commit(&worker.plan(1)).await.unwrap());
    let run = cx.end_and_reserve(&worker, Class::Crash).await;
    assert!(run.past[0].end.as_ref().unwrap().progress, "turn 1 is a new highest turn");
    let worker = cx.start_worker(&run).await;
    ok(cx.commit(&worker.result(1)).await.unwrap());
    let run = cx.end_and_reserve(&worker, Class::Crash).await;
    assert!(!run.past[0].end.as_ref().unwrap().progress, "turn 1 is not new");
}

async fn a_settled_call_is_progress(cx: &TestContext) {
    let worker = cx.worker().await;
    cx.start_call(&worker, "pay", Policy::Probe).await;
    let worker = cx.next_worker(&worker).await;
    assert!(matches!(cx.settle(&worker.settle("pay")).await.unwrap(), Completed::Ok));
    let run = cx.end_and_reserve(&worker, Class::Crash).await;
    assert!(run.past[0].end.as_ref().unwrap().progress);
}

async fn ending_again_changes_nothing(cx: &TestContext) {
    let worker = cx.worker().await;
    for then in [NextStep::Reserve, NextStep::Nothing, NextStep::Finish(succeeded())] {
        let worker = cx.next_worker(&worker).await;
        let first = cx.end_attempt(worker.run, &ending(worker.attempt, Class::Crash), &then).await.unwrap();
        for class in [Class::Crash, Class::Disruption, Class::Neutral] {
            let again = cx.end_attempt(worker.run, &ending(worker.attempt, class), &then).await.unwrap();
            assert_eq!(without_times(again), without_times(first.clone()), "{then:?}");
        }
        if matches!(then, NextStep::Nothing) {
            // Reserve the next attempt, so that the next round has one to end.
            cx.end_attempt(worker.run, &ending(worker.attempt, Class::Crash), &NextStep::Reserve)
                .await
                .unwrap();
        }
    }
}

async fn ending_another_attempt_changes_nothing(cx: &TestContext) {
    let worker = cx.worker().await;
    let before = cx.run_of(&worker).await;
    for number in [0, 2, 99] {
        for then in [NextStep::Reserve, NextStep::Nothing, NextStep::Finish(succeeded())] {
            let after = cx.end_attempt(worker.run, &ending(number, Class::Crash), &then).await.unwrap();
            assert_eq!(without_times(after), without_times(before.clone()));
        }
    }
    let next = cx.next_worker(&worker).await;
    let before = cx.run_of(&next).await;
    let after = cx.end_and_reserve(&worker, Class::Crash).await;
    assert_eq!(without_times(after), without_times(before), "a late end of an earlier attempt");
}

async fn an_attempt_may_end_without_a_successor_and_get_one_later(cx: &TestContext) {
    let worker = cx.worker().await;
    let over = ending(1, Class::Crash);
    let held = cx.end_attempt(worker.run, &over, &NextStep::Nothing).await.unwrap();
    assert_eq!((held.epoch, held.attempt.number, held.attempt.state), (2, 1, AttemptState::Ended));
    assert_eq!(held.counters.recovery_attempts, 1);
    assert_eq!(held.lifecycle, Lifecycle::Live);
    let on = cx.end_attempt(worker.run, &over, &NextStep::Reserve).await.unwrap();
    assert_eq!((on.epoch, on.attempt.number, on.attempt.state), (2, 2, AttemptState::Reserved));
    assert_eq!(on.counters.recovery_attempts, 1, "it was counted when it ended");
}

async fn the_operator_may_end_the_run_with_the_attempt(cx: &TestContext) {
    let worker = cx.worker().await;
    cx.commit_turn(&worker, 1).await;
    let finish = dalsegno_model::NewFinish {
        outcome: RunOutcome::Failed,
        reason: "RecoveryLoop".into(),
        message: "three in a row".into(),
        output: None,
    };
    let run = cx.end_attempt(worker.run, &ending(1, Class::Crash), &NextStep::Finish(finish)).await.unwrap();
    assert_eq!((run.lifecycle, run.epoch), (Lifecycle::Finished, 2));
    assert_eq!(run.attempt.state, AttemptState::Ended);
    let row = run.finish.unwrap();
    assert_eq!(
        (row.outcome, row.reason.as_str(), row.message.as_str()),
        (RunOutcome::Failed, "RecoveryLoop", "three in a row")
    );
    assert_eq!(row.output, None);
    let late = cx.commit(&worker.result(2)).await.unwrap();
    assert_eq!(late, dalsegno_model::Committed::Fenced { committed: false });
}

async fn a_finished_run_is_never_changed(cx: &TestContext) {
    let worker = cx.worker().await;
    ok(cx.finish(&worker.finish()).await.unwrap());
    let before = cx.run_of(&worker).await;
    for then in [NextStep::Reserve, NextStep::Nothing, NextStep::Finish(succeeded())] {
        let after = cx.end_attempt(worker.run, &ending(1, Class::Crash), &then).await.unwrap();
        assert_eq!(without_times(after), without_times(before.clone()));
    }
    let cancelled = cx.request_cancel(worker.run).await.unwrap();
    let suspended = cx.suspend(worker.run).await.unwrap();
    let resumed = cx.resume(worker.run).await.unwrap();
    let reset = cx.reset_budget(worker.run, 0, 1).await.unwrap();
    let set = cx
        .set_deadlines(
            worker.run,
            &dalsegno_model::Deadlines { heartbeat_ms: 1, start_ms: 1, progress_ms: 1, suspend_ms: 1 },
        )
        .await
        .unwrap();
    for after in [cancelled, suspended, resumed, reset, set] {
        assert_eq!(without_times(after), without_times(before.clone()));
    }
}
