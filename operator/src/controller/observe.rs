//! Observe: reads everything that a decision needs to know of one run. Never writes.

use std::collections::BTreeMap;

use dalsegno_core::approvals::ObservedApprovals;
use dalsegno_core::version::Templates;
use dalsegno_core::{
    Observed, ObservedAgent, ObservedNode, ObservedPod, ObservedStore, VolumeProblem, is_silent,
    late_node_loss, slow_start,
};
use dalsegno_crds::{Agent, AgentDefinition, AgentDefinitionSpec, AgentRun, RunDefaults};
use dalsegno_model::{AttemptState, LookUp, RunRecord};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, Node};
use kube::api::ListParams;
use kube::runtime::reflector::ObjectRef;
use kube::{Api, ResourceExt};

use super::context::{Context, EVENT_TIMEOUT};
use super::error::{Error, Result};
use crate::cache::pods::{Owner, RunKey};
use crate::cache::raw_object::RawDefinition;
use crate::cache::run_queues::Definition;
use crate::kube_client::with_timeout;
use crate::mutex::lock;

/// Observes the store's row, the agent, the pods and the node.
pub async fn observe(ctx: &Context, run: &AgentRun) -> Result<Observed> {
    let uid = run.uid().unwrap_or_default();
    let store = observe_store(ctx, &uid).await;
    let row = match &store {
        ObservedStore::Found(row) => Some(row.as_ref()),
        _ => None,
    };
    let (agent, max_concurrent_runs) = observe_agent(ctx, run).await?;
    let key = RunKey { namespace: run.namespace().unwrap_or_default(), name: run.name_any() };
    let mut pods = ctx.pods.of(&Owner::of(run));
    let (mut node, mut past_nodes) = (None, BTreeMap::new());
    if let Some(row) = row {
        past_nodes = observe_past_nodes(ctx, row).await?;
        confirm_current_pod(ctx, row, &mut pods, Source::Cache).await?;
        node = observe_node(ctx, row, &pods, Source::Cache).await?;
        let current = pods.iter().find(|it| row.attempt.pod_uid.as_deref() == Some(it.uid()));
        if has_active_pod(row) && is_silent(row, current, node, Timestamp::now()) {
            confirm_current_pod(ctx, row, &mut pods, Source::Live).await?;
            node = observe_node(ctx, row, &pods, Source::Live).await?;
        }
        if let Some(seen) = pods.iter_mut().find(|it| slow_start::may_wait_for_volume(row, it)) {
            seen.volume_problem = observe_volumes(ctx, row, seen).await;
        }
    }
    Ok(Observed {
        store,
        agent,
        pods,
        node,
        past_nodes: Some(past_nodes),
        ready_nodes: ctx.nodes.ready_count(),
        templates: Templates::new(),
        head: lock(&ctx.heads).get(&uid).cloned(),
        pod_create_error: lock(&ctx.refusals).get(&uid).cloned(),
        quota: ctx.quotas.wait(&key, Timestamp::now()),
        queue_position: queue_position(ctx, run, &key, max_concurrent_runs),
        name_taken: None,
        calls_to_settle: None,
        fork: None,
        step_back_refused: false,
        approvals: Some(observe_approvals(ctx, &uid)),
        cli: ctx.cli.clone(),
        gateway: ctx.gateway.address(),
    })
}

/// What the caches know of the run's AgentApprovals.
fn observe_approvals(ctx: &Context, uid: &str) -> ObservedApprovals {
    let (objects, over) = ctx.approvals.of(uid);
    ObservedApprovals { over, ..ObservedApprovals::cached(objects, ctx.policies.state()) }
}

/// Where a pod and a node are observed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    /// In the cache, and live only if the cache does not have them.
    Cache,
    /// In the API server. A watch may be silent for longer than a deadline, and an evicted worker must not be charged
    /// because the operator has not seen its eviction yet.
    Live,
}

/// The store's row. A failed lookup is an observation too.
async fn observe_store(ctx: &Context, uid: &str) -> ObservedStore {
    let (store, result) = match ctx.store.find_by_object(uid).await {
        Ok(LookUp::Found(row)) => (ObservedStore::Found(row), "found"),
        Ok(LookUp::NotFound { store_id, .. }) => (ObservedStore::NotFound { store_id }, "not-found"),
        Err(error) => {
            ctx.metrics.count_store_error("run", &error);
            (ObservedStore::Unknown(error.to_string()), "unknown")
        }
    };
    ctx.metrics.count_lookup(result);
    store
}

