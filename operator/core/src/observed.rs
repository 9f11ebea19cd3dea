//! What was seen of a run, at one moment.

use dalsegno_crds::{Agent, AgentRun, Reason, RunDefaults, names};
use dalsegno_model::checkpoint::Checkpoint;
use dalsegno_model::{AttemptState, PriorRun, RunRecord};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use uuid::Uuid;

use crate::pod;
use crate::version::Templates;

/// What was seen of a run. Written by `observe`, and by [`Observed::learn`] as effects answer.
#[derive(Clone, Debug)]
pub struct Observed {
    /// What the store said.
    pub store: StoreSight,
    /// What the run's agent is.
    pub agent: AgentSight,
    /// Every pod of its namespace that bears this AgentRun's UID, also deleted ones whose end is not recorded.
    pub pods: Vec<PodSight>,
    /// The node of the current attempt, where it has one.
    pub node: Option<NodeSight>,
    /// Stored templates that were read.
    pub templates: Templates,
    /// What was found when the head was last looked at.
    pub head: Option<HeadSight>,
    /// The API server's last refusal to create the current attempt's pod.
    pub refusal: Option<Refusal>,
    /// A pod of somebody else that holds the current attempt's name.
    pub name_taken: bool,
    /// Where workers reach the gateway, without a slash at the end.
    pub gateway_url: String,
}

/// What the store said: found, not found, or unknown.
#[derive(Clone, Debug)]
pub enum StoreSight {
    /// It could not be asked, or did not take what was to be written. Nothing may be concluded.
    Unknown(String),
    /// It has no row for this object.
    NotFound {
        /// The store's id.
        store_id: Uuid,
    },
    /// Another object's run of the same name stands there.
    Prior(PriorRun),
    /// The run's row.
    Found(Box<RunRecord>),
}

/// The definition, or the inline agent.
#[derive(Clone, Debug)]
pub enum AgentSight {
    /// It is there.
    Found {
        /// What the agent is.
        agent: Box<Agent>,
        /// What the definition says where the run says nothing.
        defaults: Box<RunDefaults>,
    },
    /// `agentRef` names nothing.
    NotFound,
    /// It is there and cannot be read; why.
    Malformed(String),
}

/// One pod, as last seen.
#[derive(Clone, Debug)]
pub struct PodSight {
    /// Its last known state.
    pub pod: Pod,
    /// It is gone: a live GET by name found nothing, or another UID.
    pub gone: bool,
    /// Its deletion or disruption was first seen while its worker still ran.
    pub disrupted_while_running: bool,
}

/// A node, as last seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeSight {
    /// The API server knows it, and it is Ready.
    pub ready: bool,
    /// Since when it is so. That it is not Ready counts only while the API server answered us.
    pub since: Timestamp,
}

/// What was found when a run's head was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeadSight {
    /// Under which epoch: every attempt has its own, and so has every rewind.
    pub epoch: i64,
    /// After which grant of a budget: a person who mended the store grants one to have it looked at again.
    pub reset_generation: i64,
    /// What was found.
    pub found: Checkpoint,
}

impl HeadSight {
    /// What was just found of this row's head.
    pub fn of(row: &RunRecord, found: Checkpoint) -> Self {
        Self { epoch: row.epoch, reset_generation: row.observed_reset_generation, found }
    }

    /// Whether it still says something of this row.
    pub fn is_of(&self, row: &RunRecord) -> bool {
        (self.epoch, self.reset_generation) == (row.epoch, row.observed_reset_generation)
    }
}

/// The API server did not create a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// HTTP status of the answer.
    pub code: u16,
    /// The answer's message.
    pub message: String,
    /// How many times in a row, for this attempt.
    pub times: u32,
    /// When it last did.
    pub at: Timestamp,
    /// What was refused: the template has changed since if its hash is another.
    pub revision: String,
}

