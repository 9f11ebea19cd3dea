//! Observe: everything a decision needs to know of one run. Reads, and never writes.

use dalsegno_core::version::Templates;
use dalsegno_core::{Observed, ObservedAgent, ObservedNode, ObservedPod, ObservedStore};
use dalsegno_crds::{AgentDefinition, AgentDefinitionSpec, AgentRun};
use dalsegno_store::{AttemptState, LookUp, RunRecord};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;
use kube::{Api, Error as ApiError};

use crate::context::Context;
use crate::error::{Error, Result};
use crate::kept::Definition;
use crate::pods::Owner;
use crate::sync::lock;

/// Looks at everything: the store's row, the agent, the pods, the node.
pub async fn observe(ctx: &Context, run: &AgentRun) -> Result<Observed> {
    let uid = run.uid().unwrap_or_default();
    let (store, result) = match ctx.store.look_up(&uid).await {
        Ok(LookUp::Found(row)) => (ObservedStore::Found(row), "found"),
        Ok(LookUp::NotFound { store_id, .. }) => (ObservedStore::NotFound { store_id }, "not-found"),
        Err(error) => {
            ctx.metrics.failed("run", &error);
            (ObservedStore::Unknown(error.to_string()), "unknown")
        }
    };
    ctx.metrics.looked_up(result);
    let row = match &store {
        ObservedStore::Found(row) => Some(row.as_ref()),
        _ => None,
    };
    let agent = agent(ctx, run).await?;
    let mut pods = ctx.pods.of(&Owner::of(run));
    let mut node = None;
    if let Some(row) = row {
        prove_absence(ctx, row, &mut pods).await?;
        node = node_of(ctx, row, &pods).await?;
    }
    Ok(Observed {
        store,
        agent,
        pods,
        node,
        templates: Templates::new(),
        head: lock(&ctx.heads).get(&uid).cloned(),
        pod_create_error: lock(&ctx.refusals).get(&uid).cloned(),
        name_taken: false,
        gateway_url: ctx.gateway_url.clone(),
    })
}

/// The inline agent, or the definition; that there is none is believed only of a live answer.
async fn agent(ctx: &Context, run: &AgentRun) -> Result<ObservedAgent> {
    if let Some(agent) = &run.spec.agent {
        return Ok(ObservedAgent::Found { agent: Box::new(agent.clone()), defaults: Box::default() });
    }
    let (Some(reference), Some(namespace)) = (&run.spec.agent_ref, run.namespace()) else {
        return Ok(ObservedAgent::NotFound);
    };
    let cached = ctx.definitions.get(&ObjectRef::new(&reference.name).within(&namespace));
    if let Some(definition) = cached.and_then(|it| it.read().ok()) {
        return Ok(found(definition));
    }
    let api: Api<Definition> = Api::namespaced(ctx.client.clone(), &namespace);
    let live = api.get_opt(&reference.name).await.map_err(Error::api("looking for the AgentDefinition"))?;
    Ok(match live.as_ref().map(Definition::read) {
        Some(Ok(definition)) => found(definition),
        Some(Err(error)) => ObservedAgent::Malformed(error.to_string()),
        None => ObservedAgent::NotFound,
    })
}

fn found(definition: AgentDefinition) -> ObservedAgent {
    let AgentDefinitionSpec { agent, defaults } = definition.spec;
    ObservedAgent::Found { agent: Box::new(agent), defaults: Box::new(defaults.unwrap_or_default()) }
}

/// The recorded pod of the current attempt is gone only if a live GET by name says so.
async fn prove_absence(ctx: &Context, row: &RunRecord, pods: &mut Vec<ObservedPod>) -> Result<()> {
    let attempt = &row.attempt;
    let (Some(uid), Some(name)) = (&attempt.pod_uid, &attempt.pod_name) else {
        return Ok(());
    };
    if !is_under_way(row) {
        return Ok(());
    }
    let seen = pods.iter().position(|it| it.uid() == uid);
    if seen.is_some_and(|index| !pods[index].gone) {
        return Ok(());
    }
    let live = ctx
        .pods_in(&row.namespace)
        .get_opt(name)
        .await
        .map_err(Error::api("looking for the worker's pod"))?;
    match (live.filter(|pod| pod.metadata.uid.as_ref() == Some(uid)), seen) {
        (Some(pod), Some(index)) => {
            pods[index].pod = pod;
            pods[index].gone = false;
        }
        (Some(pod), None) => pods.push(ObservedPod::of(pod)),
        (None, _) => {}
    }
    Ok(())
}

