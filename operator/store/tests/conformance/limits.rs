//! Limits: what counts, when a limit is reached, and how the worker learns of it.

use dalsegno_model::{
    Class, Commit, Committed, Deadline, HeartbeatAnswer, LimitName, LimitUse, NextStep, Rewound, RunLimits,
    RunRecord,
};
use dalsegno_protocol::Usage;
use jiff::SignedDuration;

use crate::context::*;
use crate::deadlines::expired;
use crate::engines::on_every_engine;

on_every_engine! {
    usage_over_five_attempts_adds_up,
    the_boundary_that_reaches_a_limit_is_accepted_and_reports_it,
    each_limit_of_usage_is_judged_by_its_own_total,
    a_plan_ends_no_turn,
    boundaries_of_many_runs_are_each_judged_by_their_own_limits,
    a_raised_limit_is_no_longer_reported,
    a_lowered_limit_is_reported_with_the_next_answer,
    the_limit_0_is_reached_from_the_start,
    active_time_counts_from_the_attach_to_the_end_of_each_attempt,
    a_heartbeat_reports_that_the_active_time_is_used_up,
    a_worker_has_30_seconds_to_exit,
    a_rewind_gives_turns_back_and_nothing_else,
    a_finished_run_keeps_its_limits,
    an_adopted_run_keeps_what_it_has_used,
}

const NONE: RunLimits = RunLimits { turns: None, tokens: None, cost_micro_usd: None, active_ms: None };

fn usage(tokens_in: i64, tokens_out: i64, cost_micro_usd: i64) -> Usage {
    Usage { tokens_in, tokens_out, tool_calls: 1, cost_micro_usd }
}

/// The result of a turn that used this much.
fn used(worker: &Worker, turn: i32, usage: Usage) -> Commit {
    Commit { usage, ..worker.result(turn) }
}

/// Whether the answer to a commit says that a limit is reached.
async fn commit(cx: &TestContext, commit: &Commit) -> bool {
    ok(cx.commit(commit).await.unwrap()).signals.limit
}

async fn heartbeat(cx: &TestContext, worker: &Worker) -> bool {
    match cx.heartbeats(&[(worker.run, worker.capability)]).await.unwrap().remove(0) {
        HeartbeatAnswer::Ok(signals) => signals.limit,
        other => panic!("{other:?}"),
    }
}

async fn limited(cx: &TestContext, limits: RunLimits) -> Worker {
    let worker = cx.worker().await;
    assert_eq!(cx.set_limits(worker.run, &limits).await.unwrap().limits, limits);
    worker
}

fn use_of(run: &RunRecord, limit: LimitName) -> LimitUse {
    run.limit_uses().into_iter().find(|it| it.limit == limit).unwrap()
}

async fn usage_over_five_attempts_adds_up(cx: &TestContext) {
    let limits =
        RunLimits { turns: Some(5), tokens: Some(150), cost_micro_usd: Some(50), active_ms: Some(90_000) };
    let mut worker = limited(cx, limits).await;
    for attempt in 1..=5 {
        let reached = commit(cx, &used(&worker, attempt, usage(20, 9, 9))).await;
        assert_eq!(reached, attempt == 5, "only the fifth turn reaches a limit");
        worker = cx.next_worker(&worker).await;
        assert_eq!(worker.attempt, attempt + 1);
    }
    let run = cx.run_of(&worker).await;
    let use_of = |limit| use_of(&run, limit);
    assert_eq!(use_of(LimitName::Turns), LimitUse { limit: LimitName::Turns, used: 5, max: 5 });
    assert_eq!(use_of(LimitName::Tokens).used, 145);
    assert_eq!(use_of(LimitName::CostMicroUsd).used, 45);
    let active = run.past.iter().map(|it| it.ended_at.unwrap().duration_since(it.attached_at.unwrap()));
    let active: SignedDuration = active.sum();
    assert_eq!(i128::from(run.active_ms), active.as_millis());
    assert!(run.is_limit_reached() && run.limit_reached_at.is_some());
}

async fn the_boundary_that_reaches_a_limit_is_accepted_and_reports_it(cx: &TestContext) {
    let worker = limited(cx, RunLimits { tokens: Some(100), ..NONE }).await;
    assert!(!commit(cx, &used(&worker, 1, usage(60, 39, 0))).await);
    assert_eq!(cx.run_of(&worker).await.limit_reached_at, None);
    let last = used(&worker, 2, usage(1, 0, 0));
    assert!(commit(cx, &last).await);
    let run = cx.run_of(&worker).await;
    assert_eq!(run.limit_reached_at, run.head.as_ref().map(|head| head.at));
    match cx.commit(&last).await.unwrap() {
        Committed::Duplicate(receipt) => {
            assert!(receipt.signals.limit, "the answer to a retry has the flag too")
        }
        other => panic!("{other:?}"),
    }
    assert!(heartbeat(cx, &worker).await);
    // A worker that goes on is not refused before the operator ends its attempt.
    assert!(commit(cx, &worker.plan(3)).await);
    assert_eq!(cx.run_of(&worker).await.limit_reached_at, run.limit_reached_at, "the first time stays");
}

