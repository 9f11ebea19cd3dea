//! Interleavings: each call of a worker, in every kind of delivery, before and after every other change of its run. A case
//! is played, described in words, and compared with the table in `docs/reference/interleavings.md`.

mod cases;
mod lock_queue;
mod request;

use dalsegno_model::{
    AttemptState, CallFilter, Class, Commit, Lifecycle, NextStep, Retention, Rewound, RunRecord,
    SNAPSHOT_DUE, Store,
};
use dalsegno_proof::verify;
use dalsegno_protocol::{Boundary, Payload, Policy, RecordOp};
use futures::FutureExt as _;
use futures::stream::{self, StreamExt as _};
use uuid::Uuid;

use crate::context::*;
use crate::engines::on_every_engine;
use cases::{Call, Case, Delivery, Epoch, Moment, Step};
use request::Request;

on_every_engine! {
    a_plan_has_the_documented_outcome,
    a_result_has_the_documented_outcome,
    a_claim_has_the_documented_outcome,
    a_complete_has_the_documented_outcome,
    a_settle_has_the_documented_outcome,
    a_finish_has_the_documented_outcome,
    records_have_the_documented_outcome,
}

async fn a_plan_has_the_documented_outcome(cx: &TestContext) {
    check_cases_of(Call::Plan, cx).await;
}

async fn a_result_has_the_documented_outcome(cx: &TestContext) {
    check_cases_of(Call::Result, cx).await;
}

async fn a_claim_has_the_documented_outcome(cx: &TestContext) {
    check_cases_of(Call::Claim, cx).await;
}

async fn a_complete_has_the_documented_outcome(cx: &TestContext) {
    check_cases_of(Call::Complete, cx).await;
}

async fn a_settle_has_the_documented_outcome(cx: &TestContext) {
    check_cases_of(Call::Settle, cx).await;
}

async fn a_finish_has_the_documented_outcome(cx: &TestContext) {
    check_cases_of(Call::Finish, cx).await;
}

async fn records_have_the_documented_outcome(cx: &TestContext) {
    check_cases_of(Call::Records, cx).await;
}

/// How many cases run at the same time, each with its own run. A case mostly waits for the disk.
const AT_ONCE: usize = 6;

/// How often a concurrent case is played until its requests arrive in the right order. These cases run one after the other:
/// each request that waits for a row lock holds a connection, and pgbouncer has few.
const TRIES: usize = 25;

async fn check_cases_of(call: Call, cx: &TestContext) {
    let (concurrent, others): (Vec<_>, Vec<_>) =
        cases::of(call).partition(|it| it.delivery == Delivery::Concurrent);
    let mut wrong = Vec::new();
    for (cases, at_once) in [(concurrent, 1), (others, AT_ONCE)] {
        let played = stream::iter(cases).map(async |case| (outcome(&case, cx).await, case));
        let played: Vec<_> = played.buffered(at_once).collect().await;
        let others = played.into_iter().filter(|(found, case)| found != case.expected());
        wrong.extend(others.map(|(found, case)| format!("{case}: the outcome was: {found}")));
    }
    assert!(wrong.is_empty(), "not the documented outcome:\n{}", wrong.join("\n"));
}

/// The outcome of a case. When the first of three requests releases a PostgreSQL row, the third may overtake the second.
async fn outcome(case: &Case, cx: &TestContext) -> String {
    for _ in 1..TRIES {
        let found = play(case, cx).await;
        if found == case.expected() || case.overtaken().is_none_or(|other| found != other.expected()) {
            return found;
        }
    }
    play(case, cx).await
}

/// Plays a case to its end. Returns the last answer and what is stored.
async fn play(case: &Case, cx: &TestContext) -> String {
    let mut worker = cx.worker().await;
    for turn in 1..=turns(case.step) {
        ok(cx.commit(&delta(&worker, turn, Boundary::Result)).await.unwrap());
    }
    if case.moment == Moment::After {
        step(case.step, cx, &worker).await;
        worker = current(cx, &worker).await;
    }
    let (worker, request) = prepare(case.call, cx, worker).await;
    let answer = match (case.delivery, case.epoch) {
        (Delivery::Concurrent, epoch) => send_twice(cx, &worker, &request, epoch).await.join(" and "),
        (delivery, epoch) => {
            if delivery == Delivery::Lost {
                let lost = request.send(&*cx.store).await;
                assert!(matches!(lost, "ok" | "go"), "{case}: {lost}");
                if case.moment == Moment::Before {
                    step(case.step, cx, &worker).await;
                }
            }
            if epoch == Epoch::Next {
                replace(cx, &worker).await;
            }
            request.send(&*cx.store).await.to_owned()
        }
    };
    if case.moment == Moment::Before && case.delivery != Delivery::Lost {
        step(case.step, cx, &worker).await;
    }
    let stored = request.stored(cx, worker.run).await;
    assert_run_goes_on(case, cx, &worker).await;
    format!("{answer}, {stored}")
}

/// The number of turns that the step needs.
fn turns(step: Step) -> i32 {
    match step {
        Step::Rewind => 2,
        Step::Snapshot => SNAPSHOT_DUE,
        // A live run keeps up to nine boundaries more than `keepLast`.
        Step::Retention => 11,
    }
}

