//! What only the operator knows, and the values that it may have.

use dalsegno_crds::{AgentRun, names};
use dalsegno_model::checkpoint::{Checkpoint, CheckpointCorruption, LastGood};
use dalsegno_model::{Attempt, AttemptState, BoundaryId, ForkRefusal, PriorRun, RunRecord};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use serde_json::Value;
use uuid::Uuid;

use crate::decide::decide;
use crate::decision::Effect;
use crate::late_node_loss;
use crate::observed::{
    ForkProgress, GatewayAddress, NameHolder, Observed, ObservedHead, ObservedNode, ObservedPod,
    ObservedStore,
};
use crate::orphaned_pods;
use crate::pod_create_error::{NamespaceQuota, PodCreateError};
use crate::rule::Rule;
use crate::worker;

/// What a person may not see, and the operator does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Hidden {
    /// Which store the operator is connected to, while it does not have the run; and whether an earlier run has its name.
    Store,
    /// What has to be done for the run's AgentApprovals.
    Approvals,
    /// The stored template that wrote the checkpoint.
    Template,
    /// Pods that were seen before they were gone, and the nonce that makes a pod the attempt's.
    Pods,
    /// Pods of attempts that the store has lost, seen before they were gone.
    LostPods,
    /// Whether the node of the current attempt is Ready, and since when.
    Node,
    /// Whether the nodes of past attempts turned out to be lost.
    PastNodes,
    /// Whether the state at the checkpoint can be rebuilt.
    Head,
    /// How far a fork is copied, or why it is refused.
    Fork,
    /// Whether a step back was refused.
    StepBack,
    /// Whether the CA of the gateway is known.
    GatewayCa,
    /// Whether another object has the name of the next pod.
    PodName,
    /// Whether the API server has refused the next pod a moment ago.
    PodRefusal,
    /// Whether the namespace's quota has room.
    Quota,
    /// The place in the queue of the AgentDefinition.
    Queue,
}

impl Hidden {
    /// Everything, in the order of the decision: what comes later is tried in each world that an earlier one leads to.
    pub const ALL: [Self; 15] = [
        Self::Store,
        Self::Approvals,
        Self::Template,
        Self::Pods,
        Self::LostPods,
        Self::Node,
        Self::PastNodes,
        Self::Fork,
        Self::StepBack,
        Self::Head,
        Self::GatewayCa,
        Self::PodName,
        Self::PodRefusal,
        Self::Quota,
        Self::Queue,
    ];

    /// The question that only the operator can answer, for people.
    pub fn question(self) -> &'static str {
        match self {
            Self::Store => "whether another store or an earlier run is involved",
            Self::Approvals => "whether an AgentApproval must be written first",
            Self::Template => "what the template that wrote the checkpoint says",
            Self::Pods => "whether a pod was seen that is gone by now",
            Self::LostPods => "whether a pod of an attempt was seen that the store has lost",
            Self::Node => "whether the node is Ready",
            Self::PastNodes => "whether the node of a past attempt turns out to be lost",
            Self::Head => "whether the state at the checkpoint can be rebuilt",
            Self::Fork => "whether the fork is refused",
            Self::StepBack => "whether a step back was refused",
            Self::GatewayCa => "whether the CA of the gateway is known",
            Self::PodName => "whether another pod has the name of the next one",
            Self::PodRefusal => "whether the API server has just refused the pod",
            Self::Quota => "whether the quota has room",
            Self::Queue => "whether the AgentDefinition has a free place",
        }
    }
}

/// One way in which what is hidden may be.
pub(super) enum Hypothesis {
    /// What the operator would have observed.
    World(Box<Observed>),
    /// The rule that would apply, whatever else is observed.
    Rule(Rule),
}

