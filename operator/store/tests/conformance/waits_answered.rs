//! Who answers a wait: a person, or the store's clock. And what its deadline does.

use dalsegno_model::{
    Answered, AttemptState, Cause, Class, Deadline, Lifecycle, OpenWaitRequest, RunOutcome, RunRecord,
    WaitAnswer, WaitAsks, WaitDecision, WaitPolled,
};
use dalsegno_protocol::{Boundary, OnTimeout, ParkMode, WaitOutcome, WaitState};
use jiff::Timestamp;

use super::waits::{
    approval, in_ms, in_time, later, open, park_on, parked, parked_before, request, settle_after,
};
use crate::context::*;
use crate::engines::on_every_engine;

on_every_engine! {
    a_person_answers_an_approval_and_the_run_goes_on,
    the_same_decision_again_is_a_duplicate_and_another_one_comes_too_late,
    a_decision_is_bound_to_the_wait_and_its_opening_epoch,
    a_deadline_answers_a_wait_that_was_not_answered,
    a_deadline_holds_only_a_run_that_is_parked_on_the_wait,
    a_deadline_fails_only_a_run_that_is_parked_on_the_wait,
    an_approval_times_out_only_by_the_operators_word,
    a_decision_lifts_the_hold_of_a_deadline,
    the_poll_lists_a_run_whose_time_has_come_while_no_gateway_serves,
    workers_poll_the_states_of_waits_together,
    the_operator_parks_a_worker_that_has_opened_a_wait_since_its_last_boundary,
    an_older_wait_does_not_excuse_a_silent_worker,
}

