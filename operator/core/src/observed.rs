//! What the operator observed of a run at one moment.

use std::collections::BTreeMap;

use dalsegno_crds::{Agent, AgentApproval, AgentRun, RunDefaults, names};
use dalsegno_model::checkpoint::Checkpoint;
use dalsegno_model::{AttemptState, ForkRefusal, PriorRun, RunRecord};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use uuid::Uuid;

use crate::approvals::four_eyes::FourEyes;
use crate::approvals::{KnownWait, ObservedApprovals, PolicyState, WaitKey};
use crate::cli_location::CliLocation;
use crate::pod;
use crate::pod_create_error::{NamespaceQuota, PodCreateError};
use crate::version::Templates;

/// What the operator observed of a run. The operator fills it in, and [`Observed::apply`] updates it with the results
/// of effects.
#[derive(Clone, Debug)]
pub struct Observed {
    /// The store's answer.
    pub store: ObservedStore,
    /// The run's agent.
    pub agent: ObservedAgent,
    /// Every pod of the namespace whose label has this AgentRun's UID. It includes deleted pods whose end is not
    /// recorded.
    pub pods: Vec<ObservedPod>,
    /// The node of the current attempt, if the attempt has one.
    pub node: Option<ObservedNode>,
    /// The nodes of past attempts that [`crate::late_node_loss::awaiting_verdict`] lists, by name. `None`: no node can be
    /// lost, as on a laptop.
    pub past_nodes: Option<BTreeMap<String, ObservedNode>>,
    /// Number of nodes that are Ready.
    pub ready_nodes: usize,
    /// The stored templates that were read.
    pub templates: Templates,
    /// The result of the last verification of the head.
    pub head: Option<ObservedHead>,
    /// The API server's last error when the current attempt's pod was created.
    pub pod_create_error: Option<PodCreateError>,
    /// The quota that the run's namespace exceeds, while no try is due.
    pub quota: Option<NamespaceQuota>,
    /// Position of the run in the queue of its definition, from 1. `None`: it may start.
    pub queue_position: Option<i32>,
    /// Who else has a pod with the name of the current attempt's pod, if somebody has.
    pub name_taken: Option<NameHolder>,
    /// Ids of the calls that hold the run until a person settles them: at most [`crate::remedy::MAX_CALLS`]. `None`: they were
    /// not read, which a decision asks for only if there are any.
    pub calls_to_settle: Option<Vec<String>>,
    /// How far the run's fork is, if it was tried in this reconcile.
    pub fork: Option<ForkProgress>,
    /// Whether the store refused to go back one turn in this reconcile.
    pub step_back_refused: bool,
    /// The run's AgentApprovals. `None`: they were not looked at, so nothing is done about them.
    pub approvals: Option<ObservedApprovals>,
    /// Where a person runs this program.
    pub cli: CliLocation,
    /// Where workers reach the gateway.
    pub gateway: GatewayAddress,
}

/// Where workers reach the gateway, and how they verify it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GatewayAddress {
    /// Base URL, without a slash at the end.
    pub url: String,
    /// The CAs that verify its certificate. `None`: the gateway has no TLS, or its CA is not known yet.
    pub ca: Option<CaBundle>,
}

/// The CAs that verify the gateway's certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CaBundle {
    /// Their certificates, in PEM.
    pub pem: String,
    /// Their ids, as [`crate::certificates::ids_text`] writes them.
    pub ids: String,
}

/// The store's answer.
#[derive(Clone, Debug)]
pub enum ObservedStore {
    /// The store did not respond, or rejected a write. The state of the run is not known. Holds the error.
    Unknown(String),
    /// The store has no row for this object.
    NotFound {
        /// Id of the store.
        store_id: Uuid,
    },
    /// The store has a run of the same name that belongs to another object.
    Prior(PriorRun),
    /// The run's row.
    Found(Box<RunRecord>),
}

/// The run's AgentDefinition, or its inline agent.
#[derive(Clone, Debug)]
pub enum ObservedAgent {
    /// The agent exists.
    Found {
        /// The agent.
        agent: Box<Agent>,
        /// The definition's defaults for fields that the run leaves unset.
        defaults: Box<RunDefaults>,
    },
    /// `agentRef` refers to an AgentDefinition that does not exist.
    NotFound,
    /// The AgentDefinition cannot be parsed. Holds the error.
    Malformed(String),
}

/// How far the fork of a run is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ForkProgress {
    /// A part is copied, and the rest is left for the next reconcile.
    Copying,
    /// It cannot go on.
    Refused(ForkRefusal),
}