impl Refusal {
    /// Why the API server refuses pods in the namespace, if this answer says nothing of the pod itself.
    pub fn of_namespace(code: u16, message: &str) -> Option<Reason> {
        match code {
            403 if message.contains("exceeded quota") => Some(Reason::QuotaExceeded),
            403 if message.contains("because it is being terminated") => Some(Reason::NamespaceTerminating),
            _ => None,
        }
    }
}

/// What an effect taught.
#[derive(Clone, Debug)]
pub enum Fact {
    /// The row as it stands now.
    Row(Box<RunRecord>),
    /// Another object's run stands in the way.
    Prior(PriorRun),
    /// The pod of the current attempt, just created or found under its name.
    Pod(Box<Pod>),
    /// A stored template, by its hash; `None`: the store does not have it.
    Template(String, Option<String>),
    /// Whether the head can be gone on from.
    Head(HeadSight),
    /// A pod of somebody else holds the name.
    NameTaken,
    /// The API server refused the pod.
    Refused(Refusal),
}

impl Observed {
    /// Takes in what an effect taught, so that the next decision knows it.
    pub fn learn(&mut self, fact: Fact) {
        match fact {
            Fact::Row(row) => {
                let same = |old: &RunRecord| old.attempt.number == row.attempt.number;
                if !matches!(&self.store, StoreSight::Found(old) if same(old)) {
                    self.node = None;
                    self.refusal = None;
                    self.name_taken = false;
                }
                self.store = StoreSight::Found(row);
            }
            Fact::Prior(prior) => self.store = StoreSight::Prior(prior),
            Fact::Pod(pod) => {
                let mut seen = PodSight::of(*pod);
                if let Some(known) = self.pods.iter().position(|it| it.uid() == seen.uid()) {
                    seen.disrupted_while_running |= self.pods[known].disrupted_while_running;
                    self.pods.remove(known);
                }
                self.pods.push(seen);
                self.refusal = None;
            }
            Fact::Template(revision, document) => {
                self.templates.insert(revision, document);
            }
            Fact::Head(seen) => self.head = Some(seen),
            Fact::NameTaken => self.name_taken = true,
            Fact::Refused(refusal) => self.refusal = Some(refusal),
        }
    }

    /// Whether a row was learned whose pod was not looked for: another operator may have recorded it meanwhile, and
    /// that it is gone must be proved first.
    pub fn must_look_again(&self) -> bool {
        let StoreSight::Found(row) = &self.store else { return false };
        let (AttemptState::Created | AttemptState::Attached) = row.attempt.state else { return false };
        let pod = row.attempt.pod_uid.as_deref().and_then(|uid| self.pod(uid));
        pod.is_none_or(|seen| seen.gone)
    }

    /// The pod with this UID.
    pub fn pod(&self, uid: &str) -> Option<&PodSight> {
        self.pods.iter().find(|seen| seen.uid() == uid)
    }

    /// The pods that this AgentRun controls. Anybody can put our labels on a pod of theirs, and name any owner in it: an
    /// owner in another namespace is none.
    pub fn own_pods<'a>(&'a self, run: &'a AgentRun) -> impl Iterator<Item = &'a PodSight> {
        self.pods.iter().filter(|seen| seen.is_controlled_by(run))
    }

    /// The definition, or the inline agent, if it is there.
    pub fn agent(&self) -> Option<&Agent> {
        match &self.agent {
            AgentSight::Found { agent, .. } => Some(agent),
            AgentSight::NotFound | AgentSight::Malformed(_) => None,
        }
    }
}

impl PodSight {
    /// A pod as it was just seen.
    pub fn of(pod: Pod) -> Self {
        let disrupted_while_running = pod::is_disrupted(&pod) && !pod::has_ended(&pod);
        Self { pod, gone: false, disrupted_while_running }
    }

    /// Its UID.
    pub fn uid(&self) -> &str {
        self.pod.metadata.uid.as_deref().unwrap_or_default()
    }

    /// Its name.
    pub fn name(&self) -> &str {
        self.pod.metadata.name.as_deref().unwrap_or_default()
    }

    /// The number of the attempt it was made for, by its label.
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
