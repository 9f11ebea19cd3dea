//! Every transition appends one row to the run's chain, and nothing else does.

use dalsegno_protocol::{CompleteOutcome, PlannedCall, Policy};
use dalsegno_store::{AskedBy, Claimed, Class, Commit, Complete, OnPrior, PodRecord, RunId, Then, Verdict};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::faces::on_every_face;
use crate::world::*;

on_every_face! {
    a_runs_life_is_told_in_order,
    an_operators_finish_is_told,
    a_cancel_is_told,
    who_asked_and_why_is_told_as_far_as_it_is_known,
    a_deletion_is_told_in_one_row,
    an_adoption_is_told,
    an_adoption_of_a_finished_run_is_told_in_one_row,
    an_abandonment_is_told_in_the_chain_of_the_abandoned,
    retries_and_refusals_are_not_told,
    of_calls_every_step_is_told_once,
    a_plan_that_ends_the_run_is_told_before_its_end,
    an_unknown_run_has_no_chain,
}

/// `kind by actor` of each row, after the chain was verified.
async fn told(world: &World, run: RunId) -> Vec<String> {
    let rows = world.audit(run).await.unwrap();
    world.proves_itself(run).await;
    for row in &rows {
        assert!(
            serde_json::from_str::<serde_json::Value>(&row.detail).unwrap().is_object(),
            "{}",
            row.detail
        );
    }
    assert!(rows.is_sorted_by_key(|row| row.at));
    rows.into_iter().map(|row| format!("{} by {}", row.kind, row.actor)).collect()
}

const TAKEN_UP: [&str; 2] = ["created by operator", "reserved by operator"];
const WORKING: [&str; 5] = [
    "created by operator",
    "reserved by operator",
    "pod by operator",
    "identity by operator",
    "attached by worker",
];

async fn a_runs_life_is_told_in_order(world: &World) {
    let run = world.run().await;
    assert_eq!(told(world, run.id).await, TAKEN_UP);
    recorded(world.record_pod(run.id, 1, &PodRecord { identity: None, ..pod(&run) }).await.unwrap());
    recorded(world.record_scheduled(run.id, 1, "node-a").await.unwrap());
    recorded(world.record_identity(run.id, 1, &identity(Verdict::Accepted)).await.unwrap());
    let worker = Worker { ..world.work_on(&run).await };
    assert_eq!(told(world, run.id).await, WORKING);
    world.turn(&worker, 1).await;
    let claim = world.start_call(&worker, "pay", Policy::Probe).await;
    world.complete(&worker.complete(&claim)).await.unwrap();
    world.start_call(&worker, "ship", Policy::Probe).await;
    world.heartbeats(&[(worker.run, worker.capability)]).await.unwrap();
    let calls = ["claimed by worker", "completed by worker", "claimed by worker"];
    let working = [WORKING.as_slice(), &calls].concat();
    assert_eq!(told(world, run.id).await, working, "boundaries are not transitions");
    world.attach(run.id, &worker.pod_uid, &random()).await.unwrap();
    let worker = world.next(&worker).await;
    world.settle(&worker.settle("ship")).await.unwrap();
    world.reset_budget(run.id, 0, 1).await.unwrap();
    world.set_deadlines(run.id, &LONG).await.unwrap();
    ok(world.finish(&worker.finish()).await.unwrap());
    let rest = [
        "spent by worker",
        "ended by operator",
        "reserved by operator",
        "pod by operator",
        "identity by operator",
        "attached by worker",
        "settled by worker",
        "reset by operator",
        "finished by worker",
    ];
    assert_eq!(told(world, run.id).await, [working.as_slice(), &rest].concat());
}

async fn an_operators_finish_is_told(world: &World) {
    let run = world.run().await;
    world.end_attempt(run.id, &ending(1, Class::Crash), &Then::Nothing).await.unwrap();
    assert_eq!(told(world, run.id).await, [TAKEN_UP.as_slice(), &["ended by operator"]].concat());
    world.end_attempt(run.id, &ending(1, Class::Crash), &Then::Finish(succeeded())).await.unwrap();
    let rest = ["ended by operator", "finished by operator"];
    assert_eq!(told(world, run.id).await, [TAKEN_UP.as_slice(), &rest].concat());
    let ended = &world.audit(run.id).await.unwrap()[2];
    assert!(ended.detail.contains("Evicted"), "{}", ended.detail);
}