/// The ways in which something hidden may be, other than in this world.
pub(super) fn of(hidden: Hidden, run: &AgentRun, (world, now): (&Observed, Timestamp)) -> Vec<Hypothesis> {
    let ObservedStore::Found(row) = &world.store else {
        return if hidden == Hidden::Store { of_store(run, world) } else { Vec::new() };
    };
    match hidden {
        Hidden::Store => Vec::new(),
        // Without the definition nothing is done for them.
        Hidden::Approvals if world.agent().is_some() => vec![Hypothesis::Rule(Rule::ApprovalFirst)],
        Hidden::Approvals => Vec::new(),
        Hidden::Template => of_template(run, world, now),
        Hidden::Pods => of_pods(run, row, world),
        Hidden::LostPods => {
            let lost = gone_pod(run, row.attempt.number.saturating_add(1));
            vec![changed(world, |it| it.pods.push(lost))]
        }
        Hidden::Node => of_node(row, world, now),
        Hidden::PastNodes => of_past_nodes(row, world, now),
        Hidden::Head => of_head(row, world),
        Hidden::Fork => {
            let progress = [ForkProgress::Copying, ForkProgress::Refused(ForkRefusal::NoSuchRun)];
            progress.into_iter().map(|it| changed(world, |world| world.fork = Some(it))).collect()
        }
        Hidden::StepBack => {
            let refused = |is_so| changed(world, |it| it.step_back_refused = is_so);
            if_reserved(row, vec![refused(true), refused(false)])
        }
        Hidden::GatewayCa => {
            let unknown = GatewayAddress { url: "https://gateway".into(), ca: None };
            vec![changed(world, |it| it.gateway = unknown)]
        }
        Hidden::PodName => {
            let named = |holder| changed(world, |it| it.name_taken = Some(holder));
            if_reserved(row, vec![named(NameHolder::AnotherOwner), named(NameHolder::DeletedRun)])
        }
        Hidden::PodRefusal => of_refusal(run, row, (world, now)),
        Hidden::Quota => {
            let retry_at = now.checked_add(SignedDuration::from_secs(5)).unwrap_or(now);
            let quota = NamespaceQuota { message: String::new(), retry_at, is_next: true };
            if_reserved(row, vec![changed(world, |it| it.quota = Some(quota))])
        }
        Hidden::Queue => if_reserved(
            row,
            vec![
                changed(world, |it| it.queue_position = Some(1)),
                changed(world, |it| it.queue_position = None),
            ],
        ),
    }
}

fn changed(world: &Observed, change: impl FnOnce(&mut Observed)) -> Hypothesis {
    let mut other = world.clone();
    change(&mut other);
    Hypothesis::World(Box::new(other))
}

fn if_reserved(row: &RunRecord, hypotheses: Vec<Hypothesis>) -> Vec<Hypothesis> {
    if row.attempt.state == AttemptState::Reserved { hypotheses } else { Vec::new() }
}

/// The run is not in the store that the person has asked, or the store does not respond.
fn of_store(run: &AgentRun, world: &Observed) -> Vec<Hypothesis> {
    let ObservedStore::NotFound { store_id } = world.store else { return Vec::new() };
    let other = Uuid::from_u128(!store_id.as_u128());
    let prior = PriorRun {
        id: Uuid::nil(),
        object_uid: String::new(),
        tenant: String::new(),
        asked_by: String::new(),
        turn: 0,
    };
    let known = run.status.as_ref().and_then(|it| it.store_id.as_deref());
    let same = known.and_then(|it| it.parse().ok()).unwrap_or(other);
    vec![
        changed(world, |it| it.store = ObservedStore::NotFound { store_id: other }),
        changed(world, |it| it.store = ObservedStore::NotFound { store_id: same }),
        changed(world, |it| it.store = ObservedStore::Prior(prior)),
    ]
}

/// The store may not have the template; it may be the current one, or another one.
fn of_template(run: &AgentRun, world: &Observed, now: Timestamp) -> Vec<Hypothesis> {
    let decision = decide(run, world, now);
    let Some(Effect::ReadTemplate(revision)) = decision.effects.first() else { return Vec::new() };
    let current = world.agent().map(|agent| crate::revision::Document::of(agent).text());
    let other = current.as_deref().map(with_other_image);
    let texts = [None, current, other];
    let read = |text: Option<String>| changed(world, |it| drop(it.templates.insert(revision.clone(), text)));
    texts.into_iter().map(read).collect()
}

/// The same template with another image for each container.
fn with_other_image(text: &str) -> String {
    let Ok(mut document) = serde_json::from_str::<Value>(text) else { return String::new() };
    let containers = document.pointer_mut("/template/spec/containers").and_then(Value::as_array_mut);
    for container in containers.into_iter().flatten() {
        container["image"] = "another.example/image:1".into();
    }
    document.to_string()
}