fn decision(id: &str, epoch: i64, outcome: WaitOutcome) -> WaitAnswer {
    let decision = WaitDecision {
        by: "ada".into(),
        reason: Some("the bill is right".into()),
        changes: (outcome == WaitOutcome::Changed).then(|| json(r#"{"amount":  2}"#)),
    };
    WaitAnswer { id: id.into(), epoch, outcome, decision }
}

async fn a_person_answers_an_approval_and_the_run_goes_on(cx: &TestContext) {
    let worker = cx.worker().await;
    let body = json(r#"{"kind":"approval","title":"pay",  "proposal":{"cents":5}}"#);
    let wait = open(cx, &OpenWaitRequest { body, ..request(&worker, "pay", approval()) }).await;
    assert_eq!(wait.facts.proposal_hash, Some([9; 32]));
    parked(cx, &worker, &["pay"], ParkMode::All).await;
    let answer = decision("pay", wait.facts.epoch, WaitOutcome::Changed);
    let Answered::Ok(run) = cx.answer_wait(worker.run, &answer).await.unwrap() else { panic!("it is open") };
    assert_eq!((run.park.clone(), run.waits.len()), (None, 0));
    let [wait] = &cx.waits(worker.run).await.unwrap()[..] else { panic!("it was answered since the head") };
    let given = wait.answer.clone().unwrap();
    let words = given.decision.unwrap();
    assert_eq!((given.outcome, words.by.as_str()), (WaitOutcome::Changed, "ada"));
    assert_eq!(words.changes.unwrap().get(), r#"{"amount":  2}"#);

    let proposal = cx.proposal(worker.run, "pay", wait.facts.epoch).await.unwrap().unwrap();
    assert_eq!(proposal.salt, Some([7; 16]));
    assert!(proposal.request.unwrap().get().contains(r#""title":"pay",  "proposal""#));
    assert!(cx.proposal(worker.run, "pay", wait.facts.epoch + 1).await.unwrap().is_none());
    let audit = cx.audit(worker.run).await.unwrap();
    let answered = audit.iter().find(|row| row.kind == "waitAnswered").unwrap();
    assert_eq!(answered.actor, "ada");
    assert!(!answered.detail.to_string().contains("the bill is right"), "the audit has digests only");
    cx.start_worker(&run).await;
    cx.assert_audit_is_valid(worker.run).await;
}

async fn the_same_decision_again_is_a_duplicate_and_another_one_comes_too_late(cx: &TestContext) {
    let worker = cx.worker().await;
    let epoch = open(cx, &request(&worker, "pay", approval())).await.facts.epoch;
    let approved = decision("pay", epoch, WaitOutcome::Approved);
    assert!(matches!(cx.answer_wait(worker.run, &approved).await.unwrap(), Answered::Ok(_)));
    let audit = cx.audit(worker.run).await.unwrap();
    assert!(matches!(cx.answer_wait(worker.run, &approved).await.unwrap(), Answered::Duplicate(_)));
    let denied = decision("pay", epoch, WaitOutcome::Denied);
    assert!(matches!(cx.answer_wait(worker.run, &denied).await.unwrap(), Answered::NotOpen(_)));
    assert_eq!(cx.audit(worker.run).await.unwrap(), audit);
}

async fn a_decision_is_bound_to_the_wait_and_its_opening_epoch(cx: &TestContext) {
    let worker = cx.worker().await;
    let epoch = open(cx, &request(&worker, "pay", approval())).await.facts.epoch;
    open(cx, &request(&worker, "noon", later())).await;
    for (id, epoch) in [("pay", epoch + 1), ("other", epoch), ("noon", epoch)] {
        let answer = decision(id, epoch, WaitOutcome::Approved);
        let answered = cx.answer_wait(worker.run, &answer).await.unwrap();
        assert!(matches!(answered, Answered::NoSuchWait(_)), "{id}: {answered:?}");
    }
    assert_eq!(cx.run_of(&worker).await.waits.len(), 2);
}

/// A wait for a message, with this deadline.
fn with_deadline(worker: &Worker, id: &str, on_timeout: OnTimeout) -> OpenWaitRequest {
    OpenWaitRequest { deadline_ms: Some(150), on_timeout, ..request(worker, id, WaitAsks::Message(None)) }
}

async fn a_deadline_answers_a_wait_that_was_not_answered(cx: &TestContext) {
    let worker = cx.worker().await;
    open(cx, &with_deadline(&worker, "ask", OnTimeout::Answer)).await;
    parked(cx, &worker, &["ask"], ParkMode::All).await;
    let run = settle_after(cx, &worker, 250).await;
    assert_eq!(run.park, None);
    let waits = cx.waits(worker.run).await.unwrap();
    assert_eq!(waits[0].answer.as_ref().unwrap().outcome, WaitOutcome::TimedOut);
    cx.assert_audit_is_valid(worker.run).await;
}

async fn a_deadline_holds_only_a_run_that_is_parked_on_the_wait(cx: &TestContext) {
    let worker = cx.worker().await;
    open(cx, &with_deadline(&worker, "ask", OnTimeout::Hold)).await;
    let run = settle_after(cx, &worker, 250).await;
    assert_eq!((run.timed_out_wait(), run.wake_at), (None, None), "the run is not parked on it");
    let run = parked(cx, &worker, &["ask"], ParkMode::All).await;
    assert!(run.is_expired(Deadline::Wake), "now it counts");
    let run = cx.settle_time(worker.run).await.unwrap();
    assert_eq!(run.timed_out_wait().unwrap().id, "ask");
    assert_eq!((run.park.is_some(), run.wake_at), (true, None), "it stays open, and is reported once");
    let audit = cx.audit(worker.run).await.unwrap();
    let timed_out: Vec<_> = audit.iter().filter(|row| row.kind == "waitTimedOut").collect();
    assert!(timed_out.len() == 1 && timed_out[0].detail.to_string().contains("Hold"), "{timed_out:?}");
}

async fn a_deadline_fails_only_a_run_that_is_parked_on_the_wait(cx: &TestContext) {
    let worker = cx.worker().await;
    open(cx, &with_deadline(&worker, "ask", OnTimeout::Fail)).await;
    assert_eq!(settle_after(cx, &worker, 250).await.lifecycle, Lifecycle::Live);
    parked(cx, &worker, &["ask"], ParkMode::All).await;
    let run = cx.settle_time(worker.run).await.unwrap();
    let finish = run.finish.clone().unwrap();
    assert_eq!((finish.outcome, finish.reason.as_str()), (RunOutcome::Failed, "WaitTimedOut"));
    assert_eq!((run.waits.len(), run.park, run.wake_at), (0, None, None));
    cx.assert_audit_is_valid(worker.run).await;
}

async fn an_approval_times_out_only_by_the_operators_word(cx: &TestContext) {
    let (worker, early) = (cx.worker().await, cx.worker().await);
    let asked = |worker: &Worker, ms: i64| {
        let asked = request(worker, "pay", approval());
        OpenWaitRequest { deadline_ms: Some(ms), ..asked }
    };
    let epoch = open(cx, &asked(&early, 3_600_000)).await.facts.epoch;
    let run = cx.time_out_wait(early.run, "pay", epoch).await.unwrap();
    assert_eq!(run.waits.len(), 1, "its deadline has not passed");
    let epoch = open(cx, &asked(&worker, 150)).await.facts.epoch;
    let run = settle_after(cx, &worker, 250).await;
    assert!(run.waits.len() == 1 && run.is_expired(Deadline::Wake), "the operator must look for a decision");
    for (id, epoch) in [("pay", epoch + 1), ("other", epoch)] {
        assert_eq!(cx.time_out_wait(worker.run, id, epoch).await.unwrap().waits.len(), 1);
    }
    let run = cx.time_out_wait(worker.run, "pay", epoch).await.unwrap();
    assert_eq!((run.waits.len(), run.wake_at), (0, None));
    assert_eq!(
        cx.waits(worker.run).await.unwrap()[0].answer.as_ref().unwrap().outcome,
        WaitOutcome::TimedOut
    );
}

async fn a_decision_lifts_the_hold_of_a_deadline(cx: &TestContext) {
    let worker = cx.worker().await;
    let asked = request(&worker, "pay", approval());
    let asked = OpenWaitRequest { deadline_ms: Some(100), on_timeout: OnTimeout::Hold, ..asked };
    let epoch = open(cx, &asked).await.facts.epoch;
    parked(cx, &worker, &["pay"], ParkMode::All).await;
    sleep_ms(200).await;
    let held = cx.time_out_wait(worker.run, "pay", epoch).await.unwrap();
    assert!(held.timed_out_wait().is_some());
    let answer = decision("pay", epoch, WaitOutcome::Denied);
    let Answered::Ok(run) = cx.answer_wait(worker.run, &answer).await.unwrap() else { panic!("it is open") };
    assert_eq!((run.timed_out_wait(), run.park.clone()), (None, None));
}

/// The deadline that the poll lists for this run.
async fn listed(cx: &TestContext, run: &RunRecord) -> Option<Deadline> {
    let poll = cx.poll_deadlines(Timestamp::now().into()).await.unwrap();
    poll.expired.iter().find(|it| it.object.uid == run.object_uid).map(|it| it.deadline)
}

async fn the_poll_lists_a_run_whose_time_has_come_while_no_gateway_serves(cx: &TestContext) {
    in_time(200, async |ms: i64| {
        let worker = cx.worker().await;
        let time = open(cx, &request(&worker, "soon", WaitAsks::Until(in_ms(ms)))).await.facts.wake_at;
        let park = park_on(&worker, &["soon"], ParkMode::All);
        let run = parked_before(cx, &worker, &park, time).await?;
        let early = listed(cx, &run).await;
        if cx.run_of(&worker).await.now >= time.unwrap() {
            return None;
        }
        assert_eq!(early, None);
        sleep_ms(ms.unsigned_abs() + 100).await;
        assert_eq!(listed(cx, &run).await, Some(Deadline::Wake));
        cx.settle_time(worker.run).await.unwrap();
        assert_eq!(listed(cx, &run).await, None);
        Some(())
    })
    .await;
}

async fn workers_poll_the_states_of_waits_together(cx: &TestContext) {
    let (one, other) = (cx.worker().await, cx.worker().await);
    let epoch = open(cx, &request(&one, "pay", approval())).await.facts.epoch;
    open(cx, &request(&other, "noon", later())).await;
    cx.answer_wait(one.run, &decision("pay", epoch, WaitOutcome::Approved)).await.unwrap();
    let polled = [
        (one.run, one.capability, "pay".to_owned()),
        (other.run, other.capability, "noon".to_owned()),
        (other.run, other.capability, "unknown".to_owned()),
        (other.run, one.capability, "noon".to_owned()),
    ];
    let states = cx.wait_states(&polled).await.unwrap();
    let [WaitPolled::Wait(first), WaitPolled::Wait(second), WaitPolled::NoSuchWait, WaitPolled::Fenced] =
        &states[..]
    else {
        panic!("{states:?}")
    };
    assert_eq!((first.state, second.state), (WaitState::Answered, WaitState::Open));
    assert_eq!(first.answer.as_ref().unwrap().decision.as_ref().unwrap().by, "ada");
}

async fn the_operator_parks_a_worker_that_has_opened_a_wait_since_its_last_boundary(cx: &TestContext) {
    let worker = cx.worker().await;
    open(cx, &request(&worker, "old", later())).await;
    cx.commit_turn(&worker, 1).await;
    open(cx, &request(&worker, "new", approval())).await;
    assert_eq!(cx.run_of(&worker).await.unattended_wait().unwrap().id, "new");
    let other = cx.park_unattended(worker.run, 2).await.unwrap();
    assert_eq!(other.attempt.number, 1, "another attempt");
    let run = cx.park_unattended(worker.run, 1).await.unwrap();
    assert_eq!((run.attempt.number, run.attempt.state), (2, AttemptState::Reserved));
    let end = run.past[0].end.clone().unwrap();
    assert_eq!((end.cause, end.class, end.charged), (Cause::Parked, Class::Neutral, false));
    let park = run.park.clone().unwrap();
    assert_eq!((park.on, park.mode), (vec!["old".to_owned(), "new".to_owned()], ParkMode::Any));
    let again = cx.park_unattended(worker.run, 1).await.unwrap();
    assert_eq!(without_times(again), without_times(run));
    cx.assert_audit_is_valid(worker.run).await;
}

async fn an_older_wait_does_not_excuse_a_silent_worker(cx: &TestContext) {
    let worker = cx.worker().await;
    open(cx, &request(&worker, "old", later())).await;
    sleep_ms(5).await;
    ok(cx.commit(&worker.commit(1, Boundary::Plan)).await.unwrap());
    let run = cx.park_unattended(worker.run, 1).await.unwrap();
    assert_eq!((run.attempt.number, run.unattended_wait()), (1, None));
}
