//! The outbox: which facts are announced, once, and what becomes of a notification.

use dalsegno_model::{
    Class, Commit, HoldNotice, LimitName, NewFinish, NextStep, Notification, NotificationDetail,
    NotificationKind, NotificationResult, ObjectHold, ObjectName, RunId, RunLimits, RunOutcome,
};
use dalsegno_protocol::Usage;
use uuid::Uuid;

use crate::context::*;
use crate::engines::on_every_engine;

on_every_engine! {
    a_boundary_that_brings_a_limit_near_announces_it_once,
    each_limit_is_announced_for_itself,
    boundaries_of_many_runs_announce_their_limits,
    a_changed_limit_is_announced_again,
    a_lowered_limit_is_announced_at_once,
    the_end_of_an_attempt_announces_its_active_time,
    a_refused_boundary_announces_nothing,
    a_run_that_fails_is_announced,
    a_run_that_succeeds_or_is_cancelled_is_not_announced,
    a_hold_is_announced_once_for_each_key,
    a_run_that_is_over_announces_no_hold,
    a_hold_of_an_object_without_a_run_is_announced_once_while_it_waits,
    a_notification_waits_for_its_next_try,
    a_notification_that_is_done_is_deleted,
    only_so_many_notifications_are_due_at_once,
    notifications_change_no_audit,
}

const NONE: RunLimits = RunLimits { turns: None, tokens: None, cost_micro_usd: None, active_ms: None };

/// The notifications of this run. Other cases use the same store.
async fn of_run(cx: &TestContext, run: RunId) -> Vec<Notification> {
    let due = cx.due_notifications(10_000).await.unwrap();
    assert!(due.waiting >= due.due.len() as i64);
    assert!(due.due.is_empty() || due.oldest.is_some_and(|oldest| oldest <= due.now));
    due.due.into_iter().filter(|it| it.run == Some(run)).collect()
}

/// The limits that were announced, in the order of their names.
async fn limits(cx: &TestContext, worker: &Worker) -> Vec<LimitName> {
    let all = of_run(cx, worker.run).await;
    assert!(all.iter().all(|it| it.kind == NotificationKind::LimitNear), "{all:?}");
    let mut limits: Vec<_> = all.iter().map(|it| it.detail.limit.unwrap()).collect();
    limits.sort();
    limits
}

async fn limited(cx: &TestContext, limits: RunLimits) -> Worker {
    let worker = cx.worker().await;
    cx.set_limits(worker.run, &limits).await.unwrap();
    worker
}

fn failed() -> NewFinish {
    NewFinish { outcome: RunOutcome::Failed, ..succeeded() }
}

fn notice(key: &str) -> HoldNotice {
    HoldNotice { key: key.into(), attempt: 1 }
}

async fn a_boundary_that_brings_a_limit_near_announces_it_once(cx: &TestContext) {
    let worker = limited(cx, RunLimits { turns: Some(5), ..NONE }).await;
    for turn in 1..=3 {
        cx.commit_turn(&worker, turn).await;
    }
    let plan = worker.plan(4);
    ok(cx.commit(&plan).await.unwrap());
    assert_eq!(limits(cx, &worker).await, [], "a plan ends no turn");
    let result = worker.result(4);
    ok(cx.commit(&result).await.unwrap());
    cx.commit(&result).await.unwrap();
    cx.commit_turn(&worker, 5).await;
    let [one] = &of_run(cx, worker.run).await[..] else { panic!("{:?}", of_run(cx, worker.run).await) };
    let run = cx.run_of(&worker).await;
    assert_eq!((&one.namespace, &one.name, &one.object_uid), (&run.namespace, &run.name, &run.object_uid));
    let detail = NotificationDetail { limit: Some(LimitName::Turns), ..NotificationDetail::default() };
    assert_eq!((one.kind, &one.detail, one.tries), (NotificationKind::LimitNear, &detail, 0));
    assert!(one.created_at > run.created_at && one.created_at < run.now);
}

async fn each_limit_is_announced_for_itself(cx: &TestContext) {
    let limits_of =
        RunLimits { turns: Some(9), tokens: Some(100), cost_micro_usd: Some(10), active_ms: None };
    let worker = limited(cx, limits_of).await;
    let usage =
        |tokens_in, cost_micro_usd| Usage { tokens_in, tokens_out: 40, tool_calls: 0, cost_micro_usd };
    ok(cx.commit(&Commit { usage: usage(39, 7), ..worker.result(1) }).await.unwrap());
    assert_eq!(limits(cx, &worker).await, []);
    ok(cx.commit(&Commit { usage: usage(1, 1), ..worker.result(2) }).await.unwrap());
    assert_eq!(limits(cx, &worker).await, [LimitName::Tokens, LimitName::CostMicroUsd]);
}

