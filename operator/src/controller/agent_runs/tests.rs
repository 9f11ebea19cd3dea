#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use axum::http::Method;
use dalsegno_crds::{ConditionType, OperatingMode, Reason, Summary, find_condition};
use dalsegno_model::audit::{actor, kind};
use dalsegno_model::{Lifecycle, LookUp, RunRecord};
use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::watcher;
use serde_json::{Value, json};

use dalsegno_crds::AgentRun;

use super::*;
use crate::cache::pods::{self, RunKey};
use crate::test_context::{Disk, Fault, Requests, TestContext, commit_turns, render_metrics};

const UID: &str = "11111111-2222-3333-4444-555555555555";

/// The events of the worker's pod: its volume could not be attached.
fn events() -> Value {
    let event = |reason: &str, message: &str, time: &str| json!({ "metadata": {}, "involvedObject": {}, "reason": reason, "message": message, "lastTimestamp": time });
    json!({ "metadata": { "name": "events" }, "items": [
        event("FailedAttachVolume", "Multi-Attach error for volume \"data\"", "2026-05-01T00:02:00Z"),
        event("Scheduled", "assigned to n1", "2026-05-01T00:00:00Z"),
    ] })
}

/// A run whose first worker is lost: no cache and no API server knows its pod.
struct LostWorker {
    disk: Disk,
    ctx: Arc<Context>,
    requests: Requests,
    fault: Fault,
    run: AgentRun,
}

impl LostWorker {
    async fn new() -> Self {
        let disk = Disk::new();
        let namespace = json!({ "metadata": { "name": "shop", "uid": "uid-of-shop" } });
        let fault = Fault::default();
        let TestContext { ctx, requests } =
            TestContext::with_fault(disk.store().await, vec![namespace, events()], fault.clone());
        let containers = json!([{ "name": names::WORKER_CONTAINER, "image": "agent" }]);
        let run = serde_json::from_value(json!({
            "apiVersion": "dalsegno.dev/v1alpha1", "kind": "AgentRun",
            "metadata": { "name": "nightly", "namespace": "shop", "uid": UID },
            "spec": { "agent": { "template": { "spec": { "containers": containers } } } },
        }));
        let mut lost = Self { disk, ctx, requests, fault, run: run.unwrap() };
        lost.reconcile().await.unwrap();
        lost
    }

    /// Reconciles, and takes over the status that was written.
    async fn reconcile(&mut self) -> Result<Option<Duration>> {
        let result = reconcile(&self.run, self.ctx.as_ref()).await;
        let requests = self.requests.lock().unwrap();
        let written = requests.iter().rfind(|(_, path, _)| path.ends_with("/status"));
        self.run.status = written.map(|(.., body)| serde_json::from_value(body["status"].clone()).unwrap());
        result
    }

