//! `AgentRun`: one durable run of an agent.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{CustomResource, KubeSchema, Resource};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::agentdefinition::Agent;
use crate::policies::{
    Checkpoints, Liveness, OnPriorRun, Recovery, Retention, RunLimits, Suspend, VersionPolicy,
};
use crate::schema;
use crate::status::AgentRunStatus;

/// One durable run of an agent.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "dalsegno.dev",
    version = "v1alpha1",
    kind = "AgentRun",
    namespaced,
    shortname = "arun",
    category = "dalsegno",
    doc = "An AgentRun is one durable run of an agent. Its worker runs in a pod. If the pod dies, the operator fences the \
           dead attempt off and starts the next attempt, which resumes at the turn after the latest checkpoint. A field \
           that an AgentRun leaves unset has the AgentDefinition's default, or else the built-in value.",
    status = "AgentRunStatus",
    derive = "PartialEq",
    selectable = ".status.summary",
    validation = Rule::new("self.metadata.name.size() <= 52 && !self.metadata.name.contains('.')")
        .message("use a DNS label of at most 52 characters, without dots: the names of the run's pods are derived from it")
        .field_path(".metadata.name"),
    printcolumn(
        name = "Summary",
        type_ = "string",
        json_path = ".status.summary",
        description = "State of the run."
    ),
    printcolumn(
        name = "Reason",
        type_ = "string",
        json_path = ".status.reason",
        description = "Why, in one word. The conditions explain it."
    ),
    printcolumn(
        name = "Turn",
        type_ = "integer",
        json_path = ".status.checkpoint.turn",
        description = "Turn of the latest checkpoint."
    ),
    printcolumn(
        name = "Recoveries",
        type_ = "integer",
        json_path = ".status.recovery.recoveryAttempts",
        description = "Charged crashes."
    ),
    printcolumn(
        name = "Disruptions",
        type_ = "integer",
        json_path = ".status.recovery.disruptions",
        description = "Ends of attempts that the agent did not cause."
    ),
    printcolumn(
        name = "Agent",
        type_ = "string",
        json_path = ".status.agent",
        description = "The AgentDefinition, or <inline>."
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(
        name = "Attempt",
        type_ = "integer",
        json_path = ".status.attempt.number",
        priority = 1,
        description = "Number of the current attempt."
    ),
    printcolumn(
        name = "Node",
        type_ = "string",
        json_path = ".status.attempt.nodeName",
        priority = 1,
        description = "Node of the current attempt."
    ),
    printcolumn(
        name = "Version",
        type_ = "string",
        json_path = ".status.attempt.agentVersion",
        priority = 1,
        description = "Agent version of the current attempt."
    ),
    printcolumn(
        name = "Pod",
        type_ = "string",
        json_path = ".status.attempt.podName",
        priority = 1,
        description = "Pod of the current attempt."
    )
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("has(self.agentRef) != has(self.agent)")
        .message("set exactly one of agentRef (the name of an AgentDefinition) and agent (an inline definition)"),
    validation = Rule::new(
        "has(self.agentRef) == has(oldSelf.agentRef) && (!has(self.agentRef) || self.agentRef == oldSelf.agentRef)"
    )
        .message("agentRef cannot change: create a new AgentRun")
        .field_path(".agentRef"),
    // CEL has no type for `input`, so the rule needs `dyn`. The rule can check whether `input` is set, but not whether
    // it changed, because the API server stores `1.0` as `1`. A ValidatingAdmissionPolicy of the chart checks that.
    validation = Rule::new("!(has(dyn(self).input) && has(self.inputFrom))")
        .message("set at most one of input and inputFrom"),
    validation = Rule::new(
        "has(self.inputFrom) == has(oldSelf.inputFrom) && (!has(self.inputFrom) || self.inputFrom == oldSelf.inputFrom)"
    )
        .message("inputFrom cannot change: create a new AgentRun")
        .field_path(".inputFrom"),
    validation = Rule::new(
        "has(self.resumeFrom) == has(oldSelf.resumeFrom) && (!has(self.resumeFrom) || \
         (has(self.resumeFrom.runName) == has(oldSelf.resumeFrom.runName) \
         && (!has(self.resumeFrom.runName) || self.resumeFrom.runName == oldSelf.resumeFrom.runName) \
         && has(self.resumeFrom.runUID) == has(oldSelf.resumeFrom.runUID) \
         && (!has(self.resumeFrom.runUID) || self.resumeFrom.runUID == oldSelf.resumeFrom.runUID) \
         && has(self.resumeFrom.turn) == has(oldSelf.resumeFrom.turn) \
         && (!has(self.resumeFrom.turn) || self.resumeFrom.turn == oldSelf.resumeFrom.turn)))"
    )
        .message("resumeFrom cannot change, except for acceptEffects: create a new AgentRun")
        .field_path(".resumeFrom"),
    validation = Rule::new(
        "!has(oldSelf.operatingMode) || oldSelf.operatingMode != 'Cancelled' || \
         (has(self.operatingMode) && self.operatingMode == 'Cancelled')"
    )
        .message("a cancelled run stays cancelled: create a new AgentRun")
        .field_path(".operatingMode"),
    validation = Rule::new(
        "!has(oldSelf.fourEyes) || !oldSelf.fourEyes || (has(self.fourEyes) && self.fourEyes)"
    )
        .message("fourEyes cannot be taken back: create a new AgentRun")
        .field_path(".fourEyes")
)]
pub struct AgentRunSpec {
    /// The AgentDefinition to run, in the same namespace. Set exactly one of `agentRef` and `agent`. Immutable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_ref: Option<AgentRef>,