async fn a_cancel_is_told(world: &World) {
    let worker = world.worker().await;
    world.request_cancel(worker.run).await.unwrap();
    world.acknowledge_cancel(worker.run, &worker.capability).await.unwrap();
    let rest = ["cancel-requested by operator", "cancelled by worker"];
    assert_eq!(told(world, worker.run).await, [WORKING.as_slice(), &rest].concat());
}

async fn who_asked_and_why_is_told_as_far_as_it_is_known(world: &World) {
    let worker = world.worker().await;
    let asked = |reason: Option<&str>| AskedBy {
        manager: Some("kubectl-edit".into()),
        reason: reason.map(str::to_owned),
    };
    let last = async || {
        let row = world.audit(worker.run).await.unwrap().pop().unwrap();
        let detail: serde_json::Value = serde_json::from_str(&row.detail).unwrap();
        (row.kind, detail["manager"].clone(), detail.get("reason").cloned())
    };
    world.store.reset_budget(worker.run, 0, 1, &asked(Some("the tool is \"back\""))).await.unwrap();
    let reason = Some(json!("the tool is \"back\""));
    assert_eq!(last().await, ("reset".into(), json!("kubectl-edit"), reason));
    world.store.request_cancel(worker.run, &asked(None)).await.unwrap();
    assert_eq!(last().await, ("cancel-requested".into(), json!("kubectl-edit"), None));
    let unknown = AskedBy { manager: None, reason: Some("no more need\u{0}".into()) };
    world.store.mark_deleted(&worker.object_uid, &unknown).await.unwrap();
    let (kind, manager, reason) = last().await;
    assert_eq!((kind.as_str(), manager), ("deleted", json!(null)));
    assert!(reason.unwrap().as_str().unwrap().starts_with("no more need"));
    let told = told(world, worker.run).await;
    assert_eq!(
        told[told.len() - 3..],
        ["reset", "cancel-requested", "deleted"].map(|it| format!("{it} by operator"))
    );
}

async fn a_deletion_is_told_in_one_row(world: &World) {
    let worker = world.worker().await;
    world.mark_deleted(&worker.object_uid).await.unwrap();
    assert_eq!(told(world, worker.run).await, [WORKING.as_slice(), &["deleted by operator"]].concat());
}

async fn an_adoption_is_told(world: &World) {
    let new = new_run();
    let worker = world.work_on(&world.take_up(&new).await).await;
    world.take_up(&namesake(&new, OnPrior::Adopt)).await;
    let rest = ["adopted by operator", "ended by operator", "reserved by operator"];
    assert_eq!(told(world, worker.run).await, [WORKING.as_slice(), &rest].concat());

    let new = new_run();
    let run = world.take_up(&new).await;
    world.end_attempt(run.id, &ending(1, Class::Crash), &Then::Nothing).await.unwrap();
    world.take_up(&namesake(&new, OnPrior::Adopt)).await;
    let rest = ["ended by operator", "adopted by operator", "reserved by operator"];
    assert_eq!(told(world, run.id).await, [TAKEN_UP.as_slice(), &rest].concat());
}

async fn an_adoption_of_a_finished_run_is_told_in_one_row(world: &World) {
    let new = new_run();
    let worker = world.work_on(&world.take_up(&new).await).await;
    ok(world.finish(&worker.finish()).await.unwrap());
    world.take_up(&namesake(&new, OnPrior::Adopt)).await;
    let rest = ["finished by worker", "adopted by operator"];
    assert_eq!(told(world, worker.run).await, [WORKING.as_slice(), &rest].concat());
}

async fn an_abandonment_is_told_in_the_chain_of_the_abandoned(world: &World) {
    let new = new_run();
    let run = world.take_up(&new).await;
    let later = world.take_up(&namesake(&new, OnPrior::Ignore)).await;
    assert_eq!(told(world, run.id).await, [TAKEN_UP.as_slice(), &["abandoned by operator"]].concat());
    assert_eq!(told(world, later.id).await, TAKEN_UP);
}

