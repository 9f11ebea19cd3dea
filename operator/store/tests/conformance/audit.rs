//! Every transition appends one row to the run's audit chain, and nothing else does.

use dalsegno_model::{
    BudgetReset, Claimed, Class, Commit, Complete, NextStep, OnPrior, PodRecord, RequestedBy, RunId, Verdict,
};
use dalsegno_protocol::{CompleteOutcome, PlannedCall, Policy};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::context::*;
use crate::engines::on_every_engine;

on_every_engine! {
    every_transition_of_a_run_is_recorded_in_order,
    an_operators_finish_is_recorded,
    a_cancel_is_recorded,
    a_suspend_and_a_park_are_recorded,
    a_cancel_that_a_park_acknowledges_is_recorded_in_one_row,
    the_requester_and_the_reason_are_recorded_if_known,
    a_deletion_is_recorded_in_one_row,
    an_adoption_is_recorded,
    an_adoption_of_a_finished_run_is_recorded_in_one_row,
    an_abandonment_is_recorded_in_the_abandoned_runs_chain,
    retries_and_refusals_are_not_recorded,
    every_step_of_a_call_is_recorded_once,
    a_plan_that_finishes_the_run_is_recorded_before_the_finish,
    an_unknown_run_has_no_chain,
}

/// `kind by actor` of each audit row. Verifies the chain first.
async fn transitions(cx: &TestContext, run: RunId) -> Vec<String> {
    let rows = cx.audit(run).await.unwrap();
    cx.assert_audit_is_valid(run).await;
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

const CREATED: [&str; 2] = ["created by operator", "reserved by operator"];
const ATTACHED: [&str; 5] = [
    "created by operator",
    "reserved by operator",
    "pod by operator",
    "identity by operator",
    "attached by worker",
];

async fn every_transition_of_a_run_is_recorded_in_order(cx: &TestContext) {
    let run = cx.run().await;
    assert_eq!(transitions(cx, run.id).await, CREATED);
    recorded(cx.record_pod(run.id, 1, &PodRecord { identity: None, ..pod(&run) }).await.unwrap());
    recorded(cx.record_scheduled(run.id, 1, "node-a").await.unwrap());
    recorded(cx.record_identity(run.id, 1, &identity(Verdict::Accepted)).await.unwrap());
    let worker = cx.start_worker(&run).await;
    assert_eq!(transitions(cx, run.id).await, ATTACHED);
    cx.commit_turn(&worker, 1).await;
    let claim = cx.start_call(&worker, "pay", Policy::Probe).await;
    cx.complete(&worker.complete(&claim)).await.unwrap();
    cx.start_call(&worker, "ship", Policy::Probe).await;
    cx.heartbeats(&[(worker.run, worker.capability)]).await.unwrap();
    let calls = ["claimed by worker", "completed by worker", "claimed by worker"];
    let working = [ATTACHED.as_slice(), &calls].concat();
    assert_eq!(transitions(cx, run.id).await, working, "boundaries are not transitions");
    cx.attach(run.id, &worker.pod_uid, &random_digest()).await.unwrap();
    let worker = cx.next_worker(&worker).await;
    cx.settle(&worker.settle("ship")).await.unwrap();
    cx.reset_budget(run.id, 0, 1).await.unwrap();
    cx.set_deadlines(run.id, &LONG_DEADLINES).await.unwrap();
    ok(cx.finish(&worker.finish()).await.unwrap());
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
    assert_eq!(transitions(cx, run.id).await, [working.as_slice(), &rest].concat());
}

async fn an_operators_finish_is_recorded(cx: &TestContext) {
    let run = cx.run().await;
    cx.end_attempt(run.id, &ending(1, Class::Crash), &NextStep::Nothing).await.unwrap();
    assert_eq!(transitions(cx, run.id).await, [CREATED.as_slice(), &["ended by operator"]].concat());
    cx.end_attempt(run.id, &ending(1, Class::Crash), &NextStep::Finish(succeeded())).await.unwrap();
    let rest = ["ended by operator", "finished by operator"];
    assert_eq!(transitions(cx, run.id).await, [CREATED.as_slice(), &rest].concat());
    let ended = &cx.audit(run.id).await.unwrap()[2];
    assert!(ended.detail.contains("Evicted"), "{}", ended.detail);
}

async fn a_cancel_is_recorded(cx: &TestContext) {
    let worker = cx.worker().await;
    cx.request_cancel(worker.run).await.unwrap();
    cx.acknowledge_cancel(worker.run, &worker.capability).await.unwrap();
    let rest = ["cancel-requested by operator", "cancelled by worker"];
    assert_eq!(transitions(cx, worker.run).await, [ATTACHED.as_slice(), &rest].concat());
}

async fn a_suspend_and_a_park_are_recorded(cx: &TestContext) {
    let worker = cx.worker().await;
    let park = worker.park();
    cx.park(&park).await.unwrap();
    for _ in 0..2 {
        cx.suspend(worker.run).await.unwrap();
    }
    cx.commit_turn(&worker, 1).await;
    for _ in 0..2 {
        cx.park(&park).await.unwrap();
    }
    for _ in 0..2 {
        cx.resume(worker.run).await.unwrap();
    }
    let rest = ["suspended", "ended", "reserved", "resumed"].map(|it| format!("{it} by operator"));
    assert_eq!(transitions(cx, worker.run).await[ATTACHED.len()..], rest);
    let ended = &cx.audit(worker.run).await.unwrap()[ATTACHED.len() + 1];
    let detail: Value = serde_json::from_str(&ended.detail).unwrap();
    assert_eq!((&detail["cause"], &detail["class"]), (&json!("Suspended"), &json!("Neutral")));
}

async fn a_cancel_that_a_park_acknowledges_is_recorded_in_one_row(cx: &TestContext) {
    let worker = cx.worker().await;
    cx.request_cancel(worker.run).await.unwrap();
    cx.park(&worker.park()).await.unwrap();
    let rest = ["cancel-requested by operator", "cancelled by worker"];
    assert_eq!(transitions(cx, worker.run).await, [ATTACHED.as_slice(), &rest].concat());
}

async fn the_requester_and_the_reason_are_recorded_if_known(cx: &TestContext) {
    let worker = cx.worker().await;
    let requested_by = |reason: Option<&str>| RequestedBy {
        manager: Some("kubectl-edit".into()),
        user: None,
        reason: reason.map(str::to_owned),
    };
    let last = async || {
        let row = cx.audit(worker.run).await.unwrap().pop().unwrap();
        let detail: serde_json::Value = serde_json::from_str(&row.detail).unwrap();
        (row.kind, detail["manager"].clone(), detail.get("reason").cloned())
    };
    let reset = BudgetReset { observed: 0, to: 1, requested_by: requested_by(Some("the tool is \"back\"")) };
    cx.store.reset_budget(worker.run, &reset).await.unwrap();
    let reason = Some(json!("the tool is \"back\""));
    assert_eq!(last().await, ("reset".into(), json!("kubectl-edit"), reason));
    cx.store.suspend(worker.run, &requested_by(Some("a look\u{0}"))).await.unwrap();
    assert_eq!(last().await, ("suspended".into(), json!("kubectl-edit"), Some(json!("a look\u{fffd}"))));
    cx.store.resume(worker.run, &requested_by(None)).await.unwrap();
    assert_eq!(last().await, ("resumed".into(), json!("kubectl-edit"), None));
    cx.store.request_cancel(worker.run, &requested_by(None)).await.unwrap();
    assert_eq!(last().await, ("cancel-requested".into(), json!("kubectl-edit"), None));
    let unknown = RequestedBy { manager: None, user: None, reason: Some("no more need\u{0}".into()) };
    cx.store.mark_deleted(&worker.object_uid, &unknown).await.unwrap();
    let (kind, manager, reason) = last().await;
    assert_eq!((kind.as_str(), manager), ("deleted", json!(null)));
    assert!(reason.unwrap().as_str().unwrap().starts_with("no more need"));
    let rows = transitions(cx, worker.run).await;
    assert_eq!(
        rows[rows.len() - 5..],
        ["reset", "suspended", "resumed", "cancel-requested", "deleted"]
            .map(|it| format!("{it} by operator"))
    );
}

async fn a_deletion_is_recorded_in_one_row(cx: &TestContext) {
    let worker = cx.worker().await;
    cx.mark_deleted(&worker.object_uid).await.unwrap();
    assert_eq!(transitions(cx, worker.run).await, [ATTACHED.as_slice(), &["deleted by operator"]].concat());
}

async fn an_adoption_is_recorded(cx: &TestContext) {
    let new = new_run();
    let worker = cx.start_worker(&cx.create(&new).await).await;
    cx.create(&namesake(&new, OnPrior::Adopt)).await;
    let rest = ["adopted by operator", "ended by operator", "reserved by operator"];
    assert_eq!(transitions(cx, worker.run).await, [ATTACHED.as_slice(), &rest].concat());

    let new = new_run();
    let run = cx.create(&new).await;
    cx.end_attempt(run.id, &ending(1, Class::Crash), &NextStep::Nothing).await.unwrap();
    cx.create(&namesake(&new, OnPrior::Adopt)).await;
    let rest = ["ended by operator", "adopted by operator", "reserved by operator"];
    assert_eq!(transitions(cx, run.id).await, [CREATED.as_slice(), &rest].concat());
}

async fn an_adoption_of_a_finished_run_is_recorded_in_one_row(cx: &TestContext) {
    let new = new_run();
    let worker = cx.start_worker(&cx.create(&new).await).await;
    ok(cx.finish(&worker.finish()).await.unwrap());
    cx.create(&namesake(&new, OnPrior::Adopt)).await;
    let rest = ["finished by worker", "adopted by operator"];
    assert_eq!(transitions(cx, worker.run).await, [ATTACHED.as_slice(), &rest].concat());
}

async fn an_abandonment_is_recorded_in_the_abandoned_runs_chain(cx: &TestContext) {
    let new = new_run();
    let run = cx.create(&new).await;
    let later = cx.create(&namesake(&new, OnPrior::Ignore)).await;
    assert_eq!(transitions(cx, run.id).await, [CREATED.as_slice(), &["abandoned by operator"]].concat());
    assert_eq!(transitions(cx, later.id).await, CREATED);
}

async fn retries_and_refusals_are_not_recorded(cx: &TestContext) {
    let new = new_run();
    let worker = cx.start_worker(&cx.create(&new).await).await;
    cx.create(&new).await;
    let run = cx.run_of(&worker).await;
    recorded(cx.record_pod(run.id, 1, &pod(&run)).await.unwrap());
    recorded(cx.record_identity(run.id, 1, &identity(Verdict::Refused)).await.unwrap());
    refused(cx.record_pod(run.id, 1, &PodRecord { uid: "another".into(), ..pod(&run) }).await.unwrap());
    attached(cx.attach(run.id, &worker.pod_uid, &worker.capability).await.unwrap());
    cx.attach(run.id, "a look-alike", &random_digest()).await.unwrap();
    cx.commit(&worker.result(7)).await.unwrap();
    cx.end_attempt(run.id, &ending(7, Class::Crash), &NextStep::Reserve).await.unwrap();
    cx.acknowledge_cancel(run.id, &worker.capability).await.unwrap();
    cx.create_run(&namesake(&new, OnPrior::Hold)).await.unwrap();
    assert_eq!(transitions(cx, run.id).await, ATTACHED);
}

async fn every_step_of_a_call_is_recorded_once(cx: &TestContext) {
    let worker = cx.worker().await;
    let bare = PlannedCall { arguments: None, ..planned("bare", Policy::Probe) };
    let plan = Commit {
        calls: vec![planned("pay", Policy::Probe), bare, planned("late", Policy::Ask)],
        ..worker.plan(1)
    };
    ok(cx.commit(&plan).await.unwrap());
    cx.commit(&plan).await.unwrap();
    let (pay, bare) = (worker.claim("pay", Policy::Probe), worker.claim("bare", Policy::Probe));
    let fresh = cx.start_call(&worker, "fresh", Policy::Ask).await;
    for claim in [&pay, &pay, &bare, &bare, &fresh] {
        assert!(matches!(cx.claim(claim).await.unwrap(), Claimed::Go(_)));
    }
    let failed = Complete { outcome: CompleteOutcome::Failed, result: None, ..worker.complete(&bare) };
    for complete in [&worker.complete(&pay), &worker.complete(&pay), &failed, &failed] {
        cx.complete(complete).await.unwrap();
    }
    cx.claim(&worker.claim("pay", Policy::Probe)).await.unwrap();
    cx.settle(&person_settles(worker.run, "pay")).await.unwrap();
    let open_calls = vec!["fresh".to_owned()];
    ok(cx.commit(&Commit { open_calls: open_calls.clone(), ..worker.result(1) }).await.unwrap());
    // Of this plan's calls one was planned for an earlier turn and the other has ended: only `late` is new.
    let calls = vec![planned("pay", Policy::Probe), planned("late", Policy::Ask)];
    let plan = Commit { calls, open_calls, ..worker.plan(2) };
    ok(cx.commit(&plan).await.unwrap());
    let rest = ["planned", "claimed", "claimed", "claimed", "completed", "failed", "planned"];
    let rest = rest.map(|it| format!("{it} by worker"));
    assert_eq!(transitions(cx, worker.run).await[ATTACHED.len()..], rest);
    let rows = cx.audit(worker.run).await.unwrap();
    let details: Vec<Value> =
        rows[ATTACHED.len()..].iter().map(|row| serde_json::from_str(&row.detail).unwrap()).collect();
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

async fn a_plan_that_finishes_the_run_is_recorded_before_the_finish(cx: &TestContext) {
    let worker = cx.worker().await;
    let calls = vec![planned("pay", Policy::Probe)];
    let plan = Commit { calls, finish: Some(succeeded()), ..worker.plan(1) };
    ok(cx.commit(&plan).await.unwrap());
    let rest = ["planned by worker", "finished by worker"];
    assert_eq!(transitions(cx, worker.run).await, [ATTACHED.as_slice(), &rest].concat());
}

async fn an_unknown_run_has_no_chain(cx: &TestContext) {
    assert!(cx.audit(Uuid::now_v7()).await.unwrap().is_empty());
}