    /// An inline agent, for a run without an AgentDefinition. Set exactly one of `agentRef` and `agent`. A change
    /// applies from the next attempt on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<Agent>,

    /// The run's input: any JSON value of at most 32 KiB and 64 nesting levels. The worker reads it from a file. The
    /// API server keeps the value but not its spelling: the order of keys may change, and `1.0` becomes `1`. Set at
    /// most one of `input` and `inputFrom`. With neither, the input is `null`. Immutable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::any_json")]
    pub input: Option<Value>,

    /// The source of the input: one key of a Secret or a ConfigMap in the same namespace. The kubelet mounts it, and
    /// the operator never reads it. The SDKs parse the input as JSON. An agent that reads the file itself may use any
    /// format. Immutable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input_from: Option<InputSource>,

    /// The desired state of the run: `Running`, `Suspended` or `Cancelled`. Unset: `Running`. A suspended run has no pod
    /// and goes on once this field is removed. `Cancelled` is final. The worker learns of either at its next commit or
    /// heartbeat, and the operator stops a worker that does not acknowledge it.
    /// Leave the field unset in manifests that are applied repeatedly, so that they do not conflict with a person's
    /// decision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operating_mode: Option<OperatingMode>,

    /// Goes back to the end of an earlier turn of this run, once for each `generation`. Later turns are undone: the run
    /// goes on at the turn after `toTurn`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rewind: Option<Rewind>,

    /// Begins this run as a fork: with the state and the records of another run of this namespace, as they were after
    /// one of its turns. The other run is not changed. Immutable, except for `acceptEffects`. The user who creates the
    /// run must be allowed to `get` state and records of the other run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resume_from: Option<ResumeFrom>,

    /// What happens if another agent version wrote the latest checkpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version_policy: Option<VersionPolicy>,

    /// Limits and delays of recovery, and what happens when recovery is exhausted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recovery: Option<Recovery>,

    /// How long a worker may send no heartbeat or commit nothing before it is replaced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub liveness: Option<Liveness>,

    /// How a suspend stops the worker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspend: Option<Suspend>,

    /// Limits over all attempts. A run that reaches one is held until the limit is raised.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<RunLimits>,
    /// Whether the approvals of this run need four eyes: nobody may decide who created the run, last changed its agent or
    /// sent it a message, and if the creator or the author of the agent is not a proven person, as with GitOps, two people
    /// must decide. Once true, it stays true. Built-in: false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub four_eyes: Option<bool>,