async fn boundaries_of_many_runs_announce_their_limits(cx: &TestContext) {
    let start =
        (0..6).map(|n| limited(cx, RunLimits { turns: Some(if n % 2 == 0 { 1 } else { 9 }), ..NONE }));
    let workers = futures::future::join_all(start).await;
    futures::future::join_all(workers.iter().map(|worker| cx.commit_turn(worker, 1))).await;
    for (n, worker) in workers.iter().enumerate() {
        let expected: &[LimitName] = if n % 2 == 0 { &[LimitName::Turns] } else { &[] };
        assert_eq!(limits(cx, worker).await, expected);
    }
}

async fn a_changed_limit_is_announced_again(cx: &TestContext) {
    let worker = limited(cx, RunLimits { turns: Some(1), ..NONE }).await;
    cx.commit_turn(&worker, 1).await;
    cx.set_limits(worker.run, &RunLimits { turns: Some(1), tokens: Some(9), ..NONE }).await.unwrap();
    assert_eq!(limits(cx, &worker).await, [LimitName::Turns], "its value is the same");
    cx.set_limits(worker.run, &RunLimits { turns: Some(3), ..NONE }).await.unwrap();
    cx.commit_turn(&worker, 2).await;
    assert_eq!(limits(cx, &worker).await, [LimitName::Turns]);
    cx.commit_turn(&worker, 3).await;
    assert_eq!(limits(cx, &worker).await, [LimitName::Turns, LimitName::Turns]);
}

async fn a_lowered_limit_is_announced_at_once(cx: &TestContext) {
    let worker = cx.worker().await;
    cx.commit_turn(&worker, 1).await;
    for _ in 0..2 {
        cx.set_limits(worker.run, &RunLimits { turns: Some(1), ..NONE }).await.unwrap();
    }
    assert_eq!(limits(cx, &worker).await, [LimitName::Turns]);
}

async fn the_end_of_an_attempt_announces_its_active_time(cx: &TestContext) {
    let worker = limited(cx, RunLimits { active_ms: Some(2_000), ..NONE }).await;
    let early = limits(cx, &worker).await;
    let run = cx.run_of(&worker).await;
    let active = run.now.duration_since(run.attempt.attached_at.unwrap());
    assert!(early.is_empty() || active.as_millis() >= 1_600, "{early:?} after {active:?}");
    sleep_ms(1_650).await;
    cx.end_and_reserve(&worker, Class::Disruption).await;
    assert_eq!(limits(cx, &worker).await, [LimitName::ActiveSeconds]);

    let worker = limited(cx, RunLimits { active_ms: Some(2_000), ..NONE }).await;
    sleep_ms(1_650).await;
    cx.commit_turn(&worker, 1).await;
    assert_eq!(limits(cx, &worker).await, [LimitName::ActiveSeconds]);
}

async fn a_refused_boundary_announces_nothing(cx: &TestContext) {
    let worker = limited(cx, RunLimits { turns: Some(2), ..NONE }).await;
    cx.commit(&worker.result(7)).await.unwrap();
    cx.commit(&Commit { capability: random_digest(), ..worker.result(1) }).await.unwrap();
    assert_eq!(limits(cx, &worker).await, []);
}

async fn a_run_that_fails_is_announced(cx: &TestContext) {
    let by_commit = cx.worker().await;
    let last = Commit { finish: Some(failed()), ..by_commit.result(1) };
    ok(cx.commit(&last).await.unwrap());
    cx.commit(&last).await.unwrap();
    let by_finish = cx.worker().await;
    let finish = dalsegno_model::FinishCall { finish: failed(), ..by_finish.finish() };
    ok(cx.finish(&finish).await.unwrap());
    let by_operator = cx.worker().await;
    let end = NextStep::Finish(failed());
    cx.end_attempt(by_operator.run, &ending(1, Class::Crash), &end).await.unwrap();
    for worker in [by_commit, by_finish, by_operator] {
        let [one] = &of_run(cx, worker.run).await[..] else { panic!("{:?}", of_run(cx, worker.run).await) };
        assert_eq!((one.kind, one.detail.attempt), (NotificationKind::RunFailed, Some(1)));
        cx.assert_audit_is_valid(worker.run).await;
    }
}

async fn a_run_that_succeeds_or_is_cancelled_is_not_announced(cx: &TestContext) {
    let (one, other) = (cx.worker().await, cx.worker().await);
    ok(cx.commit(&Commit { finish: Some(succeeded()), ..one.result(1) }).await.unwrap());
    cx.request_cancel(other.run).await.unwrap();
    cx.acknowledge_cancel(other.run, &other.capability).await.unwrap();
    for worker in [one, other] {
        assert_eq!(of_run(cx, worker.run).await, []);
    }
}

