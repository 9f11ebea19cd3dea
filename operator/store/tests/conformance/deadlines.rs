//! Deadlines expire by the store's clock, and only while the gateways send heartbeats.

use dalsegno_model::{
    Class, Deadline, DeadlinePoll, Deadlines, HEARTBEAT_GAP_MS, NewRun, NextStep, PodRecord,
};
use jiff::Timestamp;

use crate::context::*;
use crate::engines::on_every_engine;

on_every_engine! {
    no_deadline_expires_before_the_first_gateway_heartbeat,
    a_lease_binds_from_the_first_heartbeat_on,
    heartbeats_and_commits_renew_the_lease,
    the_start_deadline_runs_from_scheduling_to_attach,
    the_progress_deadline_runs_from_the_last_boundary,
    a_boundary_of_an_earlier_attempt_is_no_progress,
    the_first_expired_deadline_of_the_list_is_reported,
    a_shorter_lease_applies_after_the_granted_one_ends,
    an_ended_attempt_has_no_deadlines,
    a_finished_run_has_no_deadlines,
    no_deadline_expires_right_after_a_gateway_outage,
    heartbeats_are_answered_one_by_one_in_order,
    a_lease_remembers_the_gateway_that_renewed_it_for_a_heartbeat,
}

pub const SHORT: i64 = 200;

/// Longer than a deadline of [`SHORT`], in ms.
pub const WAIT: u64 = 290;

pub fn short(deadlines: Deadlines) -> NewRun {
    NewRun { deadlines, ..new_run() }
}

async fn pulse(cx: &TestContext) -> DeadlinePoll {
    cx.poll_deadlines(Timestamp::now().into()).await.unwrap()
}

/// The expired deadline of this run's attempt.
pub async fn expired(cx: &TestContext, object_uid: &str) -> Option<Deadline> {
    cx.record_gateway_heartbeat().await.unwrap();
    let pulse = pulse(cx).await;
    let mine: Vec<_> = pulse.expired.iter().filter(|expired| expired.object.uid == object_uid).collect();
    assert!(mine.len() <= 1, "{mine:?}");
    let run = cx.run_by_uid(object_uid).await;
    if let Some(expired) = mine.first() {
        assert_eq!(expired.attempt, run.attempt.number);
        assert_eq!((&expired.object.namespace, &expired.object.name), (&run.namespace, &run.name));
    }
    mine.first().map(|expired| expired.deadline)
}

/// Waits up to 5 s for a deadline of this run to expire.
pub async fn wait_for_expiry(cx: &TestContext, object_uid: &str) -> Deadline {
    for _ in 0..200 {
        if let Some(deadline) = expired(cx, object_uid).await {
            return deadline;
        }
        sleep_ms(25).await;
    }
    panic!("no deadline of {object_uid} expired");
}

/// The deadline of this run that has expired already. After a gap between two gateway heartbeats the worker has time to
/// connect again. If the machine was slow enough for that, this waits for the deadline.
pub async fn expired_already(cx: &TestContext, object_uid: &str) -> Option<Deadline> {
    let last = cx.run_by_uid(object_uid).await.beat.last;
    let found = expired(cx, object_uid).await;
    let now = cx.run_by_uid(object_uid).await.now;
    if found.is_none() && is_gap(last, now) { Some(wait_for_expiry(cx, object_uid).await) } else { found }
}

/// Whether the gateways would be unavailable if they sent no heartbeat from `last` to `now`.
fn is_gap(last: Timestamp, now: Timestamp) -> bool {
    now.duration_since(last).as_millis() > HEARTBEAT_GAP_MS.into()
}

/// Asserts that nothing has expired within `length` ms of `from`, by the store's clock. If the machine was too slow to look
/// within that time, the case proves nothing and passes.
pub async fn assert_not_expired(cx: &TestContext, object_uid: &str, from: Option<Timestamp>, length: i64) {
    let found = expired(cx, object_uid).await;
    let waited = cx.run_by_uid(object_uid).await.now.duration_since(from.unwrap());
    assert!(found.is_none() || waited.as_millis() > length.into(), "{found:?} after {waited:?}");
}

async fn no_deadline_expires_before_the_first_gateway_heartbeat(cx: &TestContext) {
    let run = cx.create(&short(Deadlines { progress_ms: SHORT, ..LONG_DEADLINES })).await;
    let worker = cx.start_worker(&run).await;
    sleep_ms(WAIT).await;
    assert!(pulse(cx).await.expired.is_empty());
    cx.record_gateway_heartbeat().await.unwrap();
    let beat = cx.run_of(&worker).await.beat;
    assert_eq!(beat.since, beat.last);
    assert_not_expired(cx, &worker.object_uid, Some(beat.since), SHORT).await;
    assert_eq!(wait_for_expiry(cx, &worker.object_uid).await, Deadline::Progress);
}