/// Who else has a pod with the name of an attempt's pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameHolder {
    /// A deleted AgentRun of the same name. Its pod is being deleted, which takes as long as its node is cut off. Anybody
    /// who may create pods can pretend this; then the run passes over one name for each such pod.
    DeletedRun,
    /// Anybody else.
    AnotherOwner,
}

/// A pod as it was last seen.
#[derive(Clone, Debug)]
pub struct ObservedPod {
    /// Last known state of the pod.
    pub pod: Pod,
    /// Whether the pod is gone: a live GET by its name found no pod, or a pod with another UID.
    pub gone: bool,
    /// Whether the watch of pods shows the pod. If not, only live requests do: somebody may have removed its labels.
    pub watched: bool,
    /// Whether its deletion or disruption was first seen while its worker was running.
    pub disrupted_while_running: bool,
    /// Why one of its volumes is not ready. Only events say so; they are read if the start takes long
    /// ([`crate::slow_start::may_wait_for_volume`]).
    pub volume_problem: Option<VolumeProblem>,
}

/// Why a volume of a pod is not ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeProblem {
    /// Whether the volume cannot be attached to the node, as one that is still attached to a lost node. Otherwise it
    /// cannot be mounted, as one of a Secret that does not exist.
    pub is_attach: bool,
    /// Reason and message of the event.
    pub message: String,
}

/// A node as it was last seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObservedNode {
    /// Whether the node exists and is Ready.
    pub ready: bool,
    /// Since when `ready` has this value, by the operator's clock. The time of a node that is not Ready counts only
    /// while the API server responds.
    pub since: Timestamp,
    /// Whether most nodes of its zone are not Ready. Then the network to the zone is more likely to be lost than all
    /// these nodes, and their workers may be healthy.
    pub zone_lost: bool,
}

/// The result of a verification of a run's head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedHead {
    /// Epoch of the row that was verified. Every attempt and every rewind has its own epoch.
    pub epoch: i64,
    /// Reset generation of the row that was verified. A person who repaired the store raises it to request another
    /// verification.
    pub reset_generation: i64,
    /// The result.
    pub found: Checkpoint,
}

impl ObservedHead {
    /// The result of a verification of this row's head.
    pub fn of(row: &RunRecord, found: Checkpoint) -> Self {
        Self { epoch: row.epoch, reset_generation: row.observed_reset_generation, found }
    }

    /// Whether the result is valid for this row.
    pub fn is_of(&self, row: &RunRecord) -> bool {
        (self.epoch, self.reset_generation) == (row.epoch, row.observed_reset_generation)
    }
}

/// The result of an effect.
#[derive(Clone, Debug)]
pub enum EffectResult {
    /// The current row.
    Row(Box<RunRecord>),
    /// The store has a run of the same name that belongs to another object.
    Prior(PriorRun),
    /// The pod of the current attempt, which was created now or existed already.
    Pod(Box<Pod>),
    /// A stored template by its hash, or `None` if the store does not have it.
    Template(String, Option<String>),
    /// The result of a verification of the head.
    Head(ObservedHead),
    /// Ids of the calls that hold the run.
    CallsToSettle(Vec<String>),
    /// How far the run's fork is.
    Fork(ForkProgress),
    /// The run does not go back one turn.
    StepBackRefused,
    /// A pod of another owner has the name.
    NameTaken(NameHolder),
    /// The AgentApproval of this name, or `None` if there is none.
    Approval(String, Option<Box<AgentApproval>>),
    /// A wait that was read from the store, or `None` if the run never had it.
    Wait(WaitKey, Option<KnownWait>),
    /// Whether the admission policies are in place now.
    Policies(PolicyState),
    /// Who must not decide alone.
    FourEyes(FourEyes),
    /// The API server refused a request for an approval. Holds the error.
    ApprovalFailed(String),
    /// The API server did not create the pod.
    PodNotCreated(PodCreateError),
    /// The quota of the run's namespace has no room for the pod.
    QuotaExceeded(NamespaceQuota),
}

