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
use kube::runtime::reflector;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tokio::sync::oneshot;

use crate::cache::merged_watch;
use crate::cache::pods::{self, RunKey};
use crate::cache::raw_object::{RawDefinition, RawRun};
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

/// Has the runs of a definition reconciled.
pub fn enqueue_runs_of(ctx: &Context, runs: &reflector::Store<RawRun>, definition: &RawDefinition) {
    let (name, namespace) = (definition.name_any(), definition.namespace());
    for run in runs.state() {
        if let Ok(run) = run.parse()
            && run.namespace() == namespace
            && run.spec.agent_ref.as_ref().is_some_and(|it| it.name == name)
        {
            ctx.enqueue(&RunKey { namespace: run.namespace().unwrap_or_default(), name: run.name_any() });
        }
    }
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
