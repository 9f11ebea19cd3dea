//! Park: the worker ends its own attempt, because a person suspended or cancelled the run.

use dalsegno_model::{
    Acknowledged, AttemptState, Cause, Class, Commit, Committed, Complete, Completed, Counters, Ending,
    Lifecycle, NewFinish, NextStep, Park, Parked, RunOutcome,
};
use dalsegno_protocol::{CompleteOutcome, Policy};
use uuid::Uuid;

use crate::context::*;
use crate::engines::on_every_engine;

on_every_engine! {
    a_park_ends_the_attempt_and_reserves_the_next_one,
    a_parked_run_goes_on_after_its_last_turn,
    the_retry_of_a_park_is_parked_and_changes_nothing,
    another_id_or_another_worker_is_fenced,
    a_commit_that_was_accepted_before_the_park_is_known_to_its_retry,
    without_a_request_the_worker_goes_on,
    a_park_waits_for_unsettled_calls,
    a_park_waits_for_the_outcome_of_the_attempts_own_call,
    a_call_that_may_run_again_does_not_block_a_park,
    a_park_acknowledges_a_cancel,
    only_the_call_that_acknowledged_a_cancel_may_be_sent_again,
    the_cancel_of_a_parked_run_was_not_acknowledged_by_its_worker,
    a_finish_before_the_park_wins,
    an_unknown_run_is_fenced,
    whoever_moves_the_epoch_first_wins,
    a_park_and_an_end_at_the_same_time_end_the_attempt_once,
    each_worker_of_a_run_parks_for_itself,
    a_rewind_of_a_parked_run_leaves_it_parked,
}

async fn parked(cx: &TestContext, park: &Park) {
    assert_eq!(cx.park(park).await.unwrap(), Parked::Parked);
}

/// Asserts that the park has this answer and changes nothing.
async fn assert_refused(cx: &TestContext, worker: &Worker, park: &Park, expected: Parked) {
    let (before, audit) = (without_times(cx.run_of(worker).await), cx.audit(worker.run).await.unwrap());
    assert_eq!(cx.park(park).await.unwrap(), expected);
    assert_eq!(without_times(cx.run_of(worker).await), before, "{expected:?}");
    assert_eq!(cx.audit(worker.run).await.unwrap(), audit, "{expected:?}");
}

/// A worker that has committed a turn and was told of a suspend.
async fn suspended_worker(cx: &TestContext) -> Worker {
    let worker = cx.worker().await;
    cx.suspend(worker.run).await.unwrap();
    assert!(cx.commit_turn(&worker, 1).await.signals.suspend);
    worker
}

async fn a_park_ends_the_attempt_and_reserves_the_next_one(cx: &TestContext) {
    let worker = suspended_worker(cx).await;
    let before = cx.run_of(&worker).await;
    parked(cx, &worker.park()).await;
    let run = cx.run_of(&worker).await;
    assert_eq!((run.lifecycle, run.epoch), (Lifecycle::Live, 2));
    assert_eq!((run.attempt.number, run.attempt.state), (2, AttemptState::Reserved));
    assert_eq!((run.head, run.suspend), (before.head, before.suspend), "the suspend stays");
    let counters = Counters { attempts_without_progress: 0, ..before.counters };
    assert_eq!(run.counters, counters, "nothing is charged");
    let last = &run.past[0];
    let end = last.end.clone().unwrap();
    assert_eq!((last.number, last.state), (1, AttemptState::Ended));
    assert_eq!((end.cause.as_str(), end.class, end.charged), ("Suspended", Class::Neutral, false));
    cx.assert_audit_is_valid(worker.run).await;
}

async fn a_parked_run_goes_on_after_its_last_turn(cx: &TestContext) {
    let worker = suspended_worker(cx).await;
    parked(cx, &worker.park()).await;
    let run = cx.resume(worker.run).await.unwrap();
    assert_eq!((run.suspend.clone(), run.attempt.state), (None, AttemptState::Reserved));
    let next = cx.start_worker(&run).await;
    let receipt = cx.commit_turn(&next, 2).await;
    assert!(!receipt.signals.suspend);
    assert!(cx.state(worker.run, Some(1)).await.unwrap().is_some());
    ok(cx.finish(&next.finish()).await.unwrap());
    cx.assert_audit_is_valid(worker.run).await;
}

