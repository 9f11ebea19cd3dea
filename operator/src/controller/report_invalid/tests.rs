#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use std::convert::Infallible;
use std::fmt::Debug;
use std::sync::Arc;

use axum::http::{Method, Request, Response};
use dalsegno_core::ObservedAgent;
use dalsegno_core::decide::RECHECK_INTERVAL;
use dalsegno_crds::{AgentDefinition, AgentRun, names};
use dalsegno_model::{Deadlines, Lifecycle, NewRun, OnPrior, RunId};
use futures::{StreamExt, stream};
use kube::client::Body;
use kube::runtime::watcher;
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::cache::pods;
use crate::cache::raw_object::{RawDefinition, RawObject, RawRun};
use crate::controller::agent_runs::reconcile_with_finalizer;
use crate::controller::context::Context;
use crate::controller::definitions;
use crate::controller::observe::observe;
use crate::test_context::{Fault, Requests, TestContext, render_metrics};

/// The context, and the requests to an API server with one AgentDefinition.
async fn context(definition: Value) -> (Arc<Context>, Requests) {
    let store = Arc::new(dalsegno_store::sqlite::Sqlite::memory().await.unwrap());
    let TestContext { ctx, requests } = TestContext::new(store, vec![definition]);
    (ctx, requests)
}

/// Lists these objects, and then watches them. Returns the name of each, and its object or the error.
async fn list_and_watch<K>(objects: [String; 2]) -> Vec<(String, Result<K, String>)>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let service = tower::service_fn(move |request: Request<Body>| {
        let body = if request.uri().query().unwrap().contains("watch=true") {
            objects.clone().map(|it| format!("{{\"type\":\"MODIFIED\",\"object\":{it}}}\n")).concat()
        } else {
            let items = objects.join(",");
            format!(
                r#"{{"kind":"List","apiVersion":"v1","metadata":{{"resourceVersion":"1"}},"items":[{items}]}}"#
            )
        };
        async { Ok::<_, Infallible>(Response::new(Body::from(body.into_bytes()))) }
    });
    let api: Api<RawObject<K>> = Api::all(Client::new(service, "shop"));
    let events = watcher(api, watcher::Config::default()).take(6).map(|event| match event.unwrap() {
        watcher::Event::InitApply(object) | watcher::Event::Apply(object) => Some(object),
        _ => None,
    });
    let parse = |it: RawObject<K>| (it.name_any(), it.parse().map_err(|error| error.to_string()));
    events.filter_map(|it| async { it.map(parse) }).collect().await
}

/// JSON with so many levels.
fn nested(levels: usize) -> String {
    format!("{}{}", "[".repeat(levels), "]".repeat(levels))
}

/// The object, in which the number -1 is replaced by so many levels.
fn with_depth(object: &Value, levels: usize) -> String {
    object.to_string().replace("-1", &nested(levels))
}

fn object(kind: &str, spec: Value) -> Value {
    json!({ "apiVersion": "dalsegno.dev/v1alpha1", "kind": kind, "spec": spec,
            "metadata": { "name": "nightly", "namespace": "shop", "uid": "uid-1" } })
}

/// Number of invalid objects, from the metric.
fn invalid_count(ctx: &Context, kind: &str) -> i64 {
    let (text, series) =
        (render_metrics(&ctx.metrics), format!("operator_invalid_objects{{kind=\"{kind}\"}} "));
    text.lines().find_map(|line| line.strip_prefix(&series)).unwrap().parse().unwrap()
}

#[tokio::test]
async fn an_invalid_definition_is_an_observation_and_no_error() {
    let (ctx, _) = context(object("AgentDefinition", json!({ "template": "a string" }))).await;
    let run = object("AgentRun", json!({ "agentRef": { "name": "nightly" } }));
    let run: AgentRun = serde_json::from_value(run).unwrap();
    let ObservedAgent::Malformed(why) = observe(&ctx, &run).await.unwrap().agent else {
        panic!("it is invalid")
    };
    assert!(why.contains("a string"), "{why}");
}

#[tokio::test]
async fn an_invalid_run_is_reported_once_per_generation() {
    let (ctx, requests) = context(Value::Null).await;
    let reconcile = async |generation: i64| {
        let mut run = object("AgentRun", json!({ "agentRef": 7 }));
        run["metadata"]["generation"] = generation.into();
        let run: RawRun = serde_json::from_value(run).unwrap();
        let delay = reconcile_with_finalizer(Arc::new(run), ctx.clone()).await.unwrap();
        assert_eq!(delay, RECHECK_INTERVAL);
    };
    for _ in 0..3 {
        reconcile(1).await;
    }
    assert_eq!(invalid_count(&ctx, "AgentRun"), 1);
    {
        let requests = requests.lock().unwrap();
        let [(method, path, event)] = requests.as_slice() else { panic!("one event: {requests:?}") };
        assert_eq!((method.as_str(), path.ends_with("/namespaces/shop/events")), ("POST", true), "{path}");
        assert_eq!((&event["reason"], &event["type"]), (&json!("Malformed"), &json!("Warning")));
        assert_eq!(event["regarding"]["uid"], "uid-1");
    }
    reconcile(2).await;
    assert_eq!(requests.lock().unwrap().len(), 2);
}