async fn retries_and_refusals_are_not_told(world: &World) {
    let new = new_run();
    let worker = world.work_on(&world.take_up(&new).await).await;
    world.take_up(&new).await;
    let run = world.of(&worker).await;
    recorded(world.record_pod(run.id, 1, &pod(&run)).await.unwrap());
    recorded(world.record_identity(run.id, 1, &identity(Verdict::Refused)).await.unwrap());
    refused(world.record_pod(run.id, 1, &PodRecord { uid: "another".into(), ..pod(&run) }).await.unwrap());
    attached(world.attach(run.id, &worker.pod_uid, &worker.capability).await.unwrap());
    world.attach(run.id, "a look-alike", &random()).await.unwrap();
    world.commit(&worker.result(7)).await.unwrap();
    world.end_attempt(run.id, &ending(7, Class::Crash), &Then::Reserve).await.unwrap();
    world.acknowledge_cancel(run.id, &worker.capability).await.unwrap();
    world.create_run(&namesake(&new, OnPrior::Hold)).await.unwrap();
    assert_eq!(told(world, run.id).await, WORKING);
}

async fn of_calls_every_step_is_told_once(world: &World) {
    let worker = world.worker().await;
    let bare = PlannedCall { arguments: None, ..planned("bare", Policy::Probe) };
    let plan = Commit {
        calls: vec![planned("pay", Policy::Probe), bare, planned("late", Policy::Ask)],
        ..worker.plan(1)
    };
    ok(world.commit(&plan).await.unwrap());
    world.commit(&plan).await.unwrap();
    let (pay, bare) = (worker.claim("pay", Policy::Probe), worker.claim("bare", Policy::Probe));
    let fresh = world.start_call(&worker, "fresh", Policy::Ask).await;
    for claim in [&pay, &pay, &bare, &bare, &fresh] {
        assert!(matches!(world.claim(claim).await.unwrap(), Claimed::Go(_)));
    }
    let failed = Complete { outcome: CompleteOutcome::Failed, result: None, ..worker.complete(&bare) };
    for complete in [&worker.complete(&pay), &worker.complete(&pay), &failed, &failed] {
        world.complete(complete).await.unwrap();
    }
    world.claim(&worker.claim("pay", Policy::Probe)).await.unwrap();
    world.settle(&person_settles(worker.run, "pay")).await.unwrap();
    ok(world.commit(&worker.result(1)).await.unwrap());
    // One was planned for another turn, and the other has ended.
    let calls = vec![planned("pay", Policy::Probe), planned("late", Policy::Ask)];
    let plan = Commit { calls, ..worker.plan(2) };
    ok(world.commit(&plan).await.unwrap());
    let rest = ["planned", "claimed", "claimed", "claimed", "completed", "failed", "planned"];
    let rest = rest.map(|it| format!("{it} by worker"));
    assert_eq!(told(world, worker.run).await[WORKING.len()..], rest);
    let rows = world.audit(worker.run).await.unwrap();
    let details: Vec<Value> =
        rows[WORKING.len()..].iter().map(|row| serde_json::from_str(&row.detail).unwrap()).collect();
    let fields =
        |value: &Value| value.as_object().unwrap().keys().map(String::as_str).collect::<Vec<_>>().join(" ");
    assert_eq!(
        details.iter().map(fields).collect::<Vec<_>>(),
        [
            "calls turn",
            "arguments attempt call key policy turn",
            "attempt call turn",
            "arguments attempt call turn",
            "call result turn",
            "call turn",
            "calls turn"
        ]
    );
    let planned: Vec<_> = details[0]["calls"].as_array().unwrap().iter().map(fields).collect();
    assert_eq!(planned, ["arguments call key policy", "call key policy", "arguments call key policy"]);
    assert_eq!(details[6], json!({ "turn": 2, "calls": [{ "call": "late" }] }));
    assert!(rows.iter().all(|row| !row.detail.contains("key-of-") && !row.detail.contains("amount")));
}

async fn a_plan_that_ends_the_run_is_told_before_its_end(world: &World) {
    let worker = world.worker().await;
    let calls = vec![planned("pay", Policy::Probe)];
    let plan = Commit { calls, finish: Some(succeeded()), ..worker.plan(1) };
    ok(world.commit(&plan).await.unwrap());
    let rest = ["planned by worker", "finished by worker"];
    assert_eq!(told(world, worker.run).await, [WORKING.as_slice(), &rest].concat());
}

async fn an_unknown_run_has_no_chain(world: &World) {
    assert!(world.audit(Uuid::now_v7()).await.unwrap().is_empty());
}
