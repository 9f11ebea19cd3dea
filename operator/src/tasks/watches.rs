//! Watches of pods and nodes: fill the caches, and have the affected runs reconciled.

use std::fmt::Debug;
use std::pin::pin;
use std::sync::Arc;

use dalsegno_core::attribution;
use dalsegno_crds::names;
use futures::StreamExt;
use futures::stream::BoxStream;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod, ResourceQuota};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tokio::sync::oneshot;

use crate::cache::merged_watch;
use crate::cache::pods;
use crate::cache::raw_object::{RawApproval, RawDefinition};
use crate::cache::run_queues::Definition;
use crate::config::OperatorArgs;
use crate::controller::context::Context;

/// The events of all objects of a kind in the watched namespaces.
pub fn watch_kind<K>(
    client: &Client,
    args: &OperatorArgs,
    config: &watcher::Config,
) -> BoxStream<'static, watcher::Result<watcher::Event<K>>>
where
    K: Resource<Scope = k8s_openapi::NamespaceResourceScope>
        + Clone
        + DeserializeOwned
        + Debug
        + Send
        + 'static,
    K::DynamicType: Default,
{
    let namespaces = &args.watch_namespaces;
    let mut apis: Vec<Api<K>> =
        namespaces.iter().map(|namespace| Api::namespaced(client.clone(), namespace)).collect();
    if apis.is_empty() {
        apis.push(Api::all(client.clone()));
    }
    merged_watch::watch(apis, config)
}

/// Removes metadata that is large and not needed.
pub fn trim(object: &mut impl ResourceExt) {
    attribution::trim(object.managed_fields_mut());
    object.annotations_mut().remove("kubectl.kubernetes.io/last-applied-configuration");
}

/// Watches our pods, until cancelled. Notifies `listed` once the cache is filled.
pub async fn watch_pods(ctx: Arc<Context>, args: OperatorArgs, listed: oneshot::Sender<()>) {
    let selector = format!("{}={}", names::LABEL_MANAGED_BY, names::MANAGED_BY);
    let events = watch_kind::<Pod>(&ctx.client, &args, &watcher::Config::default().labels(&selector));
    let mut changes = pin!(pods::watch(ctx.pods.clone(), events));
    let mut listed = Some(listed);
    while let Some(change) = changes.next().await {
        change.runs.iter().for_each(|run| ctx.enqueue(run));
        if change.is_listed {
            notify(&mut listed);
        }
    }
}

/// Watches all nodes, until cancelled. Notifies `listed` once the cache is filled.
pub async fn watch_nodes(ctx: Arc<Context>, listed: oneshot::Sender<()>) {
    let api: Api<Node> = Api::all(ctx.client.clone());
    let mut events = pin!(watcher(api, watcher::Config::default()).default_backoff());
    let mut listed = Some(listed);
    while let Some(event) = events.next().await {
        let Ok(event) = event else { continue };
        let is_listed = matches!(event, watcher::Event::InitDone);
        for node in ctx.nodes.apply(event, Timestamp::now()) {
            ctx.pods.runs_on(&node).iter().for_each(|run| ctx.enqueue(run));
        }
        if is_listed {
            notify(&mut listed);
        }
    }
}

/// Watches all AgentApprovals, until cancelled: a decision wakes its run.
pub async fn watch_approvals(ctx: Arc<Context>, args: OperatorArgs) {
    let mut events = watch_kind::<RawApproval>(&ctx.client, &args, &watcher::Config::default());
    while let Some(event) = events.next().await {
        let Ok(event) = event else { continue };
        ctx.approvals.apply(event).iter().for_each(|run| ctx.enqueue(run));
    }
}

/// Watches all quotas, until cancelled. A quota that changed may have room for the pods that it refused.
pub async fn watch_quotas(ctx: Arc<Context>, args: OperatorArgs) {
    let events = watch_kind::<ResourceQuota>(&ctx.client, &args, &watcher::Config::default());
    let mut changes = pin!(events.touched_objects());
    while let Some(quota) = changes.next().await {
        let Ok(quota) = quota else { continue };
        let woken = ctx.quotas.changed(&quota.namespace().unwrap_or_default(), Timestamp::now());
        woken.iter().for_each(|run| ctx.enqueue(run));
    }
}

/// Has the runs of a definition reconciled, and no others. Reads no run.
pub fn enqueue_runs_of(ctx: &Context, definition: &RawDefinition) {
    let namespace = definition.namespace().unwrap_or_default();
    let definition = Definition { namespace, name: definition.name_any() };
    ctx.run_queues.runs_of(&definition).iter().for_each(|run| ctx.enqueue(run));
}

/// An inspector of a watch that notifies `listed` once the first list is complete.
pub fn signal_when_listed<K>(listed: oneshot::Sender<()>) -> impl FnMut(&watcher::Result<watcher::Event<K>>) {
    let mut listed = Some(listed);
    move |event| {
        if matches!(event, Ok(watcher::Event::InitDone)) {
            notify(&mut listed);
        }
    }
}

/// Notifies at most once. It does not matter if the receiver is gone.
fn notify(listed: &mut Option<oneshot::Sender<()>>) {
    if let Some(listed) = listed.take() {
        let _ = listed.send(());
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a panic fails the test")]

    use serde_json::{Value, json};

    use super::*;
    use crate::cache::raw_object::RawRun;
    use crate::test_context::TestContext;

    fn object<K: DeserializeOwned>(kind: &str, namespace: &str, name: &str, spec: &Value) -> K {
        let metadata = json!({ "name": name, "namespace": namespace, "uid": format!("{namespace}/{name}") });
        let object = json!({ "apiVersion": "dalsegno.dev/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec });
        serde_json::from_str(&object.to_string()).unwrap()
    }

    #[tokio::test]
    async fn a_changed_definition_wakes_exactly_its_runs_also_if_they_cannot_be_read() {
        let store = Arc::new(dalsegno_store::sqlite::Sqlite::memory().await.unwrap());
        let mut ctx = TestContext::new(store, vec![]).ctx;
        let (queue, mut queued) = tokio::sync::mpsc::unbounded_channel();
        Arc::get_mut(&mut ctx).unwrap().queue = queue;
        let triage = json!({ "agentRef": { "name": "triage" } });
        let unreadable = json!({ "agentRef": { "name": "triage" }, "recovery": 7 });
        for (namespace, name, spec) in [
            ("shop", "one", &triage),
            ("shop", "two", &unreadable),
            ("shop", "three", &json!({ "agentRef": { "name": "writer" } })),
            ("shop", "four", &json!({ "agent": {} })),
            ("bank", "one", &triage),
        ] {
            let run: RawRun = object("AgentRun", namespace, name, spec);
            ctx.run_queues.apply(&watcher::Event::Apply(run));
        }
        enqueue_runs_of(&ctx, &object("AgentDefinition", "shop", "triage", &json!({})));
        let mut woken: Vec<String> =
            std::iter::from_fn(|| queued.try_recv().ok()).map(|it| it.name).collect();
        woken.sort();
        assert_eq!(woken, ["one", "two"]);
    }
}