#[tokio::test]
async fn an_event_that_is_not_accepted_is_retried() {
    let store = Arc::new(dalsegno_store::sqlite::Sqlite::memory().await.unwrap());
    let fault: Fault = Arc::new(std::sync::Mutex::new(Some((Method::POST, "/events", Some(500)))));
    let TestContext { ctx, requests } = TestContext::with_fault(store, vec![], fault.clone());
    let run: RawRun = serde_json::from_value(object("AgentRun", json!({ "agentRef": 7 }))).unwrap();
    let run = Arc::new(run);
    for broken in [true, false, false] {
        if !broken {
            *fault.lock().unwrap() = None;
        }
        reconcile_with_finalizer(run.clone(), ctx.clone()).await.unwrap();
    }
    assert_eq!(requests.lock().unwrap().len(), 2, "one that was rejected, and one that was accepted");
}

#[tokio::test]
async fn invalid_objects_are_counted_until_they_are_corrected_or_deleted() {
    let (ctx, _) = context(Value::Null).await;
    let check = async |uid: &str, template: Value| {
        let mut definition = object("AgentDefinition", json!({ "template": template }));
        definition["metadata"]["uid"] = uid.into();
        let definition: RawDefinition = serde_json::from_value(definition).unwrap();
        definitions::check(Arc::new(definition), ctx.clone()).await.unwrap();
        invalid_count(&ctx, "AgentDefinition")
    };
    let containers = json!([{ "name": names::WORKER_CONTAINER, "image": "agent" }]);
    let (good, bad) = (json!({ "spec": { "containers": containers } }), json!("a string"));
    assert_eq!(check("uid-1", bad.clone()).await, 1);
    assert_eq!(check("uid-2", bad).await, 2);
    assert_eq!(check("uid-1", good).await, 1);
    ctx.remove_all_but(&Default::default());
    assert_eq!(invalid_count(&ctx, "AgentDefinition"), 0);

    let reconcile = async |spec: Value, deleted: bool| {
        let mut run = object("AgentRun", spec);
        run["metadata"]["deletionTimestamp"] =
            deleted.then_some("2026-05-01T00:00:00Z").map_or(Value::Null, Value::from);
        let run: RawRun = serde_json::from_value(run).unwrap();
        reconcile_with_finalizer(Arc::new(run), ctx.clone()).await.unwrap();
        invalid_count(&ctx, "AgentRun")
    };
    let (good, bad) = (json!({ "agentRef": { "name": "none" } }), json!({ "agentRef": 7 }));
    assert_eq!(reconcile(bad.clone(), false).await, 1);
    assert_eq!(reconcile(good, false).await, 0);
    assert_eq!(reconcile(bad.clone(), false).await, 1);
    assert_eq!(reconcile(bad, true).await, 0);
}

#[tokio::test]
async fn objects_of_any_depth_are_listed_and_watched_and_stop_no_other_object() {
    let run = |name: &str, input: Value| {
        let mut run = object("AgentRun", json!({ "agentRef": { "name": "nightly" }, "input": input }));
        run["metadata"]["name"] = name.into();
        run["metadata"]["resourceVersion"] = "1".into();
        run
    };
    let plain = || run("plain", json!({ "task": "sums" })).to_string();
    for levels in [122, 126, 10_000, 500_000] {
        let listed = list_and_watch::<AgentRun>([with_depth(&run("deep", json!(-1)), levels), plain()]).await;
        let [(deep, why), (good, parsed), again @ ..] = listed.as_slice() else { panic!("{listed:?}") };
        assert_eq!((deep.as_str(), good.as_str(), again), ("deep", "plain", &listed[..2]), "{levels}");
        assert!(why.as_ref().unwrap_err().contains("deeper than 96 levels"), "{why:?}");
        assert_eq!(parsed.as_ref().unwrap().spec.input, Some(json!({ "task": "sums" })));
    }
    let definition = |name: &str, more: Value| {
        let spec = json!({ "containers": [{ "name": "agent", "image": "i" }], "more": more });
        let mut definition = object("AgentDefinition", json!({ "template": { "spec": spec } }));
        definition["metadata"] = json!({ "name": name, "resourceVersion": "1" });
        definition
    };
    let objects =
        [with_depth(&definition("deep", json!(-1)), 126), definition("plain", Value::Null).to_string()];
    let listed = list_and_watch::<AgentDefinition>(objects).await;
    assert_eq!(
        listed.iter().map(|(_, parsed)| parsed.is_ok()).collect::<Vec<_>>(),
        [false, true, false, true]
    );
}