async fn the_retry_of_a_park_is_parked_and_changes_nothing(cx: &TestContext) {
    let worker = suspended_worker(cx).await;
    let park = worker.park();
    parked(cx, &park).await;
    assert_refused(cx, &worker, &park, Parked::Parked).await;
    let run = cx.resume(worker.run).await.unwrap();
    assert_refused(cx, &worker, &park, Parked::Parked).await;
    let next = cx.start_worker(&run).await;
    assert_refused(cx, &worker, &park, Parked::Parked).await;
    cx.commit_turn(&next, 2).await;
    ok(cx.finish(&next.finish()).await.unwrap());
    assert_refused(cx, &worker, &park, Parked::Parked).await;
    cx.mark_deleted(&worker.object_uid).await.unwrap();
    assert_refused(cx, &worker, &park, Parked::Parked).await;
}

async fn another_id_or_another_worker_is_fenced(cx: &TestContext) {
    let worker = suspended_worker(cx).await;
    let park = worker.park();
    let of_another = Park { capability: random_digest(), ..park.clone() };
    assert_refused(cx, &worker, &of_another, Parked::Fenced).await;
    parked(cx, &park).await;
    for other in [worker.park(), of_another, Park { capability: random_digest(), ..worker.park() }] {
        assert_refused(cx, &worker, &other, Parked::Fenced).await;
    }
    assert_refused(cx, &worker, &park, Parked::Parked).await;
}

async fn a_commit_that_was_accepted_before_the_park_is_known_to_its_retry(cx: &TestContext) {
    let worker = suspended_worker(cx).await;
    let (last, later) = (worker.result(2), worker.result(3));
    ok(cx.commit(&last).await.unwrap());
    parked(cx, &worker.park()).await;
    assert_eq!(cx.commit(&last).await.unwrap(), Committed::Fenced { committed: true });
    assert_eq!(cx.commit(&later).await.unwrap(), Committed::Fenced { committed: false });
}

async fn without_a_request_the_worker_goes_on(cx: &TestContext) {
    let worker = cx.worker().await;
    let park = worker.park();
    assert_refused(cx, &worker, &park, Parked::Ready).await;
    cx.suspend(worker.run).await.unwrap();
    cx.commit_turn(&worker, 1).await;
    cx.resume(worker.run).await.unwrap();
    assert_refused(cx, &worker, &park, Parked::Ready).await;
    cx.commit_turn(&worker, 2).await;
    // A worker that was not told of the suspend may park, too.
    cx.suspend(worker.run).await.unwrap();
    parked(cx, &park).await;
}

async fn a_park_waits_for_unsettled_calls(cx: &TestContext) {
    for policy in [Policy::RetrySameKey, Policy::Probe, Policy::Ask] {
        let worker = cx.worker().await;
        cx.start_call(&worker, "pay", policy).await;
        let worker = cx.next_worker(&worker).await;
        cx.suspend(worker.run).await.unwrap();
        let park = worker.park();
        assert_refused(cx, &worker, &park, Parked::UnsettledCalls).await;
        assert!(matches!(cx.settle(&person_settles(worker.run, "pay")).await.unwrap(), Completed::Ok));
        parked(cx, &park).await;
    }
    for policy in [Policy::RetrySameKey, Policy::Probe, Policy::Ask, Policy::ReadOnly] {
        let worker = cx.worker().await;
        let claim = cx.start_call(&worker, "pay", policy).await;
        let refused = Complete { outcome: CompleteOutcome::KeyRefused, ..worker.complete(&claim) };
        assert!(matches!(cx.complete(&refused).await.unwrap(), Completed::Ok));
        cx.suspend(worker.run).await.unwrap();
        assert_refused(cx, &worker, &worker.park(), Parked::UnsettledCalls).await;
        assert!(matches!(cx.settle(&person_settles(worker.run, "pay")).await.unwrap(), Completed::Ok));
        parked(cx, &worker.park()).await;
        cx.assert_audit_is_valid(worker.run).await;
    }
}

async fn a_park_waits_for_the_outcome_of_the_attempts_own_call(cx: &TestContext) {
    for policy in [Policy::Probe, Policy::Ask] {
        for cancels in [false, true] {
            let worker = cx.worker().await;
            let claim = cx.start_call(&worker, "pay", policy).await;
            let park = worker.park();
            assert_refused(cx, &worker, &park, Parked::OpenCalls).await;
            if cancels {
                cx.request_cancel(worker.run).await.unwrap();
            } else {
                cx.suspend(worker.run).await.unwrap();
            }
            // A boundary that names the call is accepted; a park is not.
            let open_calls = vec!["pay".to_owned()];
            ok(cx.commit(&Commit { open_calls, ..worker.result(1) }).await.unwrap());
            assert_refused(cx, &worker, &park, Parked::OpenCalls).await;
            assert!(matches!(cx.complete(&worker.complete(&claim)).await.unwrap(), Completed::Ok));
            parked(cx, &park).await;
            cx.assert_audit_is_valid(worker.run).await;
        }
    }
}