/// The run's position in the queue of its definition, if the definition limits its runs.
fn queue_position(ctx: &Context, run: &AgentRun, key: &RunKey, max: Option<i32>) -> Option<i32> {
    let name = run.spec.agent_ref.as_ref()?.name.clone();
    let definition = Definition { namespace: key.namespace.clone(), name };
    ctx.run_queues.position(run.metadata.uid.as_deref()?, &definition, max?)
}

/// The inline agent, or the definition with the limit of its runs. Only a live read proves that there is no definition.
async fn observe_agent(ctx: &Context, run: &AgentRun) -> Result<(ObservedAgent, Option<i32>)> {
    if let Some(agent) = &run.spec.agent {
        return Ok((found(ctx, agent.clone(), RunDefaults::default()), None));
    }
    let (Some(reference), Some(namespace)) = (&run.spec.agent_ref, run.namespace()) else {
        return Ok((ObservedAgent::NotFound, None));
    };
    let cached = ctx.definitions.get(&ObjectRef::new(&reference.name).within(&namespace));
    if let Some(definition) = cached.and_then(|it| it.parse().ok()) {
        return Ok(agent_of(ctx, definition));
    }
    let api: Api<RawDefinition> = Api::namespaced(ctx.client.clone(), &namespace);
    let live = api.get_opt(&reference.name).await.map_err(Error::api("reading the AgentDefinition"))?;
    Ok(match live.as_ref().map(RawDefinition::parse) {
        Some(Ok(definition)) => agent_of(ctx, definition),
        Some(Err(error)) => (ObservedAgent::Malformed(error.to_string()), None),
        None => (ObservedAgent::NotFound, None),
    })
}

fn agent_of(ctx: &Context, definition: AgentDefinition) -> (ObservedAgent, Option<i32>) {
    let AgentDefinitionSpec { agent, max_concurrent_runs, defaults } = definition.spec;
    (found(ctx, agent, defaults.unwrap_or_default()), max_concurrent_runs)
}

/// The agent, with the operator's settings in place of defaults that are unset.
fn found(ctx: &Context, agent: Agent, defaults: RunDefaults) -> ObservedAgent {
    // The operator's settings are for checkpoints of the store.
    let snapshot_every = ctx.snapshot_every.filter(|_| !agent.is_external());
    let defaults = Box::new(with_settings(defaults, snapshot_every));
    ObservedAgent::Found { agent: Box::new(agent), defaults }
}

/// The defaults, with the operator's `checkpoints.snapshotEvery` if they have none.
fn with_settings(mut defaults: RunDefaults, snapshot_every: Option<i32>) -> RunDefaults {
    if let Some(every) = snapshot_every {
        defaults.checkpoints.get_or_insert_default().snapshot_every.get_or_insert(every);
    }
    defaults
}

/// Reads the current attempt's pod by name if the source is live, or if the cache does not have the pod or has it as
/// gone. Only a live read proves that the pod is gone.
async fn confirm_current_pod(
    ctx: &Context,
    row: &RunRecord,
    pods: &mut Vec<ObservedPod>,
    source: Source,
) -> Result<()> {
    let attempt = &row.attempt;
    let (Some(uid), Some(name)) = (&attempt.pod_uid, &attempt.pod_name) else {
        return Ok(());
    };
    if !has_active_pod(row) {
        return Ok(());
    }
    let cached = pods.iter().position(|it| it.uid() == uid);
    if source == Source::Cache && cached.is_some_and(|index| !pods[index].gone) {
        return Ok(());
    }
    let live =
        ctx.pods_in(&row.namespace).get_opt(name).await.map_err(Error::api("reading the worker's pod"))?;
    match (live.filter(|pod| pod.metadata.uid.as_ref() == Some(uid)), cached) {
        (Some(pod), Some(index)) => {
            let mut live = ObservedPod { watched: pods[index].watched, ..ObservedPod::of(pod) };
            live.disrupted_while_running |= pods[index].disrupted_while_running;
            pods[index] = live;
        }
        (Some(pod), None) => pods.push(ObservedPod { watched: false, ..ObservedPod::of(pod) }),
        (None, Some(index)) => pods[index].gone = true,
        (None, None) => {}
    }
    Ok(())
}