#[tokio::test]
async fn an_invalid_run_is_deleted_like_any_other() {
    let (ctx, requests) = context(Value::Null).await;
    let new = NewRun {
        id: RunId::now_v7(),
        tenant: "uid-of-shop".into(),
        namespace: "shop".into(),
        name: "nightly".into(),
        object_uid: "uid-1".into(),
        reset_generation: 0,
        rewind_generation: 0,
        is_fork: false,
        is_external: false,
        deadlines: Deadlines {
            heartbeat_ms: 60_000,
            start_ms: 60_000,
            progress_ms: 60_000,
            suspend_ms: 60_000,
        },
        on_prior: OnPrior::Ignore,
    };
    ctx.store.create_run(&new).await.unwrap();
    let labels =
        json!({ names::LABEL_RUN: "nightly", names::LABEL_RUN_UID: "uid-1", names::LABEL_ATTEMPT: "1" });
    let pod =
        json!({ "metadata": { "name": "nightly-1", "namespace": "shop", "uid": "pod-1", "labels": labels } });
    let pods = stream::iter([Ok(watcher::Event::Apply(serde_json::from_value(pod).unwrap()))]);
    pods::watch(ctx.pods.clone(), pods).collect::<Vec<_>>().await;

    let mut run = object("AgentRun", json!({ "agentRef": 7 }));
    run["metadata"]["finalizers"] = json!([names::FINALIZER]);
    run["metadata"]["deletionTimestamp"] = "2026-05-01T00:00:00Z".into();
    run["metadata"]["annotations"] = json!({ names::ANNOTATION_REASON: "it is no use" });
    let run: RawRun = serde_json::from_value(run).unwrap();
    reconcile_with_finalizer(Arc::new(run), ctx.clone()).await.unwrap();

    let row = ctx.store.get_run(new.id).await.unwrap().unwrap();
    assert_eq!(row.lifecycle, Lifecycle::Deleted);
    let row = ctx.store.audit(new.id).await.unwrap().pop().unwrap();
    assert!(row.kind == "deleted" && row.detail.contains("it is no use"), "{row:?}");
    let requests = requests.lock().unwrap();
    let [(stop, pod, _), (patch, run, finalizers)] = requests.as_slice() else { panic!("{requests:?}") };
    assert_eq!((stop.as_str(), pod.ends_with("/shop/pods/nightly-1")), ("DELETE", true), "{pod}");
    assert_eq!((patch.as_str(), run.ends_with("/agentruns/nightly")), ("PATCH", true), "{run}");
    assert_eq!(finalizers[1], json!({ "op": "remove", "path": "/metadata/finalizers/0" }));
}

#[tokio::test]
async fn a_run_whose_output_is_too_deep_is_parsed_without_it() {
    let fields = json!({ "f:status": { "f:result": { "f:output": -1 } } });
    let mut run = object("AgentRun", json!({ "agentRef": { "name": "nightly" } }));
    run["metadata"]["resourceVersion"] = "1".into();
    run["metadata"]["managedFields"] = json!([{ "manager": "dalsegno", "fieldsV1": fields }]);
    run["status"] = json!({ "storeID": "s", "result": { "outcome": "Succeeded", "output": -1 } });
    for levels in [124, 100_000] {
        let listed = list_and_watch::<AgentRun>([with_depth(&run, levels), run.to_string()]).await;
        assert_eq!(listed.len(), 4, "{levels}");
        let status = listed[0].1.as_ref().unwrap().status.as_ref().unwrap();
        assert_eq!(status.store_id.as_deref(), Some("s"));
        assert_eq!(status.result.as_ref().unwrap().output, None);
        let status = listed[1].1.as_ref().unwrap().status.as_ref().unwrap();
        assert_eq!(status.result.as_ref().unwrap().output, Some(json!(-1)));
    }
}

#[tokio::test]
async fn an_invalid_definition_is_reported() {
    let (ctx, requests) = context(Value::Null).await;
    let definition = object("AgentDefinition", json!({ "template": [] }));
    let definition: RawDefinition = serde_json::from_value(definition).unwrap();
    definitions::check(Arc::new(definition), ctx.clone()).await.unwrap();
    assert_eq!(invalid_count(&ctx, "AgentDefinition"), 1);
    assert_eq!(requests.lock().unwrap()[0].2["regarding"]["kind"], "AgentDefinition");
}