/// A pod of the current attempt may have been seen and be gone; and one that is there may be a stranger's.
fn of_pods(run: &AgentRun, row: &RunRecord, world: &Observed) -> Vec<Hypothesis> {
    if row.attempt.state != AttemptState::Reserved {
        return Vec::new();
    }
    let without = |it: &mut Observed| it.pods.retain(|seen| !orphaned_pods::is_current(row, seen));
    let gone = |it: &mut Observed| {
        without(it);
        let mut seen = gone_pod(run, row.attempt.number);
        let nonce =
            row.attempt.pod_nonce.iter().map(|nonce| (names::ANNOTATION_NONCE.to_owned(), nonce.clone()));
        seen.pod.metadata.annotations = Some(nonce.collect());
        seen.pod.metadata.uid = row.attempt.pod_uid.clone().or(seen.pod.metadata.uid);
        it.pods.push(seen);
    };
    vec![changed(world, without), changed(world, gone)]
}

/// A pod of this attempt that was seen and is gone.
fn gone_pod(run: &AgentRun, attempt: i32) -> ObservedPod {
    let mut pod = Pod::default();
    let name = run.metadata.name.as_deref().unwrap_or_default();
    pod.metadata.name = Some(worker::pod_name(name, attempt));
    pod.metadata.namespace.clone_from(&run.metadata.namespace);
    pod.metadata.uid = Some("gone".into());
    pod.metadata.labels = Some([(names::LABEL_ATTEMPT.to_owned(), attempt.to_string())].into());
    pod.metadata.owner_references = Some(vec![run.owner_reference()]);
    ObservedPod { gone: true, ..ObservedPod::of(pod) }
}

fn node(ready: bool, since: Timestamp) -> ObservedNode {
    ObservedNode { ready, since, zone_lost: false }
}

/// Long enough to be lost, or Ready without interruption.
fn of_node(row: &RunRecord, world: &Observed, now: Timestamp) -> Vec<Hypothesis> {
    if matches!(row.attempt.state, AttemptState::Reserved | AttemptState::Ended) {
        return Vec::new();
    }
    let long_ago = now.checked_sub(SignedDuration::from_hours(24 * 365)).unwrap_or(Timestamp::MIN);
    let nodes = [None, Some(node(true, long_ago)), Some(node(false, long_ago)), Some(node(true, now))];
    nodes.into_iter().map(|node| changed(world, |it| it.node = node)).collect()
}

/// Any of them is lost, none is, or nobody looks.
fn of_past_nodes(row: &RunRecord, world: &Observed, now: Timestamp) -> Vec<Hypothesis> {
    let awaiting: Vec<&Attempt> = late_node_loss::awaiting_verdict(row).collect();
    if awaiting.is_empty() {
        return Vec::new();
    }
    let names = || awaiting.iter().filter_map(|it| it.node.clone());
    let lost = names().map(|name| (name, node(false, now))).collect();
    let none = Default::default();
    [Some(lost), Some(none), None]
        .into_iter()
        .map(|nodes| changed(world, |it| it.past_nodes = nodes))
        .collect()
}

/// The state can be rebuilt, or it cannot: with and without an earlier good checkpoint, and with effects after that.
fn of_head(row: &RunRecord, world: &Observed) -> Vec<Hypothesis> {
    let corrupt = |last_good: Option<LastGood>| {
        Checkpoint::Corrupt(CheckpointCorruption { detail: String::new(), last_good })
    };
    let good = |effects: Vec<String>| {
        let boundary = row.head.as_ref().map(|head| BoundaryId {
            turn: head.turn,
            boundary: head.boundary,
            epoch: head.epoch,
        });
        boundary.map(|boundary| LastGood { boundary, effects })
    };
    let found =
        [Checkpoint::Valid, corrupt(None), corrupt(good(Vec::new())), corrupt(good(vec![String::new()]))];
    let verified = found.into_iter().map(|it| Some(ObservedHead::of(row, it)));
    let hypotheses = verified.chain([None]).map(|head| changed(world, |it| it.head = head)).collect();
    if_reserved(row, hypotheses)
}

/// The API server may have refused the pod as invalid, for a policy, or for its namespace.
fn of_refusal(run: &AgentRun, row: &RunRecord, (world, now): (&Observed, Timestamp)) -> Vec<Hypothesis> {
    let decision = decide(run, world, now);
    let Some(Effect::CreateWorker { revision, .. }) = decision.effects.first() else { return Vec::new() };
    let refused = |code: u16| {
        let error = PodCreateError::first(code, "", revision.clone(), now);
        changed(world, |it| it.pod_create_error = Some(error))
    };
    if_reserved(row, vec![refused(403), refused(422)])
}
