//! Calls of a worker, delivered in every way, in between what else happens to a run. A case is played, told in words, and
//! held to the table in `docs/reference/interleavings.md`.

mod cases;
mod line;
mod request;

use dalsegno_protocol::{Boundary, Payload, Policy, RecordOp};
use dalsegno_store::{
    AttemptState, CallFilter, Class, Commit, Lifecycle, Place, RecordBatch, Retention, Rewind, Rewound,
    RunRecord, SNAPSHOT_DUE, Store, Then, verify,
};
use futures::FutureExt as _;
use futures::stream::{self, StreamExt as _};
use uuid::Uuid;

use crate::faces::on_every_face;
use crate::world::*;
use cases::{Call, Case, Delivery, Epoch, Moment, Step};
use request::Request;

on_every_face! {
    a_plan_comes_to_what_the_page_says,
    a_result_comes_to_what_the_page_says,
    a_claim_comes_to_what_the_page_says,
    a_complete_comes_to_what_the_page_says,
    a_settle_comes_to_what_the_page_says,
    a_finish_comes_to_what_the_page_says,
    records_come_to_what_the_page_says,
}

async fn a_plan_comes_to_what_the_page_says(world: &World) {
    every_case_of(Call::Plan, world).await;
}

async fn a_result_comes_to_what_the_page_says(world: &World) {
    every_case_of(Call::Result, world).await;
}

async fn a_claim_comes_to_what_the_page_says(world: &World) {
    every_case_of(Call::Claim, world).await;
}

async fn a_complete_comes_to_what_the_page_says(world: &World) {
    every_case_of(Call::Complete, world).await;
}

async fn a_settle_comes_to_what_the_page_says(world: &World) {
    every_case_of(Call::Settle, world).await;
}

async fn a_finish_comes_to_what_the_page_says(world: &World) {
    every_case_of(Call::Finish, world).await;
}

async fn records_come_to_what_the_page_says(world: &World) {
    every_case_of(Call::Records, world).await;
}

/// Cases that are played at once, each with a run of its own: most of a case is waiting for the disk.
const AT_ONCE: usize = 6;

/// How often a case of twins is played until they come in its order. One after the other: those who wait for a row hold a
/// connection each, of which pgbouncer has few.
const TRIES: usize = 25;

async fn every_case_of(call: Call, world: &World) {
    let (twins, others): (Vec<_>, Vec<_>) = cases::of(call).partition(|it| it.delivery == Delivery::Twins);
    let mut wrong = Vec::new();
    for (cases, at_once) in [(twins, 1), (others, AT_ONCE)] {
        let played = stream::iter(cases).map(async |case| (come_to(&case, world).await, case));
        let played: Vec<_> = played.buffered(at_once).collect().await;
        let others = played.into_iter().filter(|(found, case)| found != case.expected());
        wrong.extend(others.map(|(found, case)| format!("{case}: it came to: {found}")));
    }
    assert!(wrong.is_empty(), "not what the page says:\n{}", wrong.join("\n"));
}

/// What a case comes to. As the first of three lets go of a row of PostgreSQL's, the third may overtake the second.
async fn come_to(case: &Case, world: &World) -> String {
    for _ in 1..TRIES {
        let found = play(case, world).await;
        if found == case.expected() || case.overtaken().is_none_or(|other| found != other.expected()) {
            return found;
        }
    }
    play(case, world).await
}

/// Plays a case to its end, and tells the last answer and what stands then.
async fn play(case: &Case, world: &World) -> String {
    let mut worker = world.worker().await;
    for turn in 1..=turns(case.step) {
        ok(world.commit(&delta(&worker, turn, Boundary::Result)).await.unwrap());
    }
    if case.moment == Moment::After {
        step(case.step, world, &worker).await;
        worker = current(world, &worker).await;
    }
    let (worker, request) = prepare(case.call, world, worker).await;
    let answer = match (case.delivery, case.epoch) {
        (Delivery::Twins, epoch) => twins(world, &worker, &request, epoch).await.join(" and "),
        (delivery, epoch) => {
            if delivery == Delivery::Lost {
                let lost = request.send(&*world.store).await;
                assert!(matches!(lost, "ok" | "go"), "{case}: {lost}");
                if case.moment == Moment::Before {
                    step(case.step, world, &worker).await;
                }
            }
            if epoch == Epoch::Next {
                replace(world, &worker).await;
            }
            request.send(&*world.store).await.to_owned()
        }
    };
    if case.moment == Moment::Before && case.delivery != Delivery::Lost {
        step(case.step, world, &worker).await;
    }
    let stands = request.stands(world, worker.run).await;
    goes_on(case, world, &worker).await;
    format!("{answer}, {stands}")
}

/// So many that the step has something to do.
fn turns(step: Step) -> i32 {
    match step {
        Step::Rewind => 2,
        Step::Snapshot => SNAPSHOT_DUE,
        // A run that lives keeps up to nine more than it was told to.
        Step::Retention => 11,
    }
}

