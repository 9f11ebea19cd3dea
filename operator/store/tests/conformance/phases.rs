//! What each call of a person and each acknowledgement of a worker does in each phase of a run, as one table.

use dalsegno_model::{Class, NextStep, PodRecord, RequestedBy, Rewound, RunRecord, StepBack};
use dalsegno_protocol::ParkMode;
use futures::stream::{self, StreamExt as _};

use crate::context::*;
use crate::engines::on_every_engine;
use crate::requested_rewinds::request as rewind_request;
use crate::waits::{later, open, park_on, request};

on_every_engine! {
    each_call_has_its_defined_effect_in_each_phase,
}

/// What each call does. `-`: nothing changes. `+` and `-` with a name: the person's request is made or withdrawn. The
/// current attempt is the second one, or the third one of a parked or waiting run; the first one committed two turns.
#[rustfmt::skip]
pub const TABLE: [(Phase, [&str; VERBS.len()]); 12] = [
    //                  Suspend     Resume      Cancel
    //                  Park
    //                  AcknowledgeCancel
    //                  Rewind
    //                  ResetBudget   MarkDeleted
    //                  OpenWait      ParkOnWait   SettleTime  ParkUnattended
    //                  RequestRewind  StepBack
    (Phase::Reserved,   ["+suspend", "-",       "+cancel",
                         "Fenced: -",
                         "Fenced: -",
                         "Done: fenced, turn 1",
                         "reset", "Deleted, fenced, 2 ended RunDeleted",
                         "Fenced: -", "Fenced: -", "-", "-",
                         "fenced, turn 1, rewind 1", "Done: fenced, turn 1"]),
    (Phase::Created,    ["+suspend", "-",       "+cancel",
                         "Fenced: -",
                         "Fenced: -",
                         "Done: fenced, 2 ended Rewound, 3 Reserved, turn 1",
                         "reset", "Deleted, fenced, 2 ended RunDeleted",
                         "Fenced: -", "Fenced: -", "-", "-",
                         "fenced, 2 ended Rewound, 3 Reserved, turn 1, rewind 1", "Refused: -"]),
    (Phase::Attached,   ["+suspend", "-",       "+cancel",
                         "Ready: -",
                         "NotRequested: -",
                         "Done: fenced, 2 ended Rewound, 3 Reserved, turn 1",
                         "reset", "Deleted, fenced, 2 ended RunDeleted",
                         "Wait: 1 waits", "NoSuchWait(\"wait\"): -", "-", "-",
                         "fenced, 2 ended Rewound, 3 Reserved, turn 1, rewind 1", "Refused: -"]),
    (Phase::Suspended,  ["-",       "-suspend", "+cancel",
                         "Parked: fenced, 2 ended Suspended, 3 Reserved",
                         "NotRequested: -",
                         "Done: fenced, 2 ended Rewound, 3 Reserved, turn 1",
                         "reset", "Deleted, fenced, 2 ended RunDeleted",
                         "Wait: 1 waits", "NoSuchWait(\"wait\"): -", "-", "-",
                         "fenced, 2 ended Rewound, 3 Reserved, turn 1, rewind 1", "Refused: -"]),
    (Phase::Told,       ["-",       "-suspend", "+cancel",
                         "Parked: fenced, 2 ended Suspended, 3 Reserved",
                         "NotRequested: -",
                         "Done: fenced, 2 ended Rewound, 3 Reserved, turn 1",
                         "reset", "Deleted, fenced, 2 ended RunDeleted",
                         "Wait: 1 waits", "NoSuchWait(\"wait\"): -", "-", "-",
                         "fenced, 2 ended Rewound, 3 Reserved, turn 1, rewind 1", "Refused: -"]),
    (Phase::Cancelling, ["+suspend", "-",       "-",
                         "Parked: Finished, fenced, 2 ended Cancelled",
                         "Cancelled: Finished, fenced, 2 ended Cancelled",
                         "Done: fenced, 2 ended Rewound, 3 Reserved, turn 1",
                         "reset", "Deleted, fenced, 2 ended RunDeleted",
                         "Wait: 1 waits", "NoSuchWait(\"wait\"): -", "-", "-",
                         "fenced, 2 ended Rewound, 3 Reserved, turn 1, rewind 1", "Refused: -"]),
    (Phase::Parked,     ["-",       "-suspend", "+cancel",
                         "Fenced: -",
                         "Fenced: -",
                         "Done: fenced, turn 1",
                         "reset", "Deleted, fenced, 3 ended RunDeleted",
                         "Fenced: -", "Fenced: -", "-", "-",
                         "fenced, turn 1, rewind 1", "Done: fenced, turn 1"]),
    (Phase::Ended,      ["+suspend", "-",       "+cancel",
                         "Fenced: -",
                         "Fenced: -",
                         "Done: fenced, turn 1",
                         "reset", "Deleted, fenced",
                         "Fenced: -", "Fenced: -", "-", "-",
                         "fenced, turn 1, rewind 1", "Refused: -"]),
    (Phase::Finished,   ["-",       "-",        "-",
                         "Finished: -",
                         "Finished: -",
                         "Refused: -",
                         "-", "Deleted, fenced, 2 ended RunDeleted",
                         "Finished: -", "Finished: -", "-", "-",
                         "-", "Refused: -"]),
    (Phase::Deleted,    ["-",       "-",        "-",
                         "Fenced: -",
                         "Fenced: -",
                         "Refused: -",
                         "-", "-",
                         "Fenced: -", "Fenced: -", "-", "-",
                         "-", "Refused: -"]),
    (Phase::Waiting,    ["+suspend", "-",       "+cancel",
                         "Fenced: -",
                         "Fenced: -",
                         "Done: fenced, turn 1, 0 waits, woken",
                         "reset", "Deleted, fenced, 3 ended RunDeleted, 0 waits, woken",
                         "Fenced: -", "Fenced: -", "-", "-",
                         "fenced, turn 1, rewind 1, 0 waits, woken", "Done: fenced, turn 1, 0 waits, woken"]),
    (Phase::Unattended, ["+suspend", "-",       "+cancel",
                         "Ready: -",
                         "NotRequested: -",
                         "Done: fenced, 2 ended Rewound, 3 Reserved, turn 1, 0 waits",
                         "reset", "Deleted, fenced, 2 ended RunDeleted, 0 waits",
                         "Invalid: -", "Parked: fenced, 2 ended Parked, 3 Reserved, parked", "-",
                         "fenced, 2 ended Parked, 3 Reserved, parked",
                         "fenced, 2 ended Rewound, 3 Reserved, turn 1, rewind 1, 0 waits", "Refused: -"]),
];