/// Why a volume of this pod is not ready, as its latest event says. Best effort: events are lost and expire, and the operator
/// may not have the right to read them.
async fn observe_volumes(ctx: &Context, row: &RunRecord, seen: &ObservedPod) -> Option<VolumeProblem> {
    let client = with_timeout(ctx.client.clone(), EVENT_TIMEOUT);
    let api: Api<Event> = Api::namespaced(client, &row.namespace);
    let of_pod = ListParams::default().fields(&format!("involvedObject.uid={}", seen.uid()));
    let events =
        api.list(&of_pod).await.inspect_err(|error| tracing::warn!(%error, "no events could be read"));
    let time = |it: &Event| {
        let last = it.series.as_ref().and_then(|it| it.last_observed_time.as_ref()).map(|it| it.0);
        last.max(it.last_timestamp.as_ref().map(|it| it.0)).max(it.event_time.as_ref().map(|it| it.0))
    };
    let is_of_volume = |it: &Event| it.reason.as_deref().is_some_and(slow_start::is_volume_event);
    let latest = events.ok()?.items.into_iter().filter(is_of_volume).max_by_key(time)?;
    slow_start::volume_problem(latest.reason.as_deref()?, latest.message.as_deref().unwrap_or_default())
}

/// The nodes of the past attempts whose charge may be taken back.
async fn observe_past_nodes(ctx: &Context, row: &RunRecord) -> Result<BTreeMap<String, ObservedNode>> {
    let mut nodes = BTreeMap::new();
    for name in late_node_loss::awaiting_verdict(row).filter_map(|it| it.node.as_ref()) {
        if !nodes.contains_key(name) {
            nodes.insert(name.clone(), read_node(ctx, name, Source::Cache).await?);
        }
    }
    Ok(nodes)
}

/// The node of the current attempt's pod. Only a live read proves that it is gone. The time that it was not Ready counts
/// only while the API server was available.
async fn observe_node(
    ctx: &Context,
    row: &RunRecord,
    pods: &[ObservedPod],
    source: Source,
) -> Result<Option<ObservedNode>> {
    let attempt = &row.attempt;
    let of_pod = || {
        let uid = attempt.pod_uid.as_ref()?;
        pods.iter().find(|it| it.uid() == uid)?.pod.spec.as_ref()?.node_name.as_ref()
    };
    // The node of an attempt that has ended is no evidence.
    let Some(name) = attempt.node.as_ref().or_else(of_pod).filter(|_| has_active_pod(row)) else {
        return Ok(None);
    };
    let node = read_node(ctx, name, source).await?;
    let available = ctx.api.available_since(Timestamp::now());
    let since = if node.ready { node.since } else { node.since.max(available) };
    let zone_lost = !node.ready && ctx.nodes.is_zone_lost(name);
    Ok(Some(ObservedNode { since, zone_lost, ..node }))
}

/// The readiness of a node. Only a live read proves that it is gone.
async fn read_node(ctx: &Context, name: &str, source: Source) -> Result<ObservedNode> {
    if let Some(node) = ctx.nodes.watched(name).filter(|_| source == Source::Cache) {
        return Ok(node);
    }
    let api: Api<Node> = Api::all(ctx.client.clone());
    let live = api.get_opt(name).await.map_err(Error::api("reading the worker's node"))?;
    let now = Timestamp::now();
    Ok(match source {
        Source::Cache => ctx.nodes.record_read(name, live.as_ref(), now),
        Source::Live => ctx.nodes.read_live(name, live.as_ref(), now),
    })
}

