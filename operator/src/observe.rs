//! Observe: everything a decision needs to know of one run. Reads, and never writes.

use dalsegno_core::version::Templates;
use dalsegno_core::{AgentSight, NodeSight, Observed, PodSight, StoreSight};
use dalsegno_crds::{AgentDefinition, AgentDefinitionSpec, AgentRun};
use dalsegno_store::{AttemptState, LookUp, RunRecord};
use jiff::Timestamp;
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
        Ok(LookUp::Found(row)) => (StoreSight::Found(row), "found"),
        Ok(LookUp::NotFound { store_id, .. }) => (StoreSight::NotFound { store_id }, "not-found"),
        Err(error) => {
            ctx.metrics.failed("run", &error);
            (StoreSight::Unknown(error.to_string()), "unknown")
        }
    };
    ctx.metrics.looked_up(result);
    let row = match &store {
        StoreSight::Found(row) => Some(row.as_ref()),
        _ => None,
    };
    let agent = agent(ctx, run).await?;
    let mut pods = ctx.pods.of(&Owner::of(run));
    let mut node = None;
    if let Some(row) = row {
        prove_absence(ctx, row, &mut pods).await?;
        node = node_of(ctx, row, &pods);
    }
    Ok(Observed {
        store,
        agent,
        pods,
        node,
        templates: Templates::new(),
        head: lock(&ctx.heads).get(&uid).cloned(),
        refusal: lock(&ctx.refusals).get(&uid).cloned(),
        name_taken: false,
        gateway_url: ctx.gateway_url.clone(),
    })
}

/// The inline agent, or the definition; that there is none is believed only of a live answer.
async fn agent(ctx: &Context, run: &AgentRun) -> Result<AgentSight> {
    if let Some(agent) = &run.spec.agent {
        return Ok(AgentSight::Found { agent: Box::new(agent.clone()), defaults: Box::default() });
    }
    let (Some(reference), Some(namespace)) = (&run.spec.agent_ref, run.namespace()) else {
        return Ok(AgentSight::NotFound);
    };
    let cached = ctx.definitions.get(&ObjectRef::new(&reference.name).within(&namespace));
    if let Some(definition) = cached.and_then(|it| it.read().ok()) {
        return Ok(found(definition));
    }
    let api: Api<Definition> = Api::namespaced(ctx.client.clone(), &namespace);
    let live = api.get_opt(&reference.name).await.map_err(Error::api("looking for the AgentDefinition"))?;
    Ok(match live.as_ref().map(Definition::read) {
        Some(Ok(definition)) => found(definition),
        Some(Err(error)) => AgentSight::Malformed(error.to_string()),
        None => AgentSight::NotFound,
    })
}

fn found(definition: AgentDefinition) -> AgentSight {
    let AgentDefinitionSpec { agent, defaults } = definition.spec;
    AgentSight::Found { agent: Box::new(agent), defaults: Box::new(defaults.unwrap_or_default()) }
}

/// The recorded pod of the current attempt is gone only if a live GET by name says so.
async fn prove_absence(ctx: &Context, row: &RunRecord, pods: &mut Vec<PodSight>) -> Result<()> {
    let attempt = &row.attempt;
    let (Some(uid), Some(name)) = (&attempt.pod_uid, &attempt.pod_name) else {
        return Ok(());
    };
    if !matches!(attempt.state, AttemptState::Created | AttemptState::Attached) {
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
        (Some(pod), None) => pods.push(PodSight::of(pod)),
        (None, _) => {}
    }
    Ok(())
}

/// The node of the current attempt; that it is not Ready counts only while the API server answered us.
fn node_of(ctx: &Context, row: &RunRecord, pods: &[PodSight]) -> Option<NodeSight> {
    let of_pod = || {
        let uid = row.attempt.pod_uid.as_ref()?;
        pods.iter().find(|it| it.uid() == uid)?.pod.spec.as_ref()?.node_name.as_ref()
    };
    let name = row.attempt.node.as_ref().or_else(of_pod)?;
    let now = Timestamp::now();
    let sight = ctx.nodes.get(name, now);
    let answering = ctx.api.answering_since(now);
    let since = if sight.ready { sight.since } else { sight.since.max(answering) };
    Some(NodeSight { since, ..sight })
}

/// Whether an API error says that something is not there.
pub fn is_not_found(error: &ApiError) -> bool {
    matches!(error, ApiError::Api(status) if status.is_not_found())
}