async fn a_lease_binds_from_the_first_heartbeat_on(cx: &TestContext) {
    cx.record_gateway_heartbeat().await.unwrap();
    let run = cx.create(&short(Deadlines { heartbeat_ms: SHORT, ..LONG_DEADLINES })).await;
    let worker = cx.start_worker(&run).await;
    sleep_ms(WAIT).await;
    assert_eq!(expired(cx, &worker.object_uid).await, None, "silent, but its lease was never bound");
    cx.heartbeats(&[(worker.run, worker.capability)]).await.unwrap();
    let bound = cx.run_of(&worker).await.attempt.lease_renewed_at;
    assert_not_expired(cx, &worker.object_uid, bound, SHORT).await;
    assert_eq!(wait_for_expiry(cx, &worker.object_uid).await, Deadline::Lease);
    // An expired lease refuses nothing by itself.
    cx.commit_turn(&worker, 1).await;
    let renewed = cx.run_of(&worker).await.attempt.lease_renewed_at;
    assert!(renewed > bound);
    assert_not_expired(cx, &worker.object_uid, renewed, SHORT).await;
}

async fn heartbeats_and_commits_renew_the_lease(cx: &TestContext) {
    cx.record_gateway_heartbeat().await.unwrap();
    let run = cx.create(&short(Deadlines { heartbeat_ms: SHORT, ..LONG_DEADLINES })).await;
    let worker = cx.start_worker(&run).await;
    cx.heartbeats(&[(worker.run, worker.capability)]).await.unwrap();
    let mut last = cx.run_of(&worker).await.attempt.lease_renewed_at;
    for turn in 1..=2 {
        for heartbeat in [false, true] {
            sleep_ms(WAIT / 2).await;
            if heartbeat {
                cx.heartbeats(&[(worker.run, worker.capability)]).await.unwrap();
            } else {
                cx.commit_turn(&worker, turn).await;
            }
            let renewed = cx.run_of(&worker).await.attempt.lease_renewed_at;
            assert!(renewed > last, "turn {turn}, heartbeat {heartbeat}");
            assert_not_expired(cx, &worker.object_uid, renewed, SHORT).await;
            last = renewed;
        }
    }
}

async fn the_start_deadline_runs_from_scheduling_to_attach(cx: &TestContext) {
    cx.record_gateway_heartbeat().await.unwrap();
    let run = cx.create(&short(Deadlines { start_ms: SHORT, ..LONG_DEADLINES })).await;
    sleep_ms(WAIT).await;
    assert_eq!(expired(cx, &run.object_uid).await, None, "nothing is scheduled");
    recorded(cx.record_pod(run.id, 1, &PodRecord { identity: None, ..pod(&run) }).await.unwrap());
    sleep_ms(WAIT).await;
    assert_eq!(expired(cx, &run.object_uid).await, None, "still nothing is scheduled");
    let scheduled = recorded(cx.record_scheduled(run.id, 1, "node-a").await.unwrap()).attempt.scheduled_at;
    assert_not_expired(cx, &run.object_uid, scheduled, SHORT).await;
    assert_eq!(wait_for_expiry(cx, &run.object_uid).await, Deadline::Start);
    cx.start_worker(&run).await;
    assert_eq!(expired(cx, &run.object_uid).await, None, "attached");
}

async fn the_progress_deadline_runs_from_the_last_boundary(cx: &TestContext) {
    cx.record_gateway_heartbeat().await.unwrap();
    let run = cx.create(&short(Deadlines { progress_ms: SHORT, ..LONG_DEADLINES })).await;
    let worker = cx.start_worker(&run).await;
    assert_not_expired(cx, &worker.object_uid, cx.run_of(&worker).await.attempt.attached_at, SHORT).await;
    sleep_ms(WAIT).await;
    for commit in [worker.plan(1), worker.result(1)] {
        cx.heartbeats(&[(worker.run, worker.capability)]).await.unwrap();
        assert_eq!(
            wait_for_expiry(cx, &worker.object_uid).await,
            Deadline::Progress,
            "a heartbeat is no progress"
        );
        ok(cx.commit(&commit).await.unwrap());
        let at = cx.run_of(&worker).await.head.map(|head| head.at);
        assert_not_expired(cx, &worker.object_uid, at, SHORT).await;
    }
}