/// Whether the current attempt has a pod and has not ended.
fn has_active_pod(row: &RunRecord) -> bool {
    matches!(row.attempt.state, AttemptState::Created | AttemptState::Attached)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a panic fails the test")]

    use std::sync::Arc;

    use axum::http::Method;
    use dalsegno_crds::Checkpoints;
    use kube::runtime::watcher::Event;
    use serde_json::{Value, json};

    use super::*;
    use crate::test_context::{Fault, Requests, TestContext, create_worked_run};

    /// A worker on the node `n1`. The API server has these objects; no watch has shown the node.
    async fn worker_on_node(objects: Vec<Value>) -> (Arc<Context>, RunRecord, Requests, Fault) {
        let store = Arc::new(dalsegno_store::sqlite::Sqlite::memory().await.unwrap());
        let fault = Fault::default();
        let TestContext { ctx, requests } = TestContext::with_fault(store, objects, fault.clone());
        let run = create_worked_run(ctx.store.as_ref(), "nightly", 1).await;
        ctx.store.record_scheduled(run, 1, "n1").await.unwrap();
        let row = ctx.store.get_run(run).await.unwrap().unwrap();
        (ctx, row, requests, fault)
    }

    fn node(ready: &str) -> Value {
        let condition =
            json!({ "type": "Ready", "status": ready, "lastTransitionTime": "2026-05-01T00:00:00Z" });
        json!({ "metadata": { "name": "n1" }, "status": { "conditions": [condition] } })
    }

    #[tokio::test]
    async fn an_unwatched_node_is_ready_if_the_api_server_shows_it_ready() {
        for (status, ready) in [("True", true), ("Unknown", false)] {
            let (ctx, row, requests, _) = worker_on_node(vec![node(status)]).await;
            let observed = observe_node(&ctx, &row, &[], Source::Cache).await.unwrap().unwrap();
            assert_eq!(observed.ready, ready);
            assert_eq!(requests.lock().unwrap()[0].1, "/api/v1/nodes/n1");
        }
    }

    #[tokio::test]
    async fn a_node_is_gone_only_after_a_live_read_and_a_watched_node_is_not_read() {
        let (ctx, row, requests, fault) = worker_on_node(vec![]).await;
        ctx.api.record(true, Timestamp::UNIX_EPOCH);
        for code in [Some(500), Some(403), None] {
            *fault.lock().unwrap() = Some((Method::GET, "/nodes/n1", code));
            let error = observe_node(&ctx, &row, &[], Source::Cache).await.unwrap_err();
            assert!(error.to_string().contains("reading the worker's node"), "{error}");
        }
        *fault.lock().unwrap() = None;
        let before = Timestamp::now();
        let [first, second] = [
            observe_node(&ctx, &row, &[], Source::Cache).await,
            observe_node(&ctx, &row, &[], Source::Cache).await,
        ]
        .map(|it| it.unwrap().unwrap());
        assert!(!first.ready && first.since >= before, "failed reads do not count: {first:?}");
        assert_eq!(first, second);

        ctx.nodes.apply(Event::Apply(serde_json::from_value(node("True")).unwrap()), Timestamp::now());
        requests.lock().unwrap().clear();
        assert!(observe_node(&ctx, &row, &[], Source::Cache).await.unwrap().unwrap().ready);
        assert!(requests.lock().unwrap().is_empty());
    }

    fn running_pod(row: &RunRecord) -> Value {
        let metadata =
            json!({ "name": row.attempt.pod_name, "namespace": row.namespace, "uid": row.attempt.pod_uid });
        json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "status": { "phase": "Running" } })
    }

    #[tokio::test]
    async fn before_an_end_for_silence_the_pod_and_the_node_are_read_live() {
        let (_, row, ..) = worker_on_node(vec![]).await;
        let mut evicted = running_pod(&row);
        let target = json!({ "type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI",
                             "lastTransitionTime": "2026-05-01T00:00:00Z" });
        evicted["status"]["conditions"] = json!([target]);
        let (ctx, row, ..) = worker_on_node(vec![evicted, node("Unknown")]).await;
        // The watches have shown neither the eviction nor the loss of the node.
        ctx.nodes.apply(Event::Apply(serde_json::from_value(node("True")).unwrap()), Timestamp::now());
        let mut pods = vec![ObservedPod::of(serde_json::from_value(running_pod(&row)).unwrap())];
        for (source, expected) in [(Source::Cache, (false, true)), (Source::Live, (true, false))] {
            confirm_current_pod(&ctx, &row, &mut pods, source).await.unwrap();
            let node = observe_node(&ctx, &row, &pods, source).await.unwrap().unwrap();
            assert_eq!((pods[0].disrupted_while_running, node.ready), expected, "{source:?}");
        }
    }

    #[test]
    fn the_operators_setting_replaces_a_default_that_is_unset_and_no_other() {
        let resolved = |own: Option<i32>, of_operator: Option<i32>| {
            let checkpoints = own.map(|every| Checkpoints { snapshot_every: Some(every) });
            let defaults = RunDefaults { checkpoints, ..RunDefaults::default() };
            with_settings(defaults, of_operator).checkpoints.and_then(|it| it.snapshot_every)
        };
        let cases = [(None, None), (None, Some(20)), (Some(3), None), (Some(3), Some(20))];
        let found = cases.map(|(own, of_operator)| resolved(own, of_operator));
        assert_eq!(found, [None, Some(20), Some(3), Some(3)]);
    }
}