async fn step(step: Step, world: &World, worker: &Worker) {
    let run = world.of(worker).await;
    match step {
        Step::Rewind => {
            let to = Place { turn: turns(step) - 1, boundary: Boundary::Result, epoch: 1 };
            let rewind =
                Rewind { epoch: run.epoch, to, reason: "it went astray".into(), actor: "ada".into() };
            let rewound = world.rewind(run.id, &rewind).await.unwrap();
            assert_eq!(matches!(rewound, Rewound::Done(_)), run.lifecycle == Lifecycle::Live, "{rewound:?}");
        }
        Step::Snapshot => assert!(world.snapshot(run.id).await.unwrap().made),
        Step::Retention => {
            let retention = Retention { keep_last: Some(1), ..Retention::default() };
            world.set_retention(run.id, &retention).await.unwrap();
            assert!(world.drop_old(run.id, 500).await.unwrap().rows >= 10);
        }
    }
}

/// Both at once, each by a gateway of its own, and with them the loss of their sender's attempt. Their answers, as they came.
async fn twins(world: &World, worker: &Worker, request: &Request, epoch: Epoch) -> Vec<&'static str> {
    let run = world.of(worker).await;
    let mut all = vec![request.send(&*world.store).boxed(), request.send(&*world.other).boxed()];
    let loss = match epoch {
        Epoch::Same => None,
        Epoch::First => Some(0),
        Epoch::Between => Some(1),
        Epoch::Next | Epoch::Last => Some(2),
    };
    if let Some(place) = loss {
        all.insert(place, lose(&*world.other, &run).map(|()| LOST).boxed());
    }
    let mut answers = line::in_order(world, run.id, all).await;
    answers.retain(|answer| *answer != LOST);
    answers
}

/// Who loses an attempt hears no answer of a twin's.
const LOST: &str = "lost";

/// Ends the current attempt, if it has a pod; the next is reserved.
async fn lose(store: &dyn Store, run: &RunRecord) {
    if matches!(run.attempt.state, AttemptState::Created | AttemptState::Attached) {
        let ending = ending(run.attempt.number, Class::Disruption);
        store.end_attempt(run.id, &ending, &Then::Reserve).await.unwrap();
    }
}

/// The worker's attempt is lost; another works on, unless the run is over.
async fn replace(world: &World, worker: &Worker) {
    lose(&*world.store, &world.of(worker).await).await;
    if world.of(worker).await.lifecycle == Lifecycle::Live {
        current(world, worker).await;
    }
}

/// The worker of the attempt that is reserved; else the one there is.
async fn current(world: &World, worker: &Worker) -> Worker {
    let run = world.of(worker).await;
    if run.attempt.state == AttemptState::Reserved { world.work_on(&run).await } else { worker.clone() }
}

/// What is sent, and by whom, once the way to it is made.
async fn prepare(call: Call, world: &World, worker: Worker) -> (Worker, Request) {
    let run = world.of(&worker).await;
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
            Request::Complete(worker.complete(&world.start_call(&worker, PAY, Policy::Probe).await))
        }
        Call::Settle => {
            world.start_call(&worker, PAY, Policy::Probe).await;
            let next = world.next(&worker).await;
            let settle = next.settle(PAY);
            return (next, Request::Settle(settle));
        }
        Call::Finish => Request::Finish(worker.finish()),
        Call::Records => Request::Records(RecordBatch {
            run: worker.run,
            capability: worker.capability,
            batch_id: Uuid::new_v4(),
            digest: random(),
            operations: vec![note()],
        }),
    };
    (worker, request)
}

/// The one call of a case.
const PAY: &str = "pay";

/// Appended twice it would be there twice: each has an id of its own.
fn note() -> RecordOp {
    let (space, key, entry_id) = ("s".into(), "k".into(), Uuid::new_v4().to_string());
    RecordOp::Append { space, key, entry_id, value: Payload::Json(json("1")) }
}

fn delta(worker: &Worker, turn: i32, boundary: Boundary) -> Commit {
    let ops = format!(r#"{{"append":{{"log":[{{"json":{turn}}}]}}}}"#).into_bytes();
    Commit { ops: Some(ops), full: false, ..worker.commit(turn, boundary) }
}

/// Whatever happened: nothing is damaged, and the run goes on from where it stands, unless it is over.
async fn goes_on(case: &Case, world: &World, worker: &Worker) {
    let run = world.of(worker).await;
    if run.lifecycle == Lifecycle::Live {
        lose(&*world.store, &run).await;
        let worker = current(world, worker).await;
        if !world.call_ids(run.id, CallFilter::Unsettled).await.is_empty() {
            world.settle(&person_settles(run.id, PAY)).await.unwrap();
        }
        let next = match run.head.as_ref().map(|head| (head.turn, head.boundary)) {
            Some((turn, Boundary::Result)) => turn + 1,
            Some((turn, Boundary::Plan)) => turn,
            None => 1,
        };
        ok(world.commit(&delta(&worker, next, Boundary::Result)).await.unwrap());
    }
    let run = world.of(worker).await;
    let damage = verify::survey(&*world.store, &run).await.unwrap().damage;
    assert_eq!(damage, [], "{case}");
    assert!(world.state(run.id, None).await.unwrap().is_some(), "{case}");
    world.proves_itself(run.id).await;
}
