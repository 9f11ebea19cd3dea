//! Calls of the operator on a run that is over return the row unchanged and append nothing to the audit.

use dalsegno_model::{
    BoundaryId, BudgetReset, Class, Completed, Deadlines, Lifecycle, NewRun, NextStep, OnPrior, PodRecord,
    Recorded, RequestedBy, Rewind, Rewound, RunId, RunRecord, Verdict,
};
use dalsegno_protocol::{Boundary, Policy};

use crate::context::*;
use crate::engines::{on_every_engine, on_every_persistent_engine, tamper};

on_every_engine! {
    every_operator_call_on_a_run_that_is_over,
}

on_every_persistent_engine! {
    the_identity_of_a_run_that_is_over_is_not_recorded,
}

/// How a run comes to be over.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// Its worker finishes it: its attempt is still attached.
    FinishedByWorker,
    /// The operator finishes it with its attempt.
    FinishedByOperator,
    /// Its worker acknowledges a cancel.
    Cancelled,
    /// Its AgentRun is deleted while the run lives.
    Deleted,
    /// Its AgentRun is deleted after the run was finished.
    FinishedThenDeleted,
    /// A later run of the same name ignores it.
    Abandoned,
}

const WAYS: [(Way, Lifecycle); 6] = [
    (Way::FinishedByWorker, Lifecycle::Finished),
    (Way::FinishedByOperator, Lifecycle::Finished),
    (Way::Cancelled, Lifecycle::Finished),
    (Way::Deleted, Lifecycle::Deleted),
    (Way::FinishedThenDeleted, Lifecycle::Deleted),
    (Way::Abandoned, Lifecycle::Abandoned),
];

/// A run that has committed a turn, left a call open and is over; and what it was made of.
async fn over(cx: &TestContext, way: Way) -> (NewRun, Worker) {
    let new = new_run();
    let worker = cx.start_worker(&cx.create(&new).await).await;
    cx.commit_turn(&worker, 1).await;
    cx.commit_turn(&worker, 2).await;
    cx.start_call(&worker, "pay", Policy::RetrySameKey).await;
    match way {
        Way::FinishedByWorker => drop(ok(cx.finish(&worker.finish()).await.unwrap())),
        Way::FinishedByOperator => {
            let finish = NextStep::Finish(succeeded());
            cx.end_attempt(worker.run, &ending(1, Class::Crash), &finish).await.unwrap();
        }
        Way::Cancelled => {
            cx.request_cancel(worker.run).await.unwrap();
            cx.acknowledge_cancel(worker.run, &worker.capability).await.unwrap();
        }
        Way::Deleted => cx.mark_deleted(&worker.object_uid).await.unwrap(),
        Way::FinishedThenDeleted => {
            ok(cx.finish(&worker.finish()).await.unwrap());
            cx.mark_deleted(&worker.object_uid).await.unwrap();
        }
        Way::Abandoned => drop(cx.create(&namesake(&new, OnPrior::Ignore)).await),
    }
    (new, worker)
}

/// Makes every call of the operator. Returns the name of each call and the record of the run that it returned.
async fn every_call(cx: &TestContext, new: &NewRun, worker: &Worker) -> Vec<(&'static str, RunRecord)> {
    let (run, epoch) = (worker.run, cx.run_of(worker).await.epoch);
    let record = |recorded| match recorded {
        Recorded::Done(run) | Recorded::Refused(run) => *run,
    };
    let ending = ending(1, Class::Crash);
    let (pod, other) = (pod(&cx.run_of(worker).await), PodRecord { uid: "another".into(), ..pod_of(run) });
    let requested_by =
        RequestedBy { manager: Some("kubectl".into()), user: None, reason: Some("enough".into()) };
    let reset = BudgetReset { observed: 0, to: 1, requested_by: requested_by.clone() };
    let deadlines = Deadlines { heartbeat_ms: 1, start_ms: 2, progress_ms: 3, suspend_ms: 3 };
    let to = BoundaryId { turn: 1, boundary: Boundary::Result, epoch: 1 };
    let rewind = Rewind { epoch, to, reason: "it went astray".into(), actor: "ada".into() };
    let rewound = match cx.rewind(run, &rewind).await.unwrap() {
        Rewound::Refused(run) => *run,
        Rewound::Done(run) => panic!("it went back: {run:?}"),
    };
    let settled = cx.settle(&person_settles(run, "pay")).await.unwrap();
    assert!(matches!(settled, Completed::Finished), "{settled:?}");
    vec![
        ("take up again", cx.create(new).await),
        ("end, reserve", cx.end_attempt(run, &ending, &NextStep::Reserve).await.unwrap()),
        ("end, nothing", cx.end_attempt(run, &ending, &NextStep::Nothing).await.unwrap()),
        ("end, finish", cx.end_attempt(run, &ending, &NextStep::Finish(succeeded())).await.unwrap()),
        ("record the pod", record(cx.record_pod(run, 1, &pod).await.unwrap())),
        ("record another pod", record(cx.record_pod(run, 1, &other).await.unwrap())),
        ("record the node", record(cx.record_scheduled(run, 1, "node-a").await.unwrap())),
        (
            "record the identity",
            record(cx.record_identity(run, 1, &identity(Verdict::Refused)).await.unwrap()),
        ),
        ("keep a template", record(cx.put_revision(run, 1, &template("template", "{}")).await.unwrap())),
        ("request a cancel", cx.store.request_cancel(run, &requested_by).await.unwrap()),
        ("suspend", cx.store.suspend(run, &requested_by).await.unwrap()),
        ("resume", cx.store.resume(run, &requested_by).await.unwrap()),
        ("grant a budget", cx.store.reset_budget(run, &reset).await.unwrap()),
        ("set deadlines", cx.set_deadlines(run, &deadlines).await.unwrap()),
        ("go back", rewound),
    ]
}

fn pod_of(run: RunId) -> PodRecord {
    PodRecord {
        uid: format!("pod-{run}"),
        name: format!("pod-{run}"),
        revision: "revision".into(),
        identity: Some(identity(Verdict::Refused)),
    }
}

async fn every_operator_call_on_a_run_that_is_over(cx: &TestContext) {
    for (way, lifecycle) in WAYS {
        let (new, worker) = over(cx, way).await;
        let before = without_times(cx.run_of(&worker).await);
        assert_eq!(before.lifecycle, lifecycle, "{way:?}");
        let audit = cx.audit(worker.run).await.unwrap();
        for (call, after) in every_call(cx, &new, &worker).await {
            assert_eq!(without_times(after), before, "{way:?}: {call}");
        }
        assert_eq!(without_times(cx.run_of(&worker).await), before, "{way:?}");
        assert_eq!(cx.audit(worker.run).await.unwrap(), audit, "{way:?}");
        assert_eq!(cx.get_revision("template").await.unwrap(), None, "{way:?}");
        cx.assert_audit_is_valid(worker.run).await;
    }
}

/// No worker finishes a run whose image nobody has judged, so the row is made to say so.
async fn the_identity_of_a_run_that_is_over_is_not_recorded(cx: &TestContext) {
    let (_, worker) = over(cx, Way::FinishedByWorker).await;
    tamper(cx, "UPDATE runs SET verdict = NULL, remark = NULL").await;
    let (before, audit) = (without_times(cx.run_of(&worker).await), cx.audit(worker.run).await.unwrap());
    let after = recorded(cx.record_identity(worker.run, 1, &identity(Verdict::Refused)).await.unwrap());
    assert_eq!(without_times(after), before);
    assert_eq!(cx.audit(worker.run).await.unwrap(), audit);
}
