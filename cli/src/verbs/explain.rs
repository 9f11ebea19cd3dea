//! `explain`: the facts and the rule of the operator's next decision about a run.
//!
//! The decision is the operator's own code over what the user can read: the AgentRun, its AgentDefinition, its pods, its
//! node, and the store's row.

use std::collections::BTreeMap;

use dalsegno_core::explain::{Explanation, Hidden, describe, explain};
use dalsegno_core::version::Templates;
use dalsegno_core::{
    CliLocation, GatewayAddress, Observed, ObservedAgent, ObservedNode, ObservedPod, ObservedStore,
};
use dalsegno_crds::{AgentDefinition, AgentRun, names};
use dalsegno_model::{Facts, Lifecycle, PriorRun, RunRecord};
use dalsegno_protocol::WaitKind;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt as _;
use kube::api::{Api, ListParams};
use serde_json::json;
use uuid::Uuid;

use crate::approvals;
use crate::args::RunArgs;
use crate::doors::{Document, Door};
use crate::failure::{Exit, Failure, Result};
use crate::output::{Output, Style, time};
use crate::runs;
use crate::session::Session;

/// Explains the next decision.
pub async fn run(session: &Session, args: &RunArgs, output: &mut Output) -> Result {
    let run = runs::get(session, &args.run).await?;
    let store = observe_store(session, &run).await?;
    let (observed, hidden) = observe(session, &run, store).await?;
    // The store's clock decides, as far as it is known.
    let now = match &observed.store {
        ObservedStore::Found(row) => row.now,
        ObservedStore::Unknown(_) | ObservedStore::NotFound { .. } | ObservedStore::Prior(_) => output.now,
    };
    let explanation = explain(&run, &observed, &hidden, now);
    if output.format.is_document() {
        return output.document(&document(&explanation));
    }
    render(&run, &explanation, output);
    Ok(())
}

/// The store's row, with the calls to settle.
struct Seen {
    store: ObservedStore,
    calls_to_settle: Vec<String>,
}

async fn observe_store(session: &Session, run: &AgentRun) -> Result<Seen> {
    let name = run.name_any();
    let door = Door::open(session).await?;
    let answer = door.get::<Facts>(&Document::new(&name, "facts")).await;
    let calls_to_settle = Vec::new();
    match answer {
        Ok(Facts { run: row, calls_to_settle }) if run.uid().as_deref() == Some(&row.object_uid) => {
            Ok(Seen { store: ObservedStore::Found(Box::new(row)), calls_to_settle })
        }
        Ok(Facts { run: row, .. }) => Ok(Seen { store: of_other_object(row), calls_to_settle }),
        Err(failure) if failure.exit == Exit::NotFound => {
            Ok(Seen { store: ObservedStore::NotFound { store_id: known_store(run) }, calls_to_settle })
        }
        Err(failure) if failure.exit == Exit::Unavailable => {
            Ok(Seen { store: ObservedStore::Unknown(failure.what), calls_to_settle })
        }
        Err(failure) => Err(failure),
    }
}

/// The store that the status names: the person cannot ask another one.
fn known_store(run: &AgentRun) -> Uuid {
    let known = run.status.as_ref().and_then(|it| it.store_id.as_deref());
    known.and_then(|it| it.parse().ok()).unwrap_or_default()
}

/// The store has a run of this name that belongs to another object. One that was closed on purpose does not count.
fn of_other_object(row: RunRecord) -> ObservedStore {
    match row.lifecycle {
        Lifecycle::Deleted | Lifecycle::Abandoned => ObservedStore::NotFound { store_id: row.store_id },
        Lifecycle::Live | Lifecycle::Finished => ObservedStore::Prior(PriorRun {
            id: row.id,
            object_uid: row.object_uid,
            asked_by: row.tenant.clone(),
            tenant: row.tenant,
            turn: row.head.map_or(0, |head| head.turn),
        }),
    }
}

/// What the person can read, and what stays hidden.
async fn observe(session: &Session, run: &AgentRun, seen: Seen) -> Result<(Observed, Vec<Hidden>)> {
    let Seen { store, calls_to_settle } = seen;
    let row = match &store {
        ObservedStore::Found(row) => Some(row.as_ref()),
        ObservedStore::Unknown(_) | ObservedStore::NotFound { .. } | ObservedStore::Prior(_) => None,
    };
    let pods = pods(session, run).await?;
    let node = match row {
        Some(row) => node(session, row, &pods).await,
        None => None,
    };
    let mut hidden = Hidden::ALL.to_vec();
    if node.is_some() {
        hidden.retain(|it| *it != Hidden::Node);
    }
    if row.is_some_and(|row| status_shows(run, row)) {
        hidden.retain(|it| *it != Hidden::LostPods);
    }
    if !may_have_approvals(session, run, row).await {
        hidden.retain(|it| *it != Hidden::Approvals);
    }
    if run.spec.agent_ref.is_none() {
        hidden.retain(|it| *it != Hidden::Queue);
    }
    let observed = Observed {
        agent: agent(session, run).await?,
        node,
        past_nodes: Some(BTreeMap::new()),
        ready_nodes: 1,
        templates: Templates::new(),
        head: None,
        pod_create_error: None,
        quota: None,
        queue_position: run.status.as_ref().and_then(|it| it.queue_position),
        name_taken: None,
        calls_to_settle: Some(calls_to_settle),
        approvals: None,
        cli: CliLocation::Pod { namespace: operator_namespace(session) },
        gateway: GatewayAddress::default(),
        fork: None,
        step_back_refused: false,
        store,
        pods,
    };
    Ok((observed, hidden))
}