    /// Sets the fault of the API server.
    fn set_fault(&self, fault: Option<(Method, &'static str, Option<u16>)>) {
        *self.fault.lock().unwrap() = fault;
    }

    fn ready(&self) -> (String, String, String) {
        self.condition(ConditionType::Ready)
    }

    /// Status, reason and message of a condition.
    fn condition(&self, kind: ConditionType) -> (String, String, String) {
        let status = self.run.status.as_ref().unwrap();
        let found = find_condition(&status.conditions, kind).unwrap().clone();
        (found.status, found.reason, found.message)
    }

    /// Reasons of the published events.
    fn events(&self) -> Vec<String> {
        let requests = self.requests.lock().unwrap();
        let events = requests.iter().filter(|(_, path, _)| path.ends_with("/events"));
        events.map(|(.., body)| body["reason"].as_str().unwrap().to_owned()).collect()
    }

    /// Number of writes to the API server.
    fn writes(&self) -> usize {
        self.requests.lock().unwrap().iter().filter(|(method, ..)| method != "GET").count()
    }

    async fn row(&self) -> RunRecord {
        let LookUp::Found(row) = self.ctx.store.find_by_object(UID).await.unwrap() else {
            panic!("the run exists")
        };
        *row
    }

    /// The pod that was created last.
    fn pod(&self) -> Value {
        let requests = self.requests.lock().unwrap();
        let created = requests.iter().rfind(|(method, path, _)| method == "POST" && path.ends_with("/pods"));
        created.unwrap().2.clone()
    }

    /// Has the watch show the running worker's pod in this event.
    async fn show_worker(&self, event: fn(Pod) -> watcher::Event<Pod>) {
        let running = json!({ "running": { "startedAt": "2026-05-01T00:00:00Z" } });
        self.show_pod(event, running, None).await;
    }

    /// Has the watch show the worker's pod in this event, with this state of its container, on this node.
    async fn show_pod(&self, event: fn(Pod) -> watcher::Event<Pod>, state: Value, node: Option<&str>) {
        let mut pod = self.pod();
        pod["metadata"]["uid"] = self.row().await.attempt.pod_uid.into();
        pod["spec"]["nodeName"] = node.into();
        let image = format!("registry/agent@sha256:{}", "1".repeat(64));
        let container = json!({
            "name": names::WORKER_CONTAINER, "image": "agent", "imageID": image, "ready": true, "restartCount": 0,
            "state": state,
        });
        pod["status"] = json!({ "phase": "Running", "containerStatuses": [container] });
        let watch = futures::stream::iter([Ok(event(serde_json::from_value(pod).unwrap()))]);
        pods::watch(self.ctx.pods.clone(), watch).collect::<Vec<_>>().await;
    }

    /// Has the watch show the node n1. Returns the runs that have a pod there, if that changes anything for them.
    fn show_node(&self, ready: bool, since: &str) -> Vec<RunKey> {
        let ready = json!({ "type": "Ready", "status": if ready { "True" } else { "Unknown" },
                            "lastTransitionTime": since });
        let node = json!({ "metadata": { "name": "n1" }, "status": { "conditions": [ready] } });
        let node = watcher::Event::Apply(serde_json::from_value(node).unwrap());
        let changed = self.ctx.nodes.apply(node, Timestamp::now());
        changed.iter().flat_map(|node| self.ctx.pods.runs_on(node)).collect()
    }

    fn metrics(&self) -> String {
        render_metrics(&self.ctx.metrics)
    }
}

#[tokio::test]
async fn a_run_waits_uncharged_and_says_why_while_its_store_cannot_be_written() {
    let mut lost = LostWorker::new().await;
    lost.disk.fill().await;
    lost.requests.lock().unwrap().clear();
    assert_eq!(lost.reconcile().await.unwrap(), Some(Duration::from_secs(3)));
    let (status, reason, message) = lost.ready();
    assert_eq!((status.as_str(), reason.as_str()), ("Unknown", "StoreUnavailable"));
    assert!(
        message.contains("refused a row (code 1811); no pod is replaced and nothing is charged"),
        "{message}"
    );
    assert_eq!(lost.events(), ["StoreUnavailable"]);
    assert!(lost.metrics().contains("lookups_total{result=\"unknown\"} 1\n"), "{}", lost.metrics());

    // It is published once.
    let writes = lost.writes();
    assert_eq!(lost.reconcile().await.unwrap(), Some(Duration::from_secs(3)));
    assert_eq!(lost.writes(), writes);

    lost.disk.free_space().await;
    lost.reconcile().await.unwrap();
    assert_ne!(lost.ready().1, "StoreUnavailable");
    let LookUp::Found(row) = lost.ctx.store.find_by_object(UID).await.unwrap() else {
        panic!("the run exists")
    };
    let charged = (row.counters.recovery_attempts, row.counters.disruptions);
    assert_eq!((row.attempt.number, row.past.len(), charged), (2, 1, (0, 1)));
}

#[tokio::test]
async fn a_request_without_a_response_fails_the_reconcile_and_the_next_one_continues() {
    let lost = LostWorker::new().await;
    let mut run = serde_json::to_value(&lost.run).unwrap();
    let reconcile = async |run: &Value| {
        let run = Arc::new(serde_json::from_value(run.clone()).unwrap());
        let reconciling = reconcile_with_finalizer(run, lost.ctx.clone());
        tokio::time::timeout(Duration::from_secs(20), reconciling).await.expect("it ends")
    };
    for (method, end) in
        [(Method::PATCH, "/agentruns/nightly"), (Method::POST, "/pods"), (Method::PUT, "/status")]
    {
        lost.set_fault(Some((method, end, None)));
        let error = error_chain(&reconcile(&run).await.unwrap_err());
        assert!(error.contains("no answer within"), "{end}: {error}");
        lost.set_fault(None);
        reconcile(&run).await.unwrap();
        run["metadata"]["finalizers"] = json!([names::FINALIZER]);
    }
    assert_eq!(lost.row().await.attempt.pod_name.as_deref(), Some("nightly-3"));
}

#[tokio::test]
async fn a_failure_to_create_a_pod_is_in_the_status_and_is_retried() {
    for code in [500, 429] {
        let mut lost = LostWorker::new().await;
        lost.set_fault(Some((Method::POST, "/pods", Some(code))));
        assert!(lost.reconcile().await.unwrap().is_some(), "it is retried");
        let status = lost.run.status.as_ref().unwrap();
        assert_eq!(status.reason, Some(Reason::PodRefused), "{code}");
        let worker = find_condition(&status.conditions, ConditionType::WorkerReady).unwrap();
        assert_eq!((worker.status.as_str(), worker.message.as_str()), ("False", "it is broken"));

        lost.set_fault(None);
        lock(&lost.ctx.refusals).clear();
        lost.reconcile().await.unwrap();
        assert_eq!(lost.row().await.attempt.pod_name.as_deref(), Some("nightly-2"));
    }
}

#[tokio::test]
async fn a_pod_that_cannot_be_deleted_does_not_delay_the_status() {
    let mut lost = LostWorker::new().await;
    lost.show_worker(watcher::Event::Apply).await;
    lost.reconcile().await.unwrap();
    lost.run.spec.operating_mode = Some(OperatingMode::Cancelled);
    lost.set_fault(Some((Method::DELETE, "/pods/nightly-1", Some(403))));
    let error = lost.reconcile().await.unwrap_err();
    assert!(
        matches!(error, Error::PodCleanup { .. }) && error_chain(&error).contains("it is broken"),
        "{error}"
    );
    let status = lost.run.status.as_ref().unwrap();
    assert_eq!(status.summary, Some(Summary::Cancelled));
    assert!(status.completion_time.is_some());
    assert!(lost.events().contains(&"Cancelled".to_owned()), "{:?}", lost.events());

    let run = serde_json::from_value(serde_json::to_value(&lost.run).unwrap()).unwrap();
    let error = Error::PodCleanup { requeue: Some(Duration::from_millis(9)), source: Box::new(error) };
    let delay = delay_after(&error, &run, &lost.ctx);
    assert_eq!(delay, Duration::from_millis(9), "the requeue of the decision is kept");
    lost.set_fault(None);
    lost.reconcile().await.unwrap();
}

#[tokio::test]
async fn a_cancelled_agentrun_ends_an_adopted_run_without_creating_a_worker() {
    let mut lost = LostWorker::new().await;
    let LookUp::Found(row) = lost.ctx.store.find_by_object(UID).await.unwrap() else {
        panic!("the run exists")
    };
    lost.requests.lock().unwrap().clear();
    let run = json!({
        "apiVersion": "dalsegno.dev/v1alpha1", "kind": "AgentRun",
        "metadata": { "name": "nightly", "namespace": "shop", "uid": "another" },
        "spec": { "agentRef": { "name": "none" }, "operatingMode": "Cancelled", "onPriorRun": "Adopt" },
    });
    lost.run = serde_json::from_value(run).unwrap();
    lost.reconcile().await.unwrap();
    let ended = lost.ctx.store.get_run(row.id).await.unwrap().unwrap();
    assert_eq!((ended.lifecycle, ended.object_uid.as_str()), (Lifecycle::Finished, "another"));
    let requests = lost.requests.lock().unwrap();
    assert!(!requests.iter().any(|(method, path, _)| method == "POST" && path.ends_with("/pods")));
}

#[tokio::test]
async fn an_attempt_is_counted_as_ended_once_and_not_for_failed_tries() {
    let mut lost = LostWorker::new().await;
    lost.disk.fill().await;
    for _ in 0..3 {
        let _ = lost.reconcile().await;
    }
    assert!(!lost.metrics().contains("attempts_ended_total{"), "{}", lost.metrics());
    lost.disk.free_space().await;
    lost.reconcile().await.unwrap();
    let text = lost.metrics();
    assert!(text.contains("attempts_ended_total{cause=\"PodVanished\"} 1\n"), "{text}");
}

#[tokio::test]
async fn a_run_with_a_damaged_head_is_held_and_with_last_good_continues_before_the_damage() {
    let mut lost = LostWorker::new().await;
    lost.show_worker(watcher::Event::Apply).await;
    lost.reconcile().await.unwrap();
    let row = lost.row().await;
    commit_turns(lost.ctx.store.as_ref(), row.id, &row.attempt.pod_uid.unwrap(), 3).await;
    lost.reconcile().await.unwrap();
    lost.disk.execute("UPDATE boundaries SET ops = substr(ops, 1, length(ops) - 1) WHERE turn = 2").await;
    assert!(lost.metrics().contains("damage_total{place=\"head\"} 0\n"), "{}", lost.metrics());
    lost.show_worker(watcher::Event::Delete).await;
    lost.reconcile().await.unwrap();
    assert_eq!(lost.ready().1, "Held");
    let (_, reason, message) = lost.condition(ConditionType::Held);
    assert_eq!(reason, "CheckpointCorrupt");
    assert!(message.contains("the last good checkpoint is turn 1 (result)"), "{message}");
    assert_eq!(lost.pod()["metadata"]["name"], "nightly-1");

    let recovery = json!({ "onCorruptCheckpoint": "LastGood" });
    lost.run.spec.recovery = serde_json::from_value(recovery).unwrap();
    lost.reconcile().await.unwrap();
    let (row, pod) = (lost.row().await, lost.pod());
    let head = row.head.unwrap();
    assert_eq!((head.turn, row.highest_turn, row.attempt.number), (1, 3, 2));
    assert_eq!(row.attempt.pod_name.as_deref(), Some("nightly-2"));
    assert_eq!(pod["metadata"]["name"], "nightly-2");
    assert_eq!(pod["metadata"]["annotations"][names::ANNOTATION_TURN], format!("1/{}", head.position));
    assert!(lost.events().contains(&"Rewound".to_owned()), "{:?}", lost.events());
    let audit = lost.ctx.store.audit(row.id).await.unwrap();
    let rewound = audit.iter().find(|it| it.kind == kind::REWOUND).unwrap();
    assert_eq!(rewound.actor, actor::OPERATOR);
    assert!(rewound.detail.contains("turn 2 (result)"), "{}", rewound.detail);

    // Verified for the attempt, not again for the changed spec, and again after the rewind.
    let text = lost.metrics();
    assert!(text.contains("effects_total{effect=\"verify-head\"} 2\n"), "{text}");
    assert!(text.contains("damage_total{place=\"head\"} 1\n"), "{text}");
}

#[tokio::test]
async fn damage_in_a_run_is_counted_both_at_a_lookup_and_at_a_deletion() {
    let mut lost = LostWorker::new().await;
    assert!(lost.metrics().contains("damage_total{place=\"run\"} 0\n"), "{}", lost.metrics());
    lost.disk.execute("DELETE FROM attempts").await;
    lost.reconcile().await.unwrap();
    assert!(lost.metrics().contains("damage_total{place=\"run\"} 1\n"), "{}", lost.metrics());

    lost.run.metadata.finalizers = Some(vec![names::FINALIZER.into()]);
    let mut run = serde_json::to_value(&lost.run).unwrap();
    run["metadata"]["deletionTimestamp"] = "2026-05-01T00:00:00Z".into();
    let run = Arc::new(serde_json::from_value(run).unwrap());
    reconcile_with_finalizer(run, lost.ctx.clone()).await.unwrap_err();
    assert!(lost.metrics().contains("damage_total{place=\"run\"} 2\n"), "{}", lost.metrics());
}

#[tokio::test]
async fn a_worker_whose_node_is_found_lost_half_a_minute_after_its_end_is_replaced_at_once_and_not_charged() {
    let mut lost = LostWorker::new().await;
    // The gateways serve from now on, and the worker ends well after that.
    lost.ctx.store.record_gateway_heartbeat().await.unwrap();
    let ended = Timestamp::now() + Duration::from_secs(60);
    lost.show_node(true, "2026-01-01T00:00:00Z");
    lost.show_pod(watcher::Event::Apply, json!({ "running": {} }), Some("n1")).await;
    lost.reconcile().await.unwrap();
    let killed = json!({ "exitCode": 137, "reason": "Error", "finishedAt": ended.to_string() });
    let killed = json!({ "terminated": killed });
    lost.show_pod(watcher::Event::Apply, killed, Some("n1")).await;
    lost.reconcile().await.unwrap();
    let row = lost.row().await;
    assert_eq!((row.attempt.number, row.past[0].node.as_deref()), (2, Some("n1")), "it is replaced at once");
    assert_eq!((row.counters.recovery_attempts, row.counters.disruptions), (1, 0), "nothing is known yet");

    let woken = lost.show_node(false, &Timestamp::now().to_string());
    assert_eq!(woken.iter().map(|it| it.name.as_str()).collect::<Vec<_>>(), ["nightly"]);
    lost.reconcile().await.unwrap();
    let row = lost.row().await;
    assert_eq!((row.counters.recovery_attempts, row.counters.disruptions), (0, 1));
    let end = row.past[0].end.as_ref().unwrap();
    assert_eq!((end.cause, end.charged), (dalsegno_crds::Cause::NodeLost, false));
    assert!(end.message.contains("lost or restarted soon after"), "{}", end.message);
}

#[tokio::test]
async fn the_status_of_a_slow_start_names_the_volume_that_cannot_be_attached() {
    let mut lost = LostWorker::new().await;
    lost.show_node(true, "2026-01-01T00:00:00Z");
    let waiting = json!({ "waiting": { "reason": "ContainerCreating" } });
    lost.show_pod(watcher::Event::Apply, waiting, Some("n1")).await;
    let looks = |lost: &LostWorker| {
        let requests = lost.requests.lock().unwrap();
        requests.iter().filter(|(method, path, _)| method == "GET" && path.ends_with("/events")).count()
    };
    lost.reconcile().await.unwrap();
    assert_eq!(looks(&lost), 0, "a start that is not slow is not looked at");
    for table in ["runs", "attempts"] {
        let sql = format!(
            "UPDATE {table} SET scheduled_at = scheduled_at - 40000, created_at = created_at - 40000"
        );
        lost.disk.execute(Box::leak(sql.into_boxed_str())).await;
    }
    lost.reconcile().await.unwrap();
    assert_eq!(looks(&lost), 1);
    let (_, _, message) = lost.ready();
    assert!(message.contains("FailedAttachVolume: Multi-Attach error for volume \"data\""), "{message}");
}