async fn a_call_that_may_run_again_does_not_block_a_park(cx: &TestContext) {
    for policy in [Policy::RetrySameKey, Policy::ReadOnly] {
        let worker = suspended_worker(cx).await;
        let claim = cx.start_call(&worker, "pay", policy).await;
        parked(cx, &worker.park()).await;
        let run = cx.resume(worker.run).await.unwrap();
        assert_eq!(run.calls.unsettled, [(policy, 1)].into(), "it is unsettled from the park on");
        let late = cx.complete(&worker.complete(&claim)).await.unwrap();
        assert!(matches!(late, Completed::Fenced), "{late:?}");
        let next = cx.start_worker(&run).await;
        let claim = cx.start_call(&next, "pay", policy).await;
        assert!(matches!(cx.complete(&next.complete(&claim)).await.unwrap(), Completed::Ok));
        cx.commit_turn(&next, 2).await;
        cx.assert_audit_is_valid(worker.run).await;
    }
}

async fn a_park_acknowledges_a_cancel(cx: &TestContext) {
    for suspends in [false, true] {
        let worker = cx.worker().await;
        cx.commit_turn(&worker, 1).await;
        if suspends {
            cx.suspend(worker.run).await.unwrap();
        }
        cx.request_cancel(worker.run).await.unwrap();
        let park = worker.park();
        parked(cx, &park).await;
        let run = cx.run_of(&worker).await;
        let attempt = (run.attempt.number, run.attempt.state);
        assert_eq!((run.lifecycle, run.epoch), (Lifecycle::Finished, 2));
        assert_eq!(attempt, (1, AttemptState::Ended), "no other attempt is reserved");
        let end = run.attempt.end.unwrap();
        assert_eq!((end.cause.as_str(), end.class, end.charged), ("Cancelled", Class::Neutral, false));
        let finish = run.finish.unwrap();
        let finish_fields = (finish.outcome, finish.reason.as_str(), finish.message.as_str());
        assert_eq!(finish_fields, (RunOutcome::Cancelled, "Cancelled", ""));
        assert_refused(cx, &worker, &park, Parked::Parked).await;
        assert_refused(cx, &worker, &worker.park(), Parked::Fenced).await;
        cx.assert_audit_is_valid(worker.run).await;
    }
}

/// A worker that parked keeps to its park, and a worker that acknowledged the cancel to that.
async fn only_the_call_that_acknowledged_a_cancel_may_be_sent_again(cx: &TestContext) {
    for parks in [false, true] {
        let first = suspended_worker(cx).await;
        let earlier = first.park();
        parked(cx, &earlier).await;
        let worker = cx.start_worker(&cx.resume(first.run).await.unwrap()).await;
        cx.request_cancel(worker.run).await.unwrap();
        let park = worker.park();
        let acknowledge = async || cx.acknowledge_cancel(worker.run, &worker.capability).await.unwrap();
        if parks {
            parked(cx, &park).await;
            assert_eq!(acknowledge().await, Acknowledged::Fenced);
            assert_refused(cx, &worker, &park, Parked::Parked).await;
        } else {
            assert_eq!(acknowledge().await, Acknowledged::Cancelled);
            assert_eq!(acknowledge().await, Acknowledged::Cancelled);
            // The id of the first worker's park.
            let foreign = Park { park_id: earlier.park_id, ..park };
            assert_refused(cx, &worker, &foreign, Parked::Fenced).await;
        }
        // Only the last worker that acknowledged something is known.
        assert_refused(cx, &worker, &earlier, Parked::Fenced).await;
        cx.assert_audit_is_valid(worker.run).await;
    }
}

async fn the_cancel_of_a_parked_run_was_not_acknowledged_by_its_worker(cx: &TestContext) {
    let worker = suspended_worker(cx).await;
    let park = worker.park();
    parked(cx, &park).await;
    cx.request_cancel(worker.run).await.unwrap();
    let cancelled = NewFinish {
        outcome: RunOutcome::Cancelled,
        reason: "Cancelled".into(),
        message: String::new(),
        output: None,
    };
    let over = Ending { cause: Cause::Cancelled, ..ending(2, Class::Neutral) };
    let run = cx.end_attempt(worker.run, &over, &NextStep::Finish(cancelled)).await.unwrap();
    assert_eq!(run.lifecycle, Lifecycle::Finished);
    let late = cx.acknowledge_cancel(worker.run, &worker.capability).await.unwrap();
    assert_eq!(late, Acknowledged::Fenced);
    assert_refused(cx, &worker, &park, Parked::Parked).await;
}