/// Whether the status was written from this store, at this attempt: then the operator knew of no later one.
fn status_shows(run: &AgentRun, row: &RunRecord) -> bool {
    let Some(status) = &run.status else { return false };
    status.store_id.as_ref() == Some(&row.store_id.to_string())
        && status.attempt.as_ref().is_some_and(|it| it.number == row.attempt.number)
}

/// Whether something may have to be done for an AgentApproval of the run: it asks for one, or has asked.
async fn may_have_approvals(session: &Session, run: &AgentRun, row: Option<&RunRecord>) -> bool {
    let asks = row.is_none_or(|row| row.waits.iter().any(|wait| wait.kind == WaitKind::Approval));
    asks || approvals::of_run(session, run).await.map_or(true, |found| !found.is_empty())
}

fn operator_namespace(session: &Session) -> String {
    session.global.gateway.split('/').next().unwrap_or_default().to_owned()
}

async fn agent(session: &Session, run: &AgentRun) -> Result<ObservedAgent> {
    if let Some(agent) = &run.spec.agent {
        return Ok(ObservedAgent::Found { agent: Box::new(agent.clone()), defaults: Box::default() });
    }
    let Some(reference) = &run.spec.agent_ref else { return Ok(ObservedAgent::NotFound) };
    let definitions: Api<AgentDefinition> = session.api();
    match definitions.get_opt(&reference.name).await {
        Ok(Some(definition)) => {
            let defaults = Box::new(definition.spec.defaults.unwrap_or_default());
            Ok(ObservedAgent::Found { agent: Box::new(definition.spec.agent), defaults })
        }
        Ok(None) => Ok(ObservedAgent::NotFound),
        Err(kube::Error::SerdeError(error)) => Ok(ObservedAgent::Malformed(error.to_string())),
        Err(error) => Err(Failure::of_api("reading the AgentDefinition", &error)),
    }
}

async fn pods(session: &Session, run: &AgentRun) -> Result<Vec<ObservedPod>> {
    let selector = format!("{}={}", names::LABEL_RUN_UID, run.uid().unwrap_or_default());
    let listed = session.api::<Pod>().list(&ListParams::default().labels(&selector)).await;
    let listed = listed.map_err(|error| Failure::of_api("listing the pods", &error))?;
    Ok(listed.items.into_iter().map(ObservedPod::of).collect())
}

/// The node of the current attempt, if the person may read nodes.
async fn node(session: &Session, row: &RunRecord, pods: &[ObservedPod]) -> Option<ObservedNode> {
    let of_pod = || {
        let uid = row.attempt.pod_uid.as_ref()?;
        pods.iter().find(|it| it.uid() == uid)?.pod.spec.as_ref()?.node_name.clone()
    };
    let name = row.attempt.node.clone().or_else(of_pod)?;
    let nodes: Api<Node> = Api::all(session.client.clone());
    let node = nodes.get(&name).await.ok()?;
    let conditions = node.status?.conditions?;
    let ready = conditions.into_iter().find(|it| it.type_ == "Ready")?;
    let since = ready.last_transition_time.map_or(Timestamp::UNIX_EPOCH, |at| at.0);
    Some(ObservedNode { ready: ready.status == "True", since, zone_lost: false })
}

fn document(explanation: &Explanation) -> serde_json::Value {
    let Explanation { rule, decision, facts, unless } = explanation;
    json!({
        "rule": rule.as_str(),
        "meaning": rule.sentence(),
        "certain": unless.is_empty(),
        "effects": decision.effects.iter().map(describe).collect::<Vec<_>>(),
        "requeueSeconds": decision.requeue.map(|it| it.as_secs()),
        "facts": facts.iter().map(|it| json!({ "about": it.about, "text": it.text })).collect::<Vec<_>>(),
        "unless": unless.iter().map(|it| json!({ "rule": it.rule.as_str(), "hidden": it.hidden.question() })).collect::<Vec<_>>(),
    })
}

fn render(run: &AgentRun, explanation: &Explanation, output: &mut Output) {
    let Explanation { rule, decision, facts, unless } = explanation;
    let name = format!("{}/{}", run.namespace().unwrap_or_default(), run.name_any());
    output.print_styled(Style::Bold, &format!("{name}: the next decision follows the rule {rule}"));
    output.field("Rule", rule.sentence());
    let effects: Vec<_> = decision.effects.iter().map(describe).collect();
    let does = if effects.is_empty() { "change nothing".to_owned() } else { effects.join("; then ") };
    output.field("It will", &does);
    if let Some(again) = decision.requeue {
        let seconds = i64::try_from(again.as_secs()).unwrap_or(i64::MAX);
        output.field(
            "Again",
            &format!("in {} at the latest, or when something changes", time::duration(seconds)),
        );
    }
    output.print_styled(Style::Bold, "Facts");
    for fact in facts {
        output.field(&format!("  {}", fact.about), &fact.text);
    }
    if unless.is_empty() {
        return output.print("Nothing that only the operator knows can change this decision.");
    }
    output.print_styled(Style::Bold, "Only the operator knows, and then another rule applies:");
    for it in unless {
        output.field("", &format!("- {}: {}", it.hidden.question(), it.rule));
    }
}
