//! What becomes of waits: a rewind undoes them, the end of a run withdraws them, an adoption keeps them, and retention
//! deletes their payloads.

use dalsegno_model::{
    Answered, Cause, Class, Commit, Created, Ending, Lifecycle, NewFinish, NextStep, OnPrior,
    OpenWaitRequest, Retention, Rewound, RunOutcome, RunRecord, WaitAnswer, WaitAsks, WaitDecision,
    WaitOpened,
};
use dalsegno_protocol::{Boundary, ParkMode, WaitOutcome, WaitState};

use super::waits::{approval, in_ms, later, open, park_on, parked, request};
use crate::context::*;
use crate::engines::on_every_engine;

on_every_engine! {
    a_rewind_undoes_the_waits_of_the_turns_that_it_undoes,
    a_parked_run_that_is_rewound_is_parked_no_more,
    an_id_may_be_opened_again_after_its_wait_was_undone,
    every_end_of_a_run_withdraws_its_open_waits,
    a_deletion_withdraws_the_waits,
    an_adoption_keeps_the_waits_and_the_park,
    a_recovery_keeps_the_waits,
    the_waits_of_a_retried_boundary_stay,
    retention_deletes_the_payloads_of_waits_and_keeps_what_they_were,
    payloads_of_waits_are_sealed_with_the_run,
}

async fn rewound(cx: &TestContext, worker: &Worker, turn: i32) -> RunRecord {
    let run = cx.run_of(worker).await;
    match cx.rewind(worker.run, &rewind_to(run.epoch, result_place(turn))).await.unwrap() {
        Rewound::Done(run) => *run,
        refused @ Rewound::Refused(_) => panic!("{refused:?}"),
    }
}

fn ids(run: &RunRecord) -> Vec<&str> {
    run.waits.iter().map(|wait| wait.id.as_str()).collect()
}

async fn a_rewind_undoes_the_waits_of_the_turns_that_it_undoes(cx: &TestContext) {
    let worker = cx.worker().await;
    open(cx, &request(&worker, "turn-1", later())).await;
    cx.commit_turn(&worker, 1).await;
    open(cx, &request(&worker, "turn-2", later())).await;
    ok(cx.commit(&worker.commit(2, Boundary::Plan)).await.unwrap());
    open(cx, &request(&worker, "after-plan-2", later())).await;
    ok(cx.commit(&worker.result(2)).await.unwrap());
    let epoch = open(cx, &request(&worker, "turn-3", approval())).await.facts.epoch;
    let run = rewound(cx, &worker, 1).await;
    assert_eq!(ids(&run), ["turn-1"]);
    let answer = WaitAnswer {
        id: "turn-3".into(),
        epoch,
        outcome: WaitOutcome::Approved,
        decision: WaitDecision { by: "ada".into(), reason: None, changes: None },
    };
    let answered = cx.answer_wait(worker.run, &answer).await.unwrap();
    assert!(matches!(answered, Answered::NoSuchWait(_)), "{answered:?}");
    let run = rewound(cx, &worker, 1).await;
    assert_eq!(ids(&run), ["turn-1"], "a rewind to the head changes nothing");
    cx.assert_audit_is_valid(worker.run).await;
}

async fn a_parked_run_that_is_rewound_is_parked_no_more(cx: &TestContext) {
    let worker = cx.worker().await;
    open(cx, &request(&worker, "turn-1", later())).await;
    cx.commit_turn(&worker, 1).await;
    cx.commit_turn(&worker, 2).await;
    let run = parked(cx, &worker, &["turn-1"], ParkMode::All).await;
    assert!(run.park.is_some());
    let run = rewound(cx, &worker, 1).await;
    assert_eq!((run.park.clone(), ids(&run)), (None, vec!["turn-1"]));
    cx.start_worker(&run).await;
}

async fn an_id_may_be_opened_again_after_its_wait_was_undone(cx: &TestContext) {
    let worker = cx.worker().await;
    cx.commit_turn(&worker, 1).await;
    cx.commit_turn(&worker, 2).await;
    let first = open(cx, &request(&worker, "pay", approval())).await;
    let run = rewound(cx, &worker, 1).await;
    let next = cx.start_worker(&run).await;
    let second = open(cx, &request(&next, "pay", approval())).await;
    assert_ne!(first.facts.epoch, second.facts.epoch);
    assert_eq!(ids(&cx.run_of(&next).await), ["pay"]);
    let state = async |epoch| cx.proposal(next.run, "pay", epoch).await.unwrap().unwrap().wait.state;
    let states = (state(first.facts.epoch).await, state(second.facts.epoch).await);
    assert_eq!(
        states,
        (WaitState::Withdrawn, WaitState::Open),
        "both stay in the store, and one can be answered"
    );
}

/// Asserts that the run has ended and has no open wait.
async fn assert_withdrawn(cx: &TestContext, worker: &Worker, epoch: i64) {
    let run = cx.run_of(worker).await;
    assert_ne!(run.lifecycle, Lifecycle::Live);
    assert_eq!((run.waits.len(), run.park.clone(), run.wake_at), (0, None, None));
    let proposal = cx.proposal(worker.run, "noon", epoch).await.unwrap().unwrap();
    assert_eq!(proposal.wait.state, WaitState::Withdrawn);
    let audit = cx.audit(worker.run).await.unwrap();
    let withdrawn = audit.iter().filter(|row| row.kind == "waitWithdrawn").count();
    assert_eq!(withdrawn, 1);
    cx.assert_audit_is_valid(worker.run).await;
}

