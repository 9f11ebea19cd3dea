//! Every call of the operator on a run that is over: the row comes back as it stands, and nothing is appended to the audit.

use dalsegno_protocol::{Boundary, Policy};
use dalsegno_store::{
    AskedBy, Class, Completed, Deadlines, Lifecycle, NewRun, OnPrior, Place, PodRecord, Recorded, Rewind,
    Rewound, RunId, RunRecord, Then, Verdict,
};

use crate::faces::{on_every_face, on_every_lasting_face, tamper};
use crate::world::*;

on_every_face! {
    every_operator_call_on_a_run_that_is_over,
}

on_every_lasting_face! {
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
async fn over(world: &World, way: Way) -> (NewRun, Worker) {
    let new = new_run();
    let worker = world.work_on(&world.take_up(&new).await).await;
    world.turn(&worker, 1).await;
    world.turn(&worker, 2).await;
    world.start_call(&worker, "pay", Policy::Ask).await;
    match way {
        Way::FinishedByWorker => drop(ok(world.finish(&worker.finish()).await.unwrap())),
        Way::FinishedByOperator => {
            let finish = Then::Finish(succeeded());
            world.end_attempt(worker.run, &ending(1, Class::Crash), &finish).await.unwrap();
        }
        Way::Cancelled => {
            world.request_cancel(worker.run).await.unwrap();
            world.acknowledge_cancel(worker.run, &worker.capability).await.unwrap();
        }
        Way::Deleted => world.mark_deleted(&worker.object_uid).await.unwrap(),
        Way::FinishedThenDeleted => {
            ok(world.finish(&worker.finish()).await.unwrap());
            world.mark_deleted(&worker.object_uid).await.unwrap();
        }
        Way::Abandoned => drop(world.take_up(&namesake(&new, OnPrior::Ignore)).await),
    }
    (new, worker)
}

/// Every call of the operator, with whatever it says of the run afterwards.
async fn every_call(world: &World, new: &NewRun, worker: &Worker) -> Vec<(&'static str, RunRecord)> {
    let (run, epoch) = (worker.run, world.of(worker).await.epoch);
    let record = |recorded| match recorded {
        Recorded::Done(run) | Recorded::Refused(run) => *run,
    };
    let ending = ending(1, Class::Crash);
    let (pod, other) = (pod(&world.of(worker).await), PodRecord { uid: "another".into(), ..pod_of(run) });
    let asked = AskedBy { manager: Some("kubectl".into()), reason: Some("enough".into()) };
    let deadlines = Deadlines { heartbeat_ms: 1, start_ms: 2, progress_ms: 3 };
    let to = Place { turn: 1, boundary: Boundary::Result, epoch: 1 };
    let rewind = Rewind { epoch, to, reason: "it went astray".into(), actor: "ada".into() };
    let rewound = match world.rewind(run, &rewind).await.unwrap() {
        Rewound::Refused(run) => *run,
        Rewound::Done(run) => panic!("it went back: {run:?}"),
    };
    let settled = world.settle(&person_settles(run, "pay")).await.unwrap();
    assert!(matches!(settled, Completed::Finished), "{settled:?}");
    vec![
        ("take up again", world.take_up(new).await),
        ("end, reserve", world.end_attempt(run, &ending, &Then::Reserve).await.unwrap()),
        ("end, nothing", world.end_attempt(run, &ending, &Then::Nothing).await.unwrap()),
        ("end, finish", world.end_attempt(run, &ending, &Then::Finish(succeeded())).await.unwrap()),
        ("record the pod", record(world.record_pod(run, 1, &pod).await.unwrap())),
        ("record another pod", record(world.record_pod(run, 1, &other).await.unwrap())),
        ("record the node", record(world.record_scheduled(run, 1, "node-a").await.unwrap())),
        (
            "record the identity",
            record(world.record_identity(run, 1, &identity(Verdict::Refused)).await.unwrap()),
        ),
        ("keep a template", record(world.put_revision(run, 1, "template", "{}").await.unwrap())),
        ("request a cancel", world.store.request_cancel(run, &asked).await.unwrap()),
        ("grant a budget", world.store.reset_budget(run, 0, 1, &asked).await.unwrap()),
        ("set deadlines", world.set_deadlines(run, &deadlines).await.unwrap()),
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

async fn every_operator_call_on_a_run_that_is_over(world: &World) {
    for (way, lifecycle) in WAYS {
        let (new, worker) = over(world, way).await;
        let before = still(world.of(&worker).await);
        assert_eq!(before.lifecycle, lifecycle, "{way:?}");
        let audit = world.audit(worker.run).await.unwrap();
        for (call, after) in every_call(world, &new, &worker).await {
            assert_eq!(still(after), before, "{way:?}: {call}");
        }
        assert_eq!(still(world.of(&worker).await), before, "{way:?}");
        assert_eq!(world.audit(worker.run).await.unwrap(), audit, "{way:?}");
        assert_eq!(world.get_revision("template").await.unwrap(), None, "{way:?}");
        world.proves_itself(worker.run).await;
    }
}

/// No worker finishes a run whose image nobody has judged, so the row is made to say so.
async fn the_identity_of_a_run_that_is_over_is_not_recorded(world: &World) {
    let (_, worker) = over(world, Way::FinishedByWorker).await;
    tamper(world, "UPDATE runs SET verdict = NULL, remark = NULL").await;
    let (before, audit) = (still(world.of(&worker).await), world.audit(worker.run).await.unwrap());
    let after = recorded(world.record_identity(worker.run, 1, &identity(Verdict::Refused)).await.unwrap());
    assert_eq!(still(after), before);
    assert_eq!(world.audit(worker.run).await.unwrap(), audit);
}