    /// How the run's checkpoints are stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoints: Option<Checkpoints>,

    /// How long pods, payloads and the AgentRun are kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retention: Option<Retention>,

    /// What happens if the store holds an earlier run of the same namespace and name that nobody deleted on purpose,
    /// for example after a restore of the cluster, or after Git created the object again. `Hold` (built-in): the run is
    /// held, and its message describes the earlier run. `Adopt`: this object continues the earlier run, if the
    /// namespace has the same UID. `Ignore`: the earlier run is marked as abandoned, and this run starts at turn 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_prior_run: Option<OnPriorRun>,
}

impl AgentRun {
    /// The owner reference for every object that is created for this run.
    pub fn owner_reference(&self) -> OwnerReference {
        OwnerReference {
            api_version: Self::api_version(&()).into_owned(),
            kind: Self::kind(&()).into_owned(),
            name: self.metadata.name.clone().unwrap_or_default(),
            uid: self.metadata.uid.clone().unwrap_or_default(),
            controller: Some(true),
            // A pod that is stuck on a dead node must not block the deletion of its run.
            block_owner_deletion: None,
        }
    }
}

/// A reference to an AgentDefinition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AgentRef {
    /// Name of the AgentDefinition, in the run's namespace.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
}

/// A rewind of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Rewind {
    /// Raise this number above `status.rewind.observedGeneration` to rewind the run. Each number is obeyed or refused
    /// once. A lower number has no effect, and neither has the number that was set when the run was created.
    #[schemars(range(min = 0, max = 9_007_199_254_740_991_i64))]
    pub generation: i64,

    /// The turn to go back to. Its result becomes the latest checkpoint.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub to_turn: i32,

    /// Content hash of a checkpoint, as in `status.checkpoint.contentHash`. The rewind is refused unless it is the
    /// latest checkpoint or an earlier one of it: then somebody else has rewound the run meanwhile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub if_head: Option<String>,

    /// Ids of the tool calls that may have changed something in the turns that are undone. The rewind is refused while
    /// one of them is missing, and `status.rewind.effects` lists them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1_024), inner(length(min = 1, max = 128)), extend("x-kubernetes-list-type" = "set"))]
    pub accept_effects: Vec<String>,
}

/// What a fork begins with. Set exactly one of `runName` and `runUID`.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("has(self.runName) != has(self.runUID)").message("set exactly one of runName and runUID")
)]
pub struct ResumeFrom {
    /// Name of the AgentRun to fork, in the same namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 52))]
    pub run_name: Option<String>,

    /// UID of the AgentRun to fork. It may have been deleted; its data must still be in the store.
    #[serde(default, rename = "runUID", skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64))]
    pub run_uid: Option<String>,

    /// The turn after which the fork begins. Unset: the last one that the other run has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub turn: Option<i32>,

    /// Ids of the tool calls that may have changed something in later turns of the other run: the fork makes these
    /// turns anew, and its calls have keys of their own. The fork is held while one of them is missing, and its message
    /// lists them. They may be added later.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1_024), inner(length(min = 1, max = 128)), extend("x-kubernetes-list-type" = "set"))]
    pub accept_effects: Vec<String>,
}

/// The source of an input. Set exactly one field.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("has(self.secretKeyRef) != has(self.configMapKeyRef)")
        .message("set exactly one of secretKeyRef and configMapKeyRef")
)]
pub struct InputSource {
    /// One key of a Secret. The user who creates the run must be allowed to `get` that Secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_key_ref: Option<KeyRef>,

    /// One key of a ConfigMap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_map_key_ref: Option<KeyRef>,
}

/// One key of an object in the run's namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct KeyRef {
    /// Name of the object.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,

    /// Key in the object's data.
    #[schemars(length(min = 1, max = 253))]
    pub key: String,
}

string_enum! {
    /// The desired state of a run.
    pub enum OperatingMode {
        /// The run runs. The same as unset.
        Running,
        /// The run stops at its checkpoint and has no pod.
        Suspended,
        /// The run ends. This is final.
        Cancelled,
    }
}