async fn a_hold_is_announced_once_for_each_key(cx: &TestContext) {
    let run = cx.run().await;
    assert_eq!(run.announced, None);
    for key in ["LimitReached, epoch 1", "LimitReached, epoch 1", "RecoveryLoop, epoch 4"] {
        let run = cx.announce(run.id, &notice(key)).await.unwrap();
        assert_eq!(run.announced.as_deref(), Some(key));
    }
    let all = of_run(cx, run.id).await;
    assert_eq!(all.len(), 2);
    assert!(all.iter().all(|it| it.kind == NotificationKind::RunHeld && it.detail.attempt == Some(1)));
    assert_ne!(all[0].id, all[1].id);
}

async fn a_run_that_is_over_announces_no_hold(cx: &TestContext) {
    let worker = cx.worker().await;
    ok(cx.finish(&worker.finish()).await.unwrap());
    assert_eq!(cx.announce(worker.run, &notice("RecoveryLoop, epoch 1")).await.unwrap().announced, None);
    assert_eq!(of_run(cx, worker.run).await, []);
}

async fn a_hold_of_an_object_without_a_run_is_announced_once_while_it_waits(cx: &TestContext) {
    let uid = Uuid::now_v7().to_string();
    let object = ObjectName { namespace: "shop".into(), name: "nightly".into(), uid: uid.clone() };
    let hold = |key: &str| ObjectHold { object: object.clone(), key: key.into() };
    let waiting = async || {
        let due = cx.due_notifications(10_000).await.unwrap();
        due.due.into_iter().filter(|it| it.object_uid == uid).collect::<Vec<_>>()
    };
    for _ in 0..2 {
        cx.announce_object(&hold("StoreChanged")).await.unwrap();
    }
    let [one] = &waiting().await[..] else { panic!("{:?}", waiting().await) };
    assert_eq!((one.run, one.kind, one.tries), (None, NotificationKind::RunHeld, 0));
    assert_eq!((one.namespace.as_str(), one.name.as_str()), ("shop", "nightly"));
    cx.announce_object(&hold("PriorRunFound")).await.unwrap();
    assert_eq!(waiting().await.len(), 2, "another hold");
    for it in waiting().await {
        cx.end_notification(it.id, NotificationResult::Done).await.unwrap();
    }
    assert!(waiting().await.is_empty());
}

async fn a_notification_waits_for_its_next_try(cx: &TestContext) {
    let run = cx.run().await;
    cx.announce(run.id, &notice("one")).await.unwrap();
    let first = of_run(cx, run.id).await.remove(0);
    cx.end_notification(first.id, NotificationResult::Retry { after_ms: 60_000 }).await.unwrap();
    assert_eq!(of_run(cx, run.id).await, []);
    assert!(cx.due_notifications(1).await.unwrap().waiting > 0, "it waits");
    cx.end_notification(first.id, NotificationResult::Retry { after_ms: 0 }).await.unwrap();
    let again = of_run(cx, run.id).await;
    assert_eq!(again, [Notification { tries: 2, ..first }]);
}

async fn a_notification_that_is_done_is_deleted(cx: &TestContext) {
    let run = cx.run().await;
    cx.announce(run.id, &notice("one")).await.unwrap();
    let id = of_run(cx, run.id).await.remove(0).id;
    cx.end_notification(id, NotificationResult::Done).await.unwrap();
    assert_eq!(of_run(cx, run.id).await, []);
    cx.end_notification(id, NotificationResult::Done).await.unwrap();
    cx.end_notification(Uuid::new_v4(), NotificationResult::Retry { after_ms: 1 }).await.unwrap();
    // The same hold is not announced again after its notification was delivered.
    cx.announce(run.id, &notice("one")).await.unwrap();
    assert_eq!(of_run(cx, run.id).await, []);
}

async fn only_so_many_notifications_are_due_at_once(cx: &TestContext) {
    for _ in 0..3 {
        let run = cx.run().await;
        cx.announce(run.id, &notice("one")).await.unwrap();
    }
    let due = cx.due_notifications(2).await.unwrap();
    assert_eq!((due.due.len(), due.waiting >= 3), (2, true));
    assert!(due.due.is_sorted_by_key(|it| it.created_at));
}

async fn notifications_change_no_audit(cx: &TestContext) {
    let worker = limited(cx, RunLimits { turns: Some(1), ..NONE }).await;
    let before = cx.audit(worker.run).await.unwrap();
    cx.commit_turn(&worker, 1).await;
    cx.announce(worker.run, &notice("one")).await.unwrap();
    assert_eq!(cx.audit(worker.run).await.unwrap(), before);
    assert_eq!(of_run(cx, worker.run).await.len(), 2);
    cx.assert_audit_is_valid(worker.run).await;
}