/// How many cells are played at the same time, each with its own run.
const AT_ONCE: usize = 6;

/// The calls, in the order of a row's cells.
pub const VERBS: [Verb; 14] = [
    Verb::Suspend,
    Verb::Resume,
    Verb::Cancel,
    Verb::Park,
    Verb::AcknowledgeCancel,
    Verb::Rewind,
    Verb::ResetBudget,
    Verb::MarkDeleted,
    Verb::OpenWait,
    Verb::ParkOnWait,
    Verb::SettleTime,
    Verb::ParkUnattended,
    Verb::RequestRewind,
    Verb::StepBack,
];

#[derive(Clone, Copy, Debug)]
pub enum Phase {
    /// The attempt has no pod.
    Reserved,
    /// The attempt has a pod, and no worker.
    Created,
    /// The worker is attached.
    Attached,
    /// The run is suspended, and the worker does not know it.
    Suspended,
    /// The run is suspended, and the worker was told.
    Told,
    /// A cancel was requested, and the worker was told.
    Cancelling,
    /// The worker parked, and the run is suspended.
    Parked,
    /// The attempt has ended, and none is reserved.
    Ended,
    /// The worker finished the run.
    Finished,
    /// The AgentRun was deleted.
    Deleted,
    /// The run is parked on a wait.
    Waiting,
    /// The worker has opened a wait and has not parked.
    Unattended,
}