impl Observed {
    /// Updates the observation with the result of an effect, for the next decision.
    pub fn apply(&mut self, result: EffectResult) {
        match result {
            EffectResult::Row(row) => {
                let same = |old: &RunRecord| old.attempt.number == row.attempt.number;
                if !matches!(&self.store, ObservedStore::Found(old) if same(old)) {
                    self.node = None;
                    self.pod_create_error = None;
                    self.name_taken = None;
                }
                if let Some(approvals) = &mut self.approvals {
                    approvals.forget_closed(&row);
                }
                self.store = ObservedStore::Found(row);
            }
            EffectResult::Prior(prior) => self.store = ObservedStore::Prior(prior),
            EffectResult::Pod(pod) => {
                // The nonce was drawn after the row was read.
                if let ObservedStore::Found(row) = &mut self.store
                    && row.attempt.pod_nonce.as_deref() == Some("")
                {
                    row.attempt.pod_nonce = pod::nonce(&pod).map(str::to_owned);
                }
                let mut seen = ObservedPod::of(*pod);
                if let Some(known) = self.pods.iter().position(|it| it.uid() == seen.uid()) {
                    seen.disrupted_while_running |= self.pods[known].disrupted_while_running;
                    self.pods.remove(known);
                }
                self.pods.push(seen);
                self.pod_create_error = None;
            }
            EffectResult::Template(revision, document) => {
                self.templates.insert(revision, document);
            }
            EffectResult::Head(head) => self.head = Some(head),
            EffectResult::Fork(progress) => self.fork = Some(progress),
            EffectResult::StepBackRefused => self.step_back_refused = true,
            EffectResult::CallsToSettle(calls) => self.calls_to_settle = Some(calls),
            EffectResult::QuotaExceeded(quota) => self.quota = Some(quota),
            EffectResult::Approval(name, object) => {
                // The row was read before the object.
                let at = match &self.store {
                    ObservedStore::Found(row) => Some(row.now),
                    _ => None,
                };
                if let Some(approvals) = &mut self.approvals {
                    approvals.replace(&name, object.map(|it| *it), at);
                }
            }
            EffectResult::Wait(key, wait) => {
                if let Some(approvals) = &mut self.approvals {
                    approvals.waits.insert(key, wait);
                }
            }
            EffectResult::Policies(state) => {
                if let Some(approvals) = &mut self.approvals {
                    (approvals.policies, approvals.policies_live) = (state, true);
                }
            }
            EffectResult::FourEyes(facts) => {
                if let Some(approvals) = &mut self.approvals {
                    approvals.four_eyes = Some(facts);
                }
            }
            EffectResult::ApprovalFailed(error) => {
                if let Some(approvals) = &mut self.approvals {
                    approvals.failed = Some(error);
                }
            }
            EffectResult::NameTaken(holder) => self.name_taken = Some(holder),
            EffectResult::PodNotCreated(error) => self.pod_create_error = Some(error),
        }
    }

    /// Whether the recorded pod was not found, so that the operator must observe again. Another operator may have
    /// recorded the pod after this one listed the pods. Only a live request proves that the pod is gone.
    pub fn must_observe_again(&self) -> bool {
        let ObservedStore::Found(row) = &self.store else { return false };
        let (AttemptState::Created | AttemptState::Attached) = row.attempt.state else { return false };
        let pod = row.attempt.pod_uid.as_deref().and_then(|uid| self.pod(uid));
        pod.is_none_or(|seen| seen.gone)
    }

    /// The pod with this UID.
    pub fn pod(&self, uid: &str) -> Option<&ObservedPod> {
        self.pods.iter().find(|seen| seen.uid() == uid)
    }

    /// The pods whose controller is this AgentRun, in its own namespace. Labels are not sufficient, because anybody can
    /// set them. Neither are owner references of pods in other namespaces.
    pub fn own_pods<'a>(&'a self, run: &'a AgentRun) -> impl Iterator<Item = &'a ObservedPod> {
        self.pods.iter().filter(|seen| seen.is_controlled_by(run))
    }

    /// The run's agent, if it exists and can be parsed.
    pub fn agent(&self) -> Option<&Agent> {
        match &self.agent {
            ObservedAgent::Found { agent, .. } => Some(agent),
            ObservedAgent::NotFound | ObservedAgent::Malformed(_) => None,
        }
    }
}

impl ObservedPod {
    /// A pod that exists.
    pub fn of(pod: Pod) -> Self {
        let disrupted_while_running = pod::is_disrupted(&pod) && !pod::worker_has_ended(&pod);
        Self { pod, gone: false, watched: true, disrupted_while_running, volume_problem: None }
    }

    /// UID of the pod.
    pub fn uid(&self) -> &str {
        self.pod.metadata.uid.as_deref().unwrap_or_default()
    }

    /// Name of the pod.
    pub fn name(&self) -> &str {
        self.pod.metadata.name.as_deref().unwrap_or_default()
    }

    /// Number of the pod's attempt, from its label.
    pub fn attempt(&self) -> Option<i32> {
        let labels = self.pod.metadata.labels.as_ref()?;
        labels.get(names::LABEL_ATTEMPT)?.parse().ok()
    }

    fn is_controlled_by(&self, run: &AgentRun) -> bool {
        let uid = run.metadata.uid.as_deref().unwrap_or_default();
        let owners = self.pod.metadata.owner_references.as_deref().unwrap_or_default();
        self.pod.metadata.namespace == run.metadata.namespace
            && owners.iter().any(|owner| owner.controller == Some(true) && owner.uid == uid)
    }
}
