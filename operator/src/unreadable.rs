//! Objects that are not what this version reads, as when they were stored under an older schema. They are left alone
//! until they are deleted, stop no other, and somebody is told.

use std::collections::HashMap;
use std::sync::Mutex;

use dalsegno_core::decide::RECHECK_INTERVAL;
use dalsegno_crds::Reason;
use kube::Resource;
use kube::runtime::controller::Action;
use kube::runtime::events::{Event, EventType};

use crate::cluster::truncated;
use crate::context::Context;
use crate::sync::lock;
use crate::telemetry::Metrics;

/// The objects that cannot be read now, by UID.
#[derive(Debug, Default)]
pub struct Unreadable(Mutex<HashMap<String, Seen>>);

#[derive(Debug)]
struct Seen {
    kind: String,
    generation: Option<i64>,
    /// An event tells of it as it stands.
    told: bool,
}

impl Unreadable {
    /// One more, or another generation of it: whether that is news, and whether an event told of it.
    fn see(&self, uid: &str, kind: &str, generation: Option<i64>, metrics: &Metrics) -> (bool, bool) {
        let mut seen = lock(&self.0);
        if let Some(before) = seen.get(uid).filter(|it| it.generation == generation) {
            return (false, before.told);
        }
        seen.insert(uid.to_owned(), Seen { kind: kind.to_owned(), generation, told: false });
        count(&seen, metrics);
        (true, false)
    }

    fn told(&self, uid: &str) {
        if let Some(seen) = lock(&self.0).get_mut(uid) {
            seen.told = true;
        }
    }

    /// This one can be read, or is being deleted.
    pub fn forget(&self, uid: &str, metrics: &Metrics) {
        let mut seen = lock(&self.0);
        if seen.remove(uid).is_some() {
            count(&seen, metrics);
        }
    }

    /// Forgets all but these.
    pub fn forget_all_but(&self, these: impl Fn(&str) -> bool, metrics: &Metrics) {
        let mut seen = lock(&self.0);
        seen.retain(|uid, _| these(uid));
        count(&seen, metrics);
    }
}

fn count(seen: &HashMap<String, Seen>, metrics: &Metrics) {
    metrics.unreadable(|kind| seen.values().filter(|it| it.kind == kind).count());
}