/// The node of the current attempt. That it is gone is believed only of a live answer, and that it is not Ready counts only
/// while the API server answered us.
async fn node_of(ctx: &Context, row: &RunRecord, pods: &[ObservedPod]) -> Result<Option<ObservedNode>> {
    let attempt = &row.attempt;
    let of_pod = || {
        let uid = attempt.pod_uid.as_ref()?;
        pods.iter().find(|it| it.uid() == uid)?.pod.spec.as_ref()?.node_name.as_ref()
    };
    // Of an attempt that is over the node is no evidence any more.
    let Some(name) = attempt.node.as_ref().or_else(of_pod).filter(|_| is_under_way(row)) else {
        return Ok(None);
    };
    let sight = match ctx.nodes.watched(name) {
        Some(sight) => sight,
        None => {
            let api: Api<Node> = Api::all(ctx.client.clone());
            let live = api.get_opt(name).await.map_err(Error::api("looking for the worker's node"))?;
            ctx.nodes.answered(name, live.as_ref(), Timestamp::now())
        }
    };
    let answering = ctx.api.answering_since(Timestamp::now());
    let since = if sight.ready { sight.since } else { sight.since.max(answering) };
    Ok(Some(ObservedNode { since, ..sight }))
}

/// Whether the current attempt has a pod, and no end.
fn is_under_way(row: &RunRecord) -> bool {
    matches!(row.attempt.state, AttemptState::Created | AttemptState::Attached)
}

/// Whether an API error says that something is not there.
pub fn is_not_found(error: &ApiError) -> bool {
    matches!(error, ApiError::Api(status) if status.is_not_found())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a case that cannot go on has failed")]

    use std::sync::Arc;

    use axum::http::Method;
    use kube::runtime::watcher::Event;
    use serde_json::{Value, json};

    use super::*;
    use crate::world::{self, Asked, Fault};

    /// A worker on the node `n1`, which the API server has or not, and which no watch has told of.
    async fn on_a_node(objects: Vec<Value>) -> (Arc<Context>, RunRecord, Asked, Fault) {
        let store = Arc::new(dalsegno_store::sqlite::Sqlite::memory().await.unwrap());
        let fault = Fault::default();
        let (ctx, asked) = world::context_with(store, objects, fault.clone());
        let run = world::worked(ctx.store.as_ref(), "nightly", 1).await;
        ctx.store.record_scheduled(run, 1, "n1").await.unwrap();
        let row = ctx.store.get_run(run).await.unwrap().unwrap();
        (ctx, row, asked, fault)
    }

    fn node(ready: &str) -> Value {
        let condition =
            json!({ "type": "Ready", "status": ready, "lastTransitionTime": "2026-05-01T00:00:00Z" });
        json!({ "metadata": { "name": "n1" }, "status": { "conditions": [condition] } })
    }

    #[tokio::test]
    async fn a_node_that_no_watch_has_told_of_is_ready_if_the_api_server_says_so() {
        for (status, ready) in [("True", true), ("Unknown", false)] {
            let (ctx, row, asked, _) = on_a_node(vec![node(status)]).await;
            let sight = node_of(&ctx, &row, &[]).await.unwrap().unwrap();
            assert_eq!(sight.ready, ready);
            assert_eq!(asked.lock().unwrap()[0].1, "/api/v1/nodes/n1");
        }
    }

    #[tokio::test]
    async fn a_node_is_gone_only_if_the_api_server_says_so_and_one_that_is_watched_is_not_asked_for() {
        let (ctx, row, asked, fault) = on_a_node(vec![]).await;
        ctx.api.record(true, Timestamp::UNIX_EPOCH);
        for code in [Some(500), Some(403), None] {
            *fault.lock().unwrap() = Some((Method::GET, "/nodes/n1", code));
            let error = node_of(&ctx, &row, &[]).await.unwrap_err();
            assert!(error.to_string().contains("looking for the worker's node"), "{error}");
        }
        *fault.lock().unwrap() = None;
        let before = Timestamp::now();
        let [first, second] =
            [node_of(&ctx, &row, &[]).await, node_of(&ctx, &row, &[]).await].map(|it| it.unwrap().unwrap());
        assert!(!first.ready && first.since >= before, "no failure has let the clock run: {first:?}");
        assert_eq!(first, second);

        ctx.nodes.take(Event::Apply(serde_json::from_value(node("True")).unwrap()), Timestamp::now());
        asked.lock().unwrap().clear();
        assert!(node_of(&ctx, &row, &[]).await.unwrap().unwrap().ready);
        assert!(asked.lock().unwrap().is_empty());
    }
}