async fn waiting_worker(cx: &TestContext) -> (Worker, i64) {
    let worker = cx.worker().await;
    let epoch = open(cx, &request(&worker, "noon", later())).await.facts.epoch;
    open(cx, &request(&worker, "pay", approval())).await;
    (worker, epoch)
}

async fn every_end_of_a_run_withdraws_its_open_waits(cx: &TestContext) {
    let (worker, epoch) = waiting_worker(cx).await;
    ok(cx.finish(&worker.finish()).await.unwrap());
    assert_withdrawn(cx, &worker, epoch).await;

    let (worker, epoch) = waiting_worker(cx).await;
    let last = Commit { finish: Some(succeeded()), ..worker.result(1) };
    ok(cx.commit(&last).await.unwrap());
    assert_withdrawn(cx, &worker, epoch).await;

    let (worker, epoch) = waiting_worker(cx).await;
    cx.request_cancel(worker.run).await.unwrap();
    cx.acknowledge_cancel(worker.run, &worker.capability).await.unwrap();
    assert_withdrawn(cx, &worker, epoch).await;

    let (worker, epoch) = waiting_worker(cx).await;
    cx.request_cancel(worker.run).await.unwrap();
    cx.park(&park_on(&worker, &["noon"], ParkMode::All)).await.unwrap();
    assert_withdrawn(cx, &worker, epoch).await;

    let (worker, epoch) = waiting_worker(cx).await;
    parked(cx, &worker, &["noon"], ParkMode::All).await;
    let finish = NewFinish { outcome: RunOutcome::Cancelled, ..succeeded() };
    let ending = Ending { cause: Cause::Cancelled, ..ending(2, Class::Neutral) };
    cx.end_attempt(worker.run, &ending, &NextStep::Finish(finish)).await.unwrap();
    assert_withdrawn(cx, &worker, epoch).await;
}

async fn a_deletion_withdraws_the_waits(cx: &TestContext) {
    let (worker, epoch) = waiting_worker(cx).await;
    parked(cx, &worker, &["noon"], ParkMode::All).await;
    cx.mark_deleted(&worker.object_uid).await.unwrap();
    let run = cx.get_run(worker.run).await.unwrap().unwrap();
    assert_eq!((run.lifecycle, run.waits.len(), run.park), (Lifecycle::Deleted, 0, None));
    let proposal = cx.proposal(worker.run, "noon", epoch).await.unwrap().unwrap();
    assert_eq!(proposal.wait.state, WaitState::Withdrawn);
    cx.assert_audit_is_valid(worker.run).await;
}

async fn an_adoption_keeps_the_waits_and_the_park(cx: &TestContext) {
    let new = new_run();
    let worker = cx.start_worker(&cx.create(&new).await).await;
    open(cx, &request(&worker, "noon", later())).await;
    let before = parked(cx, &worker, &["noon"], ParkMode::All).await;
    let Created::Run(adopted) = cx.create_run(&namesake(&new, OnPrior::Adopt)).await.unwrap() else {
        panic!("it may be adopted")
    };
    assert_eq!((adopted.waits, adopted.park), (before.waits, before.park));
    assert_eq!(adopted.attempt.number, 3);
}

async fn a_recovery_keeps_the_waits(cx: &TestContext) {
    let (worker, _) = waiting_worker(cx).await;
    cx.end_and_reserve(&worker, Class::Disruption).await;
    let run = cx.run_of(&worker).await;
    assert_eq!((ids(&run), run.park.clone()), (vec!["noon", "pay"], None));
    let next = cx.start_worker(&run).await;
    parked(cx, &next, &["noon", "pay"], ParkMode::All).await;
}

async fn the_waits_of_a_retried_boundary_stay(cx: &TestContext) {
    let (worker, _) = waiting_worker(cx).await;
    let commit = worker.result(1);
    let receipt = ok(cx.commit(&commit).await.unwrap());
    assert_eq!(cx.commit(&resend(&commit)).await.unwrap(), duplicate(&receipt));
    assert_eq!(ids(&cx.run_of(&worker).await), ["noon", "pay"]);
}

async fn retention_deletes_the_payloads_of_waits_and_keeps_what_they_were(cx: &TestContext) {
    let (worker, epoch) = waiting_worker(cx).await;
    ok(cx.finish(&worker.finish()).await.unwrap());
    cx.set_retention(worker.run, &Retention { days: 0, ..Retention::default() }).await.unwrap();
    sleep_ms(5).await;
    while !cx.expire(worker.run, 100).await.unwrap().done {}
    let proposal = cx.proposal(worker.run, "noon", epoch).await.unwrap().unwrap();
    assert!(proposal.request.is_none());
    assert_eq!(proposal.wait.state, WaitState::Withdrawn);
    cx.assert_audit_is_valid(worker.run).await;
}

async fn payloads_of_waits_are_sealed_with_the_run(cx: &TestContext) {
    let worker = cx.worker().await;
    let body = json(r#"{"kind":"message","topic":"secret word"}"#);
    let asked = request(&worker, "pay", WaitAsks::Until(in_ms(60_000)));
    let asked = OpenWaitRequest { body, ..asked };
    let before = cx.count_unsealed(worker.run).await.unwrap();
    open(cx, &asked).await;
    let after = cx.count_unsealed(worker.run).await.unwrap();
    assert_eq!(after - before, u64::from(!cx.sealed), "a request is a payload");
    assert!(matches!(cx.open_wait(&asked).await.unwrap(), WaitOpened::Wait(_)));
}