async fn each_limit_of_usage_is_judged_by_its_own_total(cx: &TestContext) {
    for (limits, is_reached) in [
        (RunLimits { turns: Some(1), ..NONE }, true),
        (RunLimits { turns: Some(2), ..NONE }, false),
        (RunLimits { tokens: Some(30), ..NONE }, true),
        (RunLimits { tokens: Some(31), ..NONE }, false),
        (RunLimits { cost_micro_usd: Some(7), ..NONE }, true),
        (RunLimits { cost_micro_usd: Some(8), ..NONE }, false),
        (RunLimits { tokens: Some(31), cost_micro_usd: Some(7), ..NONE }, true),
        (NONE, false),
    ] {
        let worker = limited(cx, limits).await;
        assert_eq!(commit(cx, &used(&worker, 1, usage(10, 20, 7))).await, is_reached, "{limits:?}");
        let run = cx.run_of(&worker).await;
        assert_eq!((run.limit_reached_at.is_some(), run.is_limit_reached()), (is_reached, is_reached));
    }
}

async fn a_plan_ends_no_turn(cx: &TestContext) {
    let worker = limited(cx, RunLimits { turns: Some(2), ..NONE }).await;
    for (boundary, is_reached) in [
        (worker.plan(1), false),
        (worker.result(1), false),
        (worker.plan(2), false),
        (worker.result(2), true),
    ] {
        assert_eq!(commit(cx, &boundary).await, is_reached);
    }
}

async fn boundaries_of_many_runs_are_each_judged_by_their_own_limits(cx: &TestContext) {
    let workers = futures::future::join_all(
        (1..=8)
            .map(|turns| async move { limited(cx, RunLimits { turns: Some(turns % 2 + 1), ..NONE }).await }),
    )
    .await;
    let commits = workers.iter().map(|worker| async move { commit(cx, &worker.result(1)).await });
    let reached = futures::future::join_all(commits).await;
    assert_eq!(reached, [false, true, false, true, false, true, false, true]);
}

async fn a_raised_limit_is_no_longer_reported(cx: &TestContext) {
    let worker = limited(cx, RunLimits { turns: Some(1), ..NONE }).await;
    assert!(commit(cx, &worker.result(1)).await);
    let run = cx.set_limits(worker.run, &RunLimits { turns: Some(3), ..NONE }).await.unwrap();
    assert_eq!((run.limit_reached_at, run.is_limit_reached(), run.epoch), (None, false, 1));
    assert!(!heartbeat(cx, &worker).await);
    assert!(!commit(cx, &worker.result(2)).await);
    assert!(commit(cx, &worker.result(3)).await);
    assert_eq!(cx.set_limits(worker.run, &NONE).await.unwrap().limit_uses(), []);
    assert!(!commit(cx, &worker.result(4)).await);
}

async fn a_lowered_limit_is_reported_with_the_next_answer(cx: &TestContext) {
    let worker = cx.worker().await;
    cx.commit_turn(&worker, 1).await;
    assert!(!heartbeat(cx, &worker).await);
    let run = cx.set_limits(worker.run, &RunLimits { turns: Some(1), ..NONE }).await.unwrap();
    assert!(run.limit_reached_at.unwrap() > run.head.unwrap().at);
    assert!(heartbeat(cx, &worker).await);
    let again = attached(cx.attach(worker.run, &worker.pod_uid, &worker.capability).await.unwrap());
    assert!(again.is_limit_reached());
}

async fn the_limit_0_is_reached_from_the_start(cx: &TestContext) {
    for limits in [
        RunLimits { turns: Some(0), ..NONE },
        RunLimits { tokens: Some(0), ..NONE },
        RunLimits { cost_micro_usd: Some(0), ..NONE },
        RunLimits { active_ms: Some(0), ..NONE },
    ] {
        let run = cx.run().await;
        assert!(cx.set_limits(run.id, &limits).await.unwrap().is_limit_reached(), "{limits:?}");
    }
}

async fn active_time_counts_from_the_attach_to_the_end_of_each_attempt(cx: &TestContext) {
    let worker = cx.worker().await;
    sleep_ms(20).await;
    let run = cx.end_and_reserve(&worker, Class::Crash).await;
    let first = run.active_ms;
    assert!(first >= 20);
    sleep_ms(20).await;
    let worker = cx.start_worker(&run).await;
    assert_eq!(cx.run_of(&worker).await.active_ms, first, "the time without a worker does not count");
    cx.suspend(worker.run).await.unwrap();
    cx.park(&worker.park()).await.unwrap();
    let parked = cx.run_of(&worker).await;
    let second = parked.past[0].clone();
    let active = second.ended_at.unwrap().duration_since(second.attached_at.unwrap());
    assert_eq!(i128::from(parked.active_ms - first), active.as_millis());
    // An attempt without a worker has no active time.
    let run = cx.end_attempt(worker.run, &ending(3, Class::Neutral), &NextStep::Reserve).await.unwrap();
    assert_eq!(run.active_ms, parked.active_ms);
}