/// Tells of an object that cannot be read, once as it stands: by the log, and by an event, which is tried until it is taken.
/// The metrics tell of it as long as it is so. Its status is left as it is, since nobody knows what else in it would be lost.
/// Answers when to look again: not every change of an object wakes anybody.
pub async fn tell<K: Resource<DynamicType = ()>>(ctx: &Context, object: &K, error: &str) -> Action {
    let (uid, generation) = (object.meta().uid.clone().unwrap_or_default(), object.meta().generation);
    let kind = K::kind(&());
    let (is_news, told) = ctx.unreadable.see(&uid, &kind, generation, &ctx.metrics);
    if is_news {
        tracing::error!(
            kind = %kind,
            namespace = object.meta().namespace,
            name = object.meta().name,
            error,
            "an object cannot be read and is left alone"
        );
    }
    if !told {
        let event = Event {
            type_: EventType::Warning,
            reason: Reason::Malformed.to_string(),
            note: Some(truncated(format!(
                "this {kind} cannot be read and is left alone: {error}. Correct the field, or apply it again"
            ))),
            action: "Read".to_owned(),
            secondary: None,
        };
        match ctx.recorder().publish(&event, &object.object_ref(&())).await {
            Ok(()) => ctx.unreadable.told(&uid),
            Err(error) => tracing::warn!(%error, "an event could not be written"),
        }
    }
    Action::requeue(RECHECK_INTERVAL)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a case that cannot go on has failed")]

    use std::convert::Infallible;
    use std::fmt::Debug;
    use std::sync::Arc;

    use axum::http::{Method, Request, Response};
    use dalsegno_core::ObservedAgent;
    use dalsegno_core::decide::RECHECK_INTERVAL;
    use dalsegno_crds::{AgentDefinition, AgentRun, names};
    use dalsegno_store::{Deadlines, Lifecycle, NewRun, OnPrior, RunId};
    use futures::{StreamExt, stream};
    use kube::client::Body;
    use kube::runtime::controller::Action;
    use kube::runtime::watcher;
    use kube::{Api, Client, Resource, ResourceExt};
    use serde::de::DeserializeOwned;
    use serde_json::{Value, json};

    use crate::context::Context;
    use crate::kept::{Definition, Kept, Run};
    use crate::world::{self, Asked, Fault};
    use crate::{controller, definitions, observe, pods};

    /// An API server that has one AgentDefinition.
    async fn context(definition: Value) -> (Arc<Context>, Asked) {
        let store = Arc::new(dalsegno_store::sqlite::Sqlite::memory().await.unwrap());
        world::context(store, vec![definition])
    }

    /// What a client sees that lists these objects, and whose watch then tells of them: their names, and whether each can
    /// be read.
    async fn seen<K>(objects: [String; 2]) -> Vec<(String, Result<K, String>)>
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
        let api: Api<Kept<K>> = Api::all(Client::new(service, "shop"));
        let events = watcher(api, watcher::Config::default()).take(6).map(|event| match event.unwrap() {
            watcher::Event::InitApply(object) | watcher::Event::Apply(object) => Some(object),
            _ => None,
        });
        let read = |it: Kept<K>| (it.name_any(), it.read().map_err(|error| error.to_string()));
        events.filter_map(|it| async { it.map(read) }).collect().await
    }

    /// Levels that no client of ours reads.
    fn deep(levels: usize) -> String {
        format!("{}{}", "[".repeat(levels), "]".repeat(levels))
    }

    /// A number in the object becomes levels of nesting.
    fn with_depth(object: &Value, levels: usize) -> String {
        object.to_string().replace("-1", &deep(levels))
    }

    fn object(kind: &str, spec: Value) -> Value {
        json!({ "apiVersion": "dalsegno.dev/v1alpha1", "kind": kind, "spec": spec,
                "metadata": { "name": "nightly", "namespace": "shop", "uid": "uid-1" } })
    }

    /// How many cannot be read now, by the metrics.
    fn counted(ctx: &Context, kind: &str) -> i64 {
        let (text, series) =
            (world::metrics(&ctx.metrics), format!("operator_unreadable_objects{{kind=\"{kind}\"}} "));
        text.lines().find_map(|line| line.strip_prefix(&series)).unwrap().parse().unwrap()
    }

    #[tokio::test]
    async fn a_definition_that_cannot_be_read_is_seen_as_such_and_is_no_error() {
        let (ctx, _) = context(object("AgentDefinition", json!({ "template": "a string" }))).await;
        let run = object("AgentRun", json!({ "agentRef": { "name": "nightly" } }));
        let run: AgentRun = serde_json::from_value(run).unwrap();
        let ObservedAgent::Malformed(why) = observe::observe(&ctx, &run).await.unwrap().agent else {
            panic!("it cannot be read")
        };
        assert!(why.contains("a string"), "{why}");
    }

    #[tokio::test]
    async fn a_run_that_cannot_be_read_is_told_of_once_however_often_it_is_woken_and_again_when_it_changes() {
        let (ctx, asked) = context(Value::Null).await;
        let look = async |generation: i64| {
            let mut run = object("AgentRun", json!({ "agentRef": 7 }));
            run["metadata"]["generation"] = generation.into();
            let run: Run = serde_json::from_value(run).unwrap();
            let action = controller::guarded(Arc::new(run), ctx.clone()).await.unwrap();
            assert_eq!(action, Action::requeue(RECHECK_INTERVAL));
        };
        for _ in 0..3 {
            look(1).await;
        }
        assert_eq!(counted(&ctx, "AgentRun"), 1);
        {
            let asked = asked.lock().unwrap();
            let [(method, path, event)] = asked.as_slice() else { panic!("one event: {asked:?}") };
            assert_eq!(
                (method.as_str(), path.ends_with("/namespaces/shop/events")),
                ("POST", true),
                "{path}"
            );
            assert_eq!((&event["reason"], &event["type"]), (&json!("Malformed"), &json!("Warning")));
            assert_eq!(event["regarding"]["uid"], "uid-1");
        }
        look(2).await;
        assert_eq!(asked.lock().unwrap().len(), 2);
    }

    #[tokio::test]
    async fn an_event_that_is_not_taken_is_tried_again_until_one_is() {
        let store = Arc::new(dalsegno_store::sqlite::Sqlite::memory().await.unwrap());
        let fault: Fault = Arc::new(std::sync::Mutex::new(Some((Method::POST, "/events", Some(500)))));
        let (ctx, asked) = world::context_with(store, vec![], fault.clone());
        let run: Run = serde_json::from_value(object("AgentRun", json!({ "agentRef": 7 }))).unwrap();
        let run = Arc::new(run);
        for broken in [true, false, false] {
            if !broken {
                *fault.lock().unwrap() = None;
            }
            controller::guarded(run.clone(), ctx.clone()).await.unwrap();
        }
        assert_eq!(asked.lock().unwrap().len(), 2, "one that was refused, and one that was taken");
    }

    #[tokio::test]
    async fn what_cannot_be_read_is_counted_until_it_can_be_or_is_deleted() {
        let (ctx, _) = context(Value::Null).await;
        let check = async |uid: &str, template: Value| {
            let mut definition = object("AgentDefinition", json!({ "template": template }));
            definition["metadata"]["uid"] = uid.into();
            let definition: Definition = serde_json::from_value(definition).unwrap();
            definitions::check(Arc::new(definition), ctx.clone()).await.unwrap();
            counted(&ctx, "AgentDefinition")
        };
        let containers = json!([{ "name": names::WORKER_CONTAINER, "image": "agent" }]);
        let (good, bad) = (json!({ "spec": { "containers": containers } }), json!("a string"));
        assert_eq!(check("uid-1", bad.clone()).await, 1);
        assert_eq!(check("uid-2", bad).await, 2);
        assert_eq!(check("uid-1", good).await, 1);
        ctx.forget_all_but(&Default::default());
        assert_eq!(counted(&ctx, "AgentDefinition"), 0);

        let look = async |spec: Value, deleted: bool| {
            let mut run = object("AgentRun", spec);
            run["metadata"]["deletionTimestamp"] =
                deleted.then_some("2026-05-01T00:00:00Z").map_or(Value::Null, Value::from);
            let run: Run = serde_json::from_value(run).unwrap();
            controller::guarded(Arc::new(run), ctx.clone()).await.unwrap();
            counted(&ctx, "AgentRun")
        };
        let (good, bad) = (json!({ "agentRef": { "name": "none" } }), json!({ "agentRef": 7 }));
        assert_eq!(look(bad.clone(), false).await, 1);
        assert_eq!(look(good, false).await, 0);
        assert_eq!(look(bad.clone(), false).await, 1);
        assert_eq!(look(bad, true).await, 0);
    }

    #[tokio::test]
    async fn objects_of_any_depth_are_listed_and_watched_and_stop_no_other() {
        let run = |name: &str, input: Value| {
            let mut run = object("AgentRun", json!({ "agentRef": { "name": "nightly" }, "input": input }));
            run["metadata"]["name"] = name.into();
            run["metadata"]["resourceVersion"] = "1".into();
            run
        };
        let plain = || run("plain", json!({ "task": "sums" })).to_string();
        for levels in [122, 126, 10_000, 500_000] {
            let seen = seen::<AgentRun>([with_depth(&run("deep", json!(-1)), levels), plain()]).await;
            let [(deep, why), (good, read), again @ ..] = seen.as_slice() else { panic!("{seen:?}") };
            assert_eq!((deep.as_str(), good.as_str(), again), ("deep", "plain", &seen[..2]), "{levels}");
            assert!(why.as_ref().unwrap_err().contains("deeper than 96 levels"), "{why:?}");
            assert_eq!(read.as_ref().unwrap().spec.input, Some(json!({ "task": "sums" })));
        }
        let definition = |name: &str, more: Value| {
            let spec = json!({ "containers": [{ "name": "agent", "image": "i" }], "more": more });
            let mut definition = object("AgentDefinition", json!({ "template": { "spec": spec } }));
            definition["metadata"] = json!({ "name": name, "resourceVersion": "1" });
            definition
        };
        let objects =
            [with_depth(&definition("deep", json!(-1)), 126), definition("plain", Value::Null).to_string()];
        let seen = seen::<AgentDefinition>(objects).await;
        assert_eq!(seen.iter().map(|(_, read)| read.is_ok()).collect::<Vec<_>>(), [false, true, false, true]);
    }

    #[tokio::test]
    async fn a_run_that_cannot_be_read_is_deleted_like_any_other() {
        let (ctx, asked) = context(Value::Null).await;
        let new = NewRun {
            id: RunId::now_v7(),
            tenant: "uid-of-shop".into(),
            namespace: "shop".into(),
            name: "nightly".into(),
            object_uid: "uid-1".into(),
            reset_generation: 0,
            deadlines: Deadlines { heartbeat_ms: 60_000, start_ms: 60_000, progress_ms: 60_000 },
            on_prior: OnPrior::Ignore,
        };
        ctx.store.create_run(&new).await.unwrap();
        let labels =
            json!({ names::LABEL_RUN: "nightly", names::LABEL_RUN_UID: "uid-1", names::LABEL_ATTEMPT: "1" });
        let pod = json!({ "metadata": { "name": "nightly-1", "namespace": "shop", "uid": "pod-1", "labels": labels } });
        let pods = stream::iter([Ok(watcher::Event::Apply(serde_json::from_value(pod).unwrap()))]);
        pods::follow(ctx.pods.clone(), pods).collect::<Vec<_>>().await;

        let mut run = object("AgentRun", json!({ "agentRef": 7 }));
        run["metadata"]["finalizers"] = json!([names::FINALIZER]);
        run["metadata"]["deletionTimestamp"] = "2026-05-01T00:00:00Z".into();
        run["metadata"]["annotations"] = json!({ names::ANNOTATION_REASON: "it is no use" });
        let run: Run = serde_json::from_value(run).unwrap();
        controller::guarded(Arc::new(run), ctx.clone()).await.unwrap();

        let row = ctx.store.get_run(new.id).await.unwrap().unwrap();
        assert_eq!(row.lifecycle, Lifecycle::Deleted);
        let told = ctx.store.audit(new.id).await.unwrap().pop().unwrap();
        assert!(told.kind == "deleted" && told.detail.contains("it is no use"), "{told:?}");
        let asked = asked.lock().unwrap();
        let [(stop, pod, _), (patch, run, finalizers)] = asked.as_slice() else { panic!("{asked:?}") };
        assert_eq!((stop.as_str(), pod.ends_with("/shop/pods/nightly-1")), ("DELETE", true), "{pod}");
        assert_eq!((patch.as_str(), run.ends_with("/agentruns/nightly")), ("PATCH", true), "{run}");
        assert_eq!(finalizers[1], json!({ "op": "remove", "path": "/metadata/finalizers/0" }));
    }

    #[tokio::test]
    async fn a_run_whose_output_is_too_deep_is_read_without_it() {
        let fields = json!({ "f:status": { "f:result": { "f:output": -1 } } });
        let mut run = object("AgentRun", json!({ "agentRef": { "name": "nightly" } }));
        run["metadata"]["resourceVersion"] = "1".into();
        run["metadata"]["managedFields"] = json!([{ "manager": "dalsegno", "fieldsV1": fields }]);
        run["status"] = json!({ "storeID": "s", "result": { "outcome": "Succeeded", "output": -1 } });
        for levels in [124, 100_000] {
            let seen = seen::<AgentRun>([with_depth(&run, levels), run.to_string()]).await;
            assert_eq!(seen.len(), 4, "{levels}");
            let status = seen[0].1.as_ref().unwrap().status.as_ref().unwrap();
            assert_eq!(status.store_id.as_deref(), Some("s"));
            assert_eq!(status.result.as_ref().unwrap().output, None);
            let status = seen[1].1.as_ref().unwrap().status.as_ref().unwrap();
            assert_eq!(status.result.as_ref().unwrap().output, Some(json!(-1)));
        }
    }

    #[tokio::test]
    async fn a_definition_that_cannot_be_read_is_told_of() {
        let (ctx, asked) = context(Value::Null).await;
        let definition = object("AgentDefinition", json!({ "template": [] }));
        let definition: Definition = serde_json::from_value(definition).unwrap();
        definitions::check(Arc::new(definition), ctx.clone()).await.unwrap();
        assert_eq!(counted(&ctx, "AgentDefinition"), 1);
        assert_eq!(asked.lock().unwrap()[0].2["regarding"]["kind"], "AgentDefinition");
    }
}