async fn a_boundary_of_an_earlier_attempt_is_no_progress(cx: &TestContext) {
    cx.record_gateway_heartbeat().await.unwrap();
    let run = cx.create(&short(Deadlines { progress_ms: SHORT, ..LONG_DEADLINES })).await;
    let worker = cx.start_worker(&run).await;
    cx.commit_turn(&worker, 1).await;
    sleep_ms(WAIT).await;
    let next = cx.next_worker(&worker).await;
    // The deadline runs from this attempt's own attach.
    assert_not_expired(cx, &next.object_uid, cx.run_of(&next).await.attempt.attached_at, SHORT).await;
    assert_eq!(wait_for_expiry(cx, &next.object_uid).await, Deadline::Progress);
}

async fn the_first_expired_deadline_of_the_list_is_reported(cx: &TestContext) {
    cx.record_gateway_heartbeat().await.unwrap();
    let both = Deadlines { heartbeat_ms: SHORT, progress_ms: SHORT, ..LONG_DEADLINES };
    let worker = cx.start_worker(&cx.create(&short(both)).await).await;
    sleep_ms(WAIT).await;
    cx.heartbeats(&[(worker.run, worker.capability)]).await.unwrap();
    sleep_ms(WAIT).await;
    assert_eq!(wait_for_expiry(cx, &worker.object_uid).await, Deadline::Lease);
    cx.set_deadlines(worker.run, &Deadlines { heartbeat_ms: 60_000, ..both }).await.unwrap();
    assert_eq!(
        wait_for_expiry(cx, &worker.object_uid).await,
        Deadline::Progress,
        "new deadlines apply at once"
    );
}

async fn a_shorter_lease_applies_after_the_granted_one_ends(cx: &TestContext) {
    cx.record_gateway_heartbeat().await.unwrap();
    let worker = cx.start_worker(&cx.create(&short(LONG_DEADLINES)).await).await;
    let shorter = Deadlines { heartbeat_ms: SHORT, ..LONG_DEADLINES };
    let set = cx.set_deadlines(worker.run, &shorter).await.unwrap();
    assert_eq!(set.attempt.lease_renewed_at, None, "no heartbeat has bound it");
    cx.set_deadlines(worker.run, &LONG_DEADLINES).await.unwrap();
    cx.heartbeats(&[(worker.run, worker.capability)]).await.unwrap();
    let bound = cx.run_of(&worker).await.attempt.lease_renewed_at.unwrap();
    // The granted lease stays, however often the length changes in between.
    for deadlines in [&shorter, &LONG_DEADLINES, &shorter] {
        let set = cx.set_deadlines(worker.run, deadlines).await.unwrap();
        assert_eq!((set.attempt.lease_renewed_at, set.lease_ms), (Some(bound), LONG_DEADLINES.heartbeat_ms));
    }
    // The answer to this commit may reach the worker only after the shorter lease would have expired.
    cx.commit_turn(&worker, 1).await;
    assert_eq!(cx.run_of(&worker).await.lease_ms, LONG_DEADLINES.heartbeat_ms);
    sleep_ms(WAIT).await;
    assert_eq!(expired(cx, &worker.object_uid).await, None, "the worker still has the longer lease");
    // This answer grants the shorter lease.
    let answers = cx.heartbeats(&[(worker.run, worker.capability)]).await.unwrap();
    assert!(
        matches!(&answers[..], [dalsegno_model::HeartbeatAnswer::Ok(flags)] if flags.lease_ms == SHORT),
        "{answers:?}"
    );
    assert_eq!(cx.run_of(&worker).await.lease_ms, SHORT);
    assert_eq!(wait_for_expiry(cx, &worker.object_uid).await, Deadline::Lease);
    // A longer lease applies at once, and the next boundary grants it.
    cx.set_deadlines(worker.run, &LONG_DEADLINES).await.unwrap();
    assert_eq!(expired(cx, &worker.object_uid).await, None);
    cx.commit_turn(&worker, 2).await;
    assert_eq!(cx.run_of(&worker).await.lease_ms, LONG_DEADLINES.heartbeat_ms);
}

async fn an_ended_attempt_has_no_deadlines(cx: &TestContext) {
    cx.record_gateway_heartbeat().await.unwrap();
    let all = Deadlines { heartbeat_ms: 1, start_ms: 1, progress_ms: 1, suspend_ms: 1 };
    let worker = cx.start_worker(&cx.create(&short(all)).await).await;
    recorded(cx.record_scheduled(worker.run, 1, "node-a").await.unwrap());
    cx.heartbeats(&[(worker.run, worker.capability)]).await.unwrap();
    cx.end_attempt(worker.run, &ending(1, Class::Crash), &NextStep::Nothing).await.unwrap();
    sleep_ms(30).await;
    assert_eq!(expired(cx, &worker.object_uid).await, None);
    cx.end_attempt(worker.run, &ending(1, Class::Crash), &NextStep::Reserve).await.unwrap();
    sleep_ms(30).await;
    assert_eq!(expired(cx, &worker.object_uid).await, None, "a reserved attempt has none either");
}