async fn a_finish_before_the_park_wins(cx: &TestContext) {
    let worker = suspended_worker(cx).await;
    ok(cx.finish(&worker.finish()).await.unwrap());
    assert_refused(cx, &worker, &worker.park(), Parked::Finished).await;
    assert_eq!(cx.run_of(&worker).await.finish.unwrap().outcome, RunOutcome::Succeeded);
}

async fn an_unknown_run_is_fenced(cx: &TestContext) {
    let worker = suspended_worker(cx).await;
    let unknown = Park { run: Uuid::now_v7(), ..worker.park() };
    assert_refused(cx, &worker, &unknown, Parked::Fenced).await;
}

async fn whoever_moves_the_epoch_first_wins(cx: &TestContext) {
    let worker = suspended_worker(cx).await;
    cx.end_and_reserve(&worker, Class::Disruption).await;
    assert_refused(cx, &worker, &worker.park(), Parked::Fenced).await;
    let end = cx.run_of(&worker).await.past[0].end.clone().unwrap();
    assert_eq!(end.cause, Cause::Evicted);

    let worker = suspended_worker(cx).await;
    parked(cx, &worker.park()).await;
    let before = without_times(cx.run_of(&worker).await);
    let after = cx.end_and_reserve(&worker, Class::Crash).await;
    assert_eq!(without_times(after), before, "the attempt has ended");
    cx.assert_audit_is_valid(worker.run).await;
}

async fn a_park_and_an_end_at_the_same_time_end_the_attempt_once(cx: &TestContext) {
    for _ in 0..10 {
        let worker = suspended_worker(cx).await;
        let (park, over) = (worker.park(), ending(1, Class::Crash));
        let ends = cx.second_gateway.end_attempt(worker.run, &over, &NextStep::Reserve);
        let (parks, run) = tokio::join!(cx.park(&park), ends);
        let (cause, charged) = match parks.unwrap() {
            Parked::Parked => (Cause::Suspended, false),
            Parked::Fenced => (Cause::Evicted, true),
            other => panic!("{other:?}"),
        };
        let run = run.unwrap();
        assert_eq!((run.epoch, run.attempt.number, run.attempt.state), (2, 2, AttemptState::Reserved));
        let end = run.past[0].end.clone().unwrap();
        assert_eq!((end.cause, end.charged), (cause, charged));
        let audit = cx.audit(worker.run).await.unwrap();
        assert_eq!(audit.iter().filter(|row| row.kind == "ended").count(), 1);
        cx.assert_audit_is_valid(worker.run).await;
    }
}

async fn each_worker_of_a_run_parks_for_itself(cx: &TestContext) {
    let mut worker = suspended_worker(cx).await;
    let mut parks = Vec::new();
    for turn in 2..=4 {
        let park = worker.park();
        parked(cx, &park).await;
        parks.push(park);
        let run = cx.resume(worker.run).await.unwrap();
        assert_eq!(run.attempt.number, turn);
        worker = cx.start_worker(&run).await;
        cx.commit_turn(&worker, turn).await;
        cx.suspend(worker.run).await.unwrap();
    }
    let last = parks.pop().unwrap();
    assert_refused(cx, &worker, &last, Parked::Parked).await;
    for earlier in &parks {
        assert_refused(cx, &worker, earlier, Parked::Fenced).await;
    }
    let run = cx.run_of(&worker).await;
    let charged = run.past.iter().filter(|past| past.end.as_ref().is_some_and(|end| end.charged));
    assert_eq!((run.past.len(), charged.count()), (3, 0));
    cx.assert_audit_is_valid(worker.run).await;
}

async fn a_rewind_of_a_parked_run_leaves_it_parked(cx: &TestContext) {
    let worker = suspended_worker(cx).await;
    cx.commit_turn(&worker, 2).await;
    let park = worker.park();
    parked(cx, &park).await;
    let rewound = cx.rewind(worker.run, &rewind_to(2, result_place(1))).await.unwrap();
    assert!(matches!(rewound, dalsegno_model::Rewound::Done(_)), "{rewound:?}");
    assert_refused(cx, &worker, &park, Parked::Parked).await;
    let run = cx.run_of(&worker).await;
    assert_eq!((run.attempt.number, run.attempt.state), (2, AttemptState::Reserved));
    assert!(run.suspend.is_some());
    let next = cx.start_worker(&cx.resume(worker.run).await.unwrap()).await;
    cx.commit_turn(&next, 2).await;
    cx.assert_audit_is_valid(worker.run).await;
}