async fn a_heartbeat_reports_that_the_active_time_is_used_up(cx: &TestContext) {
    let worker = limited(cx, RunLimits { active_ms: Some(600_000), ..NONE }).await;
    assert!(!heartbeat(cx, &worker).await);
    assert!(!commit(cx, &worker.result(1)).await);
    sleep_ms(5).await;
    let run = cx.set_limits(worker.run, &RunLimits { active_ms: Some(1), ..NONE }).await.unwrap();
    assert_eq!((run.limit_reached_at, run.is_limit_reached()), (None, true));
    assert!(heartbeat(cx, &worker).await);
    let last = worker.result(2);
    assert!(commit(cx, &last).await, "the turn that crosses the limit is committed");
    match cx.commit(&last).await.unwrap() {
        Committed::Duplicate(receipt) => assert!(receipt.signals.limit),
        other => panic!("{other:?}"),
    }
    // It stays used up after the end of the attempt.
    assert!(cx.end_and_reserve(&worker, Class::Neutral).await.is_limit_reached());
}

async fn a_worker_has_30_seconds_to_exit(cx: &TestContext) {
    cx.record_gateway_heartbeat().await.unwrap();
    for limits in [RunLimits { turns: Some(1), ..NONE }, RunLimits { active_ms: Some(0), ..NONE }] {
        let worker = limited(cx, limits).await;
        assert!(commit(cx, &worker.result(1)).await);
        let run = cx.run_of(&worker).await;
        assert!(!run.is_expired(Deadline::Limit));
        assert_eq!(expired(cx, &worker.object_uid).await, None);
        let late = |seconds| {
            let at = |from: jiff::Timestamp| from + SignedDuration::from_secs(seconds);
            let mut late = RunRecord { now: at(run.now), ..run.clone() };
            (late.beat.last, late.beat.since) = (late.now, run.created_at - SignedDuration::from_mins(2));
            late
        };
        assert!(!late(29).is_expired(Deadline::Limit), "{limits:?}");
        assert!(late(31).is_expired(Deadline::Limit), "{limits:?}");
        let ended = cx.end_and_reserve(&worker, Class::Neutral).await;
        assert!(ended.is_limit_reached() && !ended.is_expired(Deadline::Limit));
    }
}

async fn a_rewind_gives_turns_back_and_nothing_else(cx: &TestContext) {
    let worker = limited(cx, RunLimits { turns: Some(2), tokens: Some(1_000), ..NONE }).await;
    for turn in 1..=2 {
        commit(cx, &used(&worker, turn, usage(10, 0, 0))).await;
    }
    let Rewound::Done(run) = cx.rewind(worker.run, &rewind_to(1, result_place(1))).await.unwrap() else {
        panic!("the rewind was refused");
    };
    assert_eq!((run.limit_reached_at, run.is_limit_reached()), (None, false));
    assert_eq!((use_of(&run, LimitName::Turns).used, use_of(&run, LimitName::Tokens).used), (1, 20));
}

async fn a_finished_run_keeps_its_limits(cx: &TestContext) {
    let worker = limited(cx, RunLimits { turns: Some(1), active_ms: Some(60_000), ..NONE }).await;
    let last = Commit { finish: Some(succeeded()), ..worker.result(1) };
    assert!(commit(cx, &last).await, "the last turn is accepted, and ends the run");
    let before = cx.run_of(&worker).await;
    sleep_ms(5).await;
    let after = cx.set_limits(worker.run, &NONE).await.unwrap();
    assert_eq!(without_times(after.clone()), without_times(before.clone()));
    assert_eq!(after.limit_uses(), before.limit_uses(), "no active time is added after the end");
}

async fn an_adopted_run_keeps_what_it_has_used(cx: &TestContext) {
    let new = new_run();
    let worker = cx.start_worker(&cx.create(&new).await).await;
    cx.set_limits(worker.run, &RunLimits { tokens: Some(10), ..NONE }).await.unwrap();
    commit(cx, &used(&worker, 1, usage(5, 5, 0))).await;
    let adopted = cx.create(&namesake(&new, dalsegno_model::OnPrior::Adopt)).await;
    assert_eq!((adopted.id, adopted.is_limit_reached()), (worker.run, true));
    assert!(adopted.active_ms > 0 || adopted.past[0].ended_at == adopted.past[0].attached_at);
}