#[derive(Clone, Copy, Debug)]
pub enum Verb {
    Suspend,
    Resume,
    Cancel,
    Park,
    AcknowledgeCancel,
    /// To the first turn.
    Rewind,
    ResetBudget,
    MarkDeleted,
    OpenWait,
    ParkOnWait,
    SettleTime,
    ParkUnattended,
    /// To the first turn.
    RequestRewind,
    /// From the second turn.
    StepBack,
}

/// A run in this phase, and its worker. Of an attempt that no worker has attached to it is the one that will.
async fn in_phase(cx: &TestContext, phase: Phase) -> Worker {
    let first = cx.worker().await;
    cx.commit_turn(&first, 1).await;
    cx.commit_turn(&first, 2).await;
    let run = cx.end_and_reserve(&first, Class::Disruption).await;
    let pod = PodRecord { identity: None, ..pod(&run) };
    if matches!(phase, Phase::Reserved | Phase::Created) {
        if let Phase::Created = phase {
            recorded(cx.record_pod(run.id, 2, &pod).await.unwrap());
        }
        return Worker { attempt: 2, pod_uid: pod.uid, capability: random_digest(), ..first };
    }
    let worker = cx.start_worker(&run).await;
    match phase {
        Phase::Reserved | Phase::Created | Phase::Attached => {}
        Phase::Suspended | Phase::Told | Phase::Parked => drop(cx.suspend(run.id).await.unwrap()),
        Phase::Cancelling => drop(cx.request_cancel(run.id).await.unwrap()),
        Phase::Ended => {
            cx.end_attempt(run.id, &ending(2, Class::Crash), &NextStep::Nothing).await.unwrap();
        }
        Phase::Finished => drop(ok(cx.finish(&worker.finish()).await.unwrap())),
        Phase::Deleted => cx.mark_deleted(&worker.object_uid).await.unwrap(),
        Phase::Waiting | Phase::Unattended => drop(open(cx, &request(&worker, "wait", later())).await),
    }
    if let Phase::Waiting = phase {
        cx.park(&park_on(&worker, &["wait"], ParkMode::All)).await.unwrap();
    }
    if let Phase::Told | Phase::Cancelling | Phase::Parked = phase {
        cx.heartbeats(&[(run.id, worker.capability)]).await.unwrap();
    }
    if let Phase::Parked = phase {
        cx.park(&worker.park()).await.unwrap();
    }
    worker
}

/// Makes the call. Returns its answer, if that is not the run's record.
async fn call(cx: &TestContext, verb: Verb, worker: &Worker) -> String {
    let run = worker.run;
    match verb {
        Verb::Suspend => drop(cx.suspend(run).await.unwrap()),
        Verb::Resume => drop(cx.resume(run).await.unwrap()),
        Verb::Cancel => drop(cx.request_cancel(run).await.unwrap()),
        Verb::Park => return format!("{:?}: ", cx.park(&worker.park()).await.unwrap()),
        Verb::AcknowledgeCancel => {
            return format!("{:?}: ", cx.acknowledge_cancel(run, &worker.capability).await.unwrap());
        }
        Verb::Rewind => {
            let epoch = cx.run_of(worker).await.epoch;
            let rewound = cx.rewind(run, &rewind_to(epoch, result_place(1))).await.unwrap();
            let is_done = matches!(rewound, Rewound::Done(_));
            return if is_done { "Done: " } else { "Refused: " }.into();
        }
        Verb::ResetBudget => drop(cx.reset_budget(run, 0, 1).await.unwrap()),
        Verb::MarkDeleted => {
            cx.store.mark_deleted(&worker.object_uid, &RequestedBy::default()).await.unwrap();
        }
        Verb::OpenWait => {
            let opened = cx.open_wait(&request(worker, "wait", later())).await.unwrap();
            let name = format!("{opened:?}");
            return format!("{}: ", name.split(['(', ' ']).next().unwrap());
        }
        Verb::ParkOnWait => {
            let park = park_on(worker, &["wait"], ParkMode::All);
            return format!("{:?}: ", cx.park(&park).await.unwrap());
        }
        Verb::SettleTime => drop(cx.settle_time(run).await.unwrap()),
        Verb::ParkUnattended => drop(cx.park_unattended(run, 2).await.unwrap()),
        Verb::RequestRewind => drop(cx.request_rewind(run, &rewind_request(1, 1)).await.unwrap()),
        Verb::StepBack => {
            let epoch = cx.run_of(worker).await.epoch;
            let step = StepBack { epoch, from: result_place(2) };
            let is_done = matches!(cx.step_back(run, &step).await.unwrap(), Rewound::Done(_));
            return if is_done { "Done: " } else { "Refused: " }.into();
        }
    }
    String::new()
}