async fn a_finished_run_has_no_deadlines(cx: &TestContext) {
    cx.record_gateway_heartbeat().await.unwrap();
    let all = Deadlines { heartbeat_ms: 1, start_ms: 1, progress_ms: 1, suspend_ms: 1 };
    let worker = cx.start_worker(&cx.create(&short(all)).await).await;
    cx.heartbeats(&[(worker.run, worker.capability)]).await.unwrap();
    cx.request_cancel(worker.run).await.unwrap();
    ok(cx.finish(&worker.finish()).await.unwrap());
    sleep_ms(30).await;
    assert_eq!(expired(cx, &worker.object_uid).await, None);
    cx.mark_deleted(&worker.object_uid).await.unwrap();
    assert_eq!(expired(cx, &worker.object_uid).await, None);
}

async fn no_deadline_expires_right_after_a_gateway_outage(cx: &TestContext) {
    cx.record_gateway_heartbeat().await.unwrap();
    let first = cx.run_by_uid(&cx.run().await.object_uid).await.beat;
    let run = cx.create(&short(Deadlines { heartbeat_ms: 300, progress_ms: 3_000, ..LONG_DEADLINES })).await;
    let worker = cx.start_worker(&run).await;
    cx.heartbeats(&[(worker.run, worker.capability)]).await.unwrap();
    sleep_ms(3_200).await;
    assert!(pulse(cx).await.expired.is_empty(), "the last gateway heartbeat is stale: no deadline expires");
    cx.record_gateway_heartbeat().await.unwrap();
    let beat = cx.run_of(&worker).await.beat;
    assert_eq!(beat.gap_from, first.last, "the outage began with the last heartbeat before it");
    assert!(beat.since > first.last && beat.last >= beat.since);
    // After the outage the worker has time to connect again.
    assert_not_expired(cx, &worker.object_uid, Some(beat.since), 300).await;
    assert_eq!(wait_for_expiry(cx, &worker.object_uid).await, Deadline::Lease);
    let later = cx.run_of(&worker).await.beat;
    let is_same = later.since == beat.since || is_gap(beat.last, later.last);
    assert!(is_same, "heartbeats without a gap only move the last: {later:?} after {beat:?}");
}

async fn heartbeats_are_answered_one_by_one_in_order(cx: &TestContext) {
    use dalsegno_model::HeartbeatAnswer;
    let (live, over, lost) = (cx.worker().await, cx.worker().await, cx.worker().await);
    ok(cx.finish(&over.finish()).await.unwrap());
    cx.end_and_reserve(&lost, Class::Disruption).await;
    let of = |worker: &Worker| (worker.run, worker.capability);
    let foreign = [(uuid::Uuid::now_v7(), live.capability), (live.run, random_digest())];
    let workers = [of(&lost), of(&live), foreign[0], of(&over), foreign[1], of(&live)];
    let beats = cx.heartbeats(&workers).await.unwrap();
    let kinds: Vec<_> = beats
        .iter()
        .map(|beat| match beat {
            HeartbeatAnswer::Ok(_) => "ok",
            HeartbeatAnswer::Finished => "finished",
            HeartbeatAnswer::Fenced => "fenced",
        })
        .collect();
    assert_eq!(kinds, ["fenced", "ok", "fenced", "finished", "fenced", "ok"]);
    assert!(cx.run_of(&live).await.attempt.lease_renewed_at.is_some());
    assert!(cx.heartbeats(&[]).await.unwrap().is_empty());
}

async fn a_lease_remembers_the_gateway_that_renewed_it_for_a_heartbeat(cx: &TestContext) {
    cx.record_gateway_heartbeat().await.unwrap();
    let worker = cx.worker().await;
    assert_eq!(cx.run_of(&worker).await.lease_gateway, None);
    cx.heartbeats(&[(worker.run, worker.capability)]).await.unwrap();
    let run = cx.run_of(&worker).await;
    let gateway = run.lease_gateway.unwrap();
    assert_eq!(gateway.since, gateway.gap_from, "it has always served");
    assert!(run.lease_gateway_outage_ms() == 0 || is_gap(gateway.last, run.now), "{gateway:?}");
    sleep_ms(20).await;
    cx.record_gateway_heartbeat().await.unwrap();
    cx.commit_turn(&worker, 1).await;
    let later = cx.run_of(&worker).await.lease_gateway.unwrap();
    let is_same = later.since == gateway.since || is_gap(gateway.last, later.last);
    assert!(later.last > gateway.last && is_same, "{later:?} after {gateway:?}");
}