async fn step(step: Step, cx: &TestContext, worker: &Worker) {
    let run = cx.run_of(worker).await;
    match step {
        Step::Rewind => {
            let rewind = rewind_to(run.epoch, result_place(turns(step) - 1));
            let rewound = cx.rewind(run.id, &rewind).await.unwrap();
            assert_eq!(matches!(rewound, Rewound::Done(_)), run.lifecycle == Lifecycle::Live, "{rewound:?}");
        }
        Step::Snapshot => assert!(cx.snapshot(run.id).await.unwrap().made),
        Step::Retention => {
            let retention = Retention { keep_last: Some(1), ..Retention::default() };
            cx.set_retention(run.id, &retention).await.unwrap();
            assert!(cx.compact(run.id, 500).await.unwrap().rows >= 10);
        }
    }
}

/// Sends the request twice at the same time, through two gateways, and ends the sender's attempt at the given place.
/// Returns the answers in the order of the requests.
async fn send_twice(cx: &TestContext, worker: &Worker, request: &Request, epoch: Epoch) -> Vec<&'static str> {
    let run = cx.run_of(worker).await;
    let mut all = vec![request.send(&*cx.store).boxed(), request.send(&*cx.second_gateway).boxed()];
    let end = match epoch {
        Epoch::Same => None,
        Epoch::First => Some(0),
        Epoch::Between => Some(1),
        Epoch::Next | Epoch::Last => Some(2),
    };
    if let Some(boundary_id) = end {
        all.insert(boundary_id, end_attempt(&*cx.second_gateway, &run).map(|()| ENDED).boxed());
    }
    let mut answers = lock_queue::in_order(cx, run.id, all).await;
    answers.retain(|answer| *answer != ENDED);
    answers
}

/// The placeholder answer of the request that ends the attempt.
const ENDED: &str = "ended";

/// Ends the current attempt, if it has a pod, and reserves the next one.
async fn end_attempt(store: &dyn Store, run: &RunRecord) {
    if matches!(run.attempt.state, AttemptState::Created | AttemptState::Attached) {
        let ending = ending(run.attempt.number, Class::Disruption);
        store.end_attempt(run.id, &ending, &NextStep::Reserve).await.unwrap();
    }
}

/// Ends the worker's attempt; a new worker replaces it unless the run is over.
async fn replace(cx: &TestContext, worker: &Worker) {
    end_attempt(&*cx.store, &cx.run_of(worker).await).await;
    if cx.run_of(worker).await.lifecycle == Lifecycle::Live {
        current(cx, worker).await;
    }
}

/// A worker of the reserved attempt; if none is reserved, the current worker.
async fn current(cx: &TestContext, worker: &Worker) -> Worker {
    let run = cx.run_of(worker).await;
    if run.attempt.state == AttemptState::Reserved { cx.start_worker(&run).await } else { worker.clone() }
}

/// Brings the run to the point where the call is possible. Returns the request and its sender.
async fn prepare(call: Call, cx: &TestContext, worker: Worker) -> (Worker, Request) {
    let run = cx.run_of(&worker).await;
    let next = run.head.map_or(1, |head| head.turn + 1);
    let request = match call {
        Call::Plan => {
            let (calls, records) = (vec![planned(PAY, Policy::Probe)], vec![note()]);
            let plan = Commit { calls, records, ..delta(&worker, next, Boundary::Plan) };
            Request::Commit(Box::new(plan), run.epoch)
        }
        Call::Result => Request::Commit(Box::new(delta(&worker, next, Boundary::Result)), run.epoch),
        Call::Claim => Request::Claim(worker.claim(PAY, Policy::Probe)),
        Call::Complete => {
            Request::Complete(worker.complete(&cx.start_call(&worker, PAY, Policy::Probe).await))
        }
        Call::Settle => {
            cx.start_call(&worker, PAY, Policy::Probe).await;
            let next = cx.next_worker(&worker).await;
            let settle = next.settle(PAY);
            return (next, Request::Settle(settle));
        }
        Call::Finish => Request::Finish(worker.finish()),
        Call::Records => Request::Records(worker.record_batch(vec![note()])),
    };
    (worker, request)
}

/// The id of the case's only call.
const PAY: &str = "pay";

/// A record with an id of its own: a second append of it would show as a second entry.
fn note() -> RecordOp {
    let (space, key, entry_id) = ("s".into(), "k".into(), Uuid::new_v4().to_string());
    RecordOp::Append { space, key, entry_id, value: Payload::Json(json("1")) }
}

fn delta(worker: &Worker, turn: i32, boundary: Boundary) -> Commit {
    let ops = format!(r#"{{"append":{{"log":[{{"json":{turn}}}]}}}}"#).into_bytes();
    Commit { ops: Some(ops), full: false, ..worker.commit(turn, boundary) }
}

/// Asserts that nothing is damaged and that the run continues from its head unless it is over.
async fn assert_run_goes_on(case: &Case, cx: &TestContext, worker: &Worker) {
    let run = cx.run_of(worker).await;
    if run.lifecycle == Lifecycle::Live {
        end_attempt(&*cx.store, &run).await;
        let worker = current(cx, worker).await;
        if !cx.call_ids(run.id, CallFilter::Unsettled).await.is_empty() {
            cx.settle(&person_settles(run.id, PAY)).await.unwrap();
        }
        let next = match run.head.as_ref().map(|head| (head.turn, head.boundary)) {
            Some((turn, Boundary::Result)) => turn + 1,
            Some((turn, Boundary::Plan)) => turn,
            None => 1,
        };
        ok(cx.commit(&delta(&worker, next, Boundary::Result)).await.unwrap());
    }
    let run = cx.run_of(worker).await;
    let damage = verify::scan(&*cx.store, &run).await.unwrap().damage;
    assert_eq!(damage, [], "{case}");
    assert!(cx.state(run.id, None).await.unwrap().is_some(), "{case}");
    cx.assert_audit_is_valid(run.id).await;
}