/// How the run's record differs.
fn changes(before: &RunRecord, after: &RunRecord) -> String {
    let mut all = Vec::new();
    let number = after.attempt.number;
    if before.lifecycle != after.lifecycle {
        all.push(format!("{:?}", after.lifecycle));
    }
    if before.epoch != after.epoch {
        assert_eq!(after.epoch, before.epoch + 1);
        all.push("fenced".into());
    }
    let ended = if number == before.attempt.number { &after.attempt } else { &after.past[0] };
    if let (None, Some(end)) = (&before.attempt.end, &ended.end) {
        assert_eq!((end.class, end.charged), (Class::Neutral, false));
        all.push(format!("{} ended {}", ended.number, end.cause));
    }
    if before.attempt.number != number {
        all.push(format!("{number} {:?}", after.attempt.state));
    }
    for (name, before, after) in
        [("suspend", &before.suspend, &after.suspend), ("cancel", &before.cancel, &after.cancel)]
    {
        match (before, after) {
            (None, Some(signal)) => {
                assert_eq!(signal.told_at, None);
                all.push(format!("+{name}"));
            }
            (Some(_), None) => all.push(format!("-{name}")),
            _ => assert_eq!(before, after),
        }
    }
    if before.head != after.head {
        all.push(format!("turn {}", after.head.as_ref().unwrap().turn));
    }
    if before.observed_reset_generation != after.observed_reset_generation {
        all.push("reset".into());
    }
    if before.observed_rewind_generation != after.observed_rewind_generation {
        all.push(format!("rewind {}", after.observed_rewind_generation));
    }
    if before.waits.len() != after.waits.len() {
        all.push(format!("{} waits", after.waits.len()));
    }
    match (&before.park, &after.park) {
        (None, Some(_)) => all.push("parked".into()),
        (Some(_), None) => all.push("woken".into()),
        _ => assert_eq!(before.park, after.park),
    }
    if all.is_empty() { "-".into() } else { all.join(", ") }
}

async fn cell(cx: &TestContext, phase: Phase, verb: Verb) -> String {
    let worker = in_phase(cx, phase).await;
    let (before, audit) = (cx.run_of(&worker).await, cx.audit(worker.run).await.unwrap());
    let answer = call(cx, verb, &worker).await;
    let after = cx.run_of(&worker).await;
    let changes = changes(&before, &after);
    let is_audited = cx.audit(worker.run).await.unwrap() != audit;
    assert_eq!(is_audited, changes != "-", "{phase:?}, {verb:?}: {changes}");
    if changes == "-" {
        assert_eq!(without_times(after), without_times(before), "{phase:?}, {verb:?}");
    }
    cx.assert_audit_is_valid(worker.run).await;
    format!("{answer}{changes}")
}

async fn each_call_has_its_defined_effect_in_each_phase(cx: &TestContext) {
    let cells = TABLE.iter().flat_map(|(phase, cells)| {
        VERBS.into_iter().zip(cells).map(|(verb, expected)| (*phase, verb, *expected))
    });
    let found = stream::iter(cells).map(async |(phase, verb, expected)| {
        let found = cell(cx, phase, verb).await;
        (found != expected).then(|| format!("{phase:?}, {verb:?}: {found}"))
    });
    let wrong: Vec<_> = found.buffered(AT_ONCE).filter_map(async |wrong| wrong).collect().await;
    assert!(wrong.is_empty(), "not as the table says:\n{}", wrong.join("\n"));
}
