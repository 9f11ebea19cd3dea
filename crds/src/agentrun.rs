//! `AgentRun`: one durable run.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{CustomResource, KubeSchema, Resource};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{Agent, AgentRunStatus, Liveness, Recovery, Retention, VersionPolicy, schema};

/// One durable run of an agent.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "dalsegno.dev",
    version = "v1alpha1",
    kind = "AgentRun",
    namespaced,
    shortname = "arun",
    category = "dalsegno",
    doc = "An AgentRun is one durable run of an agent. Its worker lives in a pod; when the pod dies, the operator fences \
           it off and starts the next attempt, which resumes at the turn after the latest checkpoint. What an AgentRun \
           leaves unset is taken from its AgentDefinition's defaults, then from the built-in value.",
    status = "AgentRunStatus",
    derive = "PartialEq",
    selectable = ".status.summary",
    validation = Rule::new("self.metadata.name.size() <= 52 && !self.metadata.name.contains('.')")
        .message("use a DNS label of at most 52 characters, without dots: the names of the run's pods are made from it")
        .field_path(".metadata.name"),
    printcolumn(
        name = "Summary",
        type_ = "string",
        json_path = ".status.summary",
        description = "Where the run stands."
    ),
    printcolumn(
        name = "Reason",
        type_ = "string",
        json_path = ".status.reason",
        description = "Why, in one word; the conditions say it in a sentence."
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
        description = "Crashes that were charged."
    ),
    printcolumn(
        name = "Disruptions",
        type_ = "integer",
        json_path = ".status.recovery.disruptions",
        description = "Deaths that the agent did not cause."
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
        description = "Version of the agent in the current attempt."
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
        .message("set exactly one of agentRef, which names an AgentDefinition, and agent, which is written out here"),
    validation = Rule::new(
        "has(self.agentRef) == has(oldSelf.agentRef) && (!has(self.agentRef) || self.agentRef == oldSelf.agentRef)"
    )
        .message("agentRef cannot change: create a new AgentRun")
        .field_path(".agentRef"),
    // CEL has no type for `input`, so that `dyn` is needed to see it. It can tell whether it is there, but not whether
    // it is the same: `1.0` is stored as `1`. A ValidatingAdmissionPolicy of the chart can.
    validation = Rule::new("!(has(dyn(self).input) && has(self.inputFrom))")
        .message("set at most one of input and inputFrom"),
    validation = Rule::new(
        "has(self.inputFrom) == has(oldSelf.inputFrom) && (!has(self.inputFrom) || self.inputFrom == oldSelf.inputFrom)"
    )
        .message("inputFrom cannot change: create a new AgentRun")
        .field_path(".inputFrom"),
    validation = Rule::new(
        "!has(oldSelf.operatingMode) || oldSelf.operatingMode != 'Cancelled' || \
         (has(self.operatingMode) && self.operatingMode == 'Cancelled')"
    )
        .message("a cancelled run stays cancelled: create a new AgentRun")
        .field_path(".operatingMode")
)]
pub struct AgentRunSpec {
    /// The AgentDefinition to run, in the same namespace. Exactly one of `agentRef` and `agent` is set. Immutable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_ref: Option<AgentRef>,

    /// An agent written out here, for a run that needs no AgentDefinition. Exactly one of `agentRef` and `agent` is set.
    /// A change reaches the run with its next attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<Agent>,

    /// What the agent is to do: any JSON of at most 32 KiB and 64 levels, which the worker reads from a file. The API
    /// server keeps the values and not the spelling: the order of keys may change, and `1.0` becomes `1`. At most one of
    /// `input` and `inputFrom` is set; with neither, the input is `null`. Immutable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::any_json")]
    pub input: Option<Value>,

    /// Where the input is read from: one key of a Secret or a ConfigMap of the same namespace, mounted by the kubelet;
    /// the operator never reads it. What the SDKs call a run's input must be JSON; an agent may also read the file itself,
    /// whatever it holds. Immutable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input_from: Option<InputSource>,

    /// What is wanted of the run: `Running` or `Cancelled`. Unset: Running. `Cancelled` is final: the worker is told at
    /// its next commit or heartbeat, and stopped if it does not heed it. Leave it unset in manifests that are applied again
    /// and again, so that they do not collide with a person's decision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operating_mode: Option<OperatingMode>,

    /// What happens when the latest checkpoint was written by another version of the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version_policy: Option<VersionPolicy>,

    /// How often and how patiently the run is recovered, and what happens after that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recovery: Option<Recovery>,

    /// How long a worker may be silent or without a result before it is replaced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub liveness: Option<Liveness>,

    /// What is kept of the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retention: Option<Retention>,

    /// What happens when the store holds an earlier run of the same namespace and name that was not deleted on purpose,
    /// as after a cluster was restored or Git created the object again. `Hold` (built-in): the run is held and says what
    /// it found. `Adopt`: the earlier run goes on under this object, if the namespace is the same one. `Ignore`: the
    /// earlier run is marked as abandoned, and this one begins at turn 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_prior_run: Option<OnPriorRun>,
}

impl AgentRun {
    /// The owner reference of everything that is made for this run.
    pub fn owner_reference(&self) -> OwnerReference {
        OwnerReference {
            api_version: Self::api_version(&()).into_owned(),
            kind: Self::kind(&()).into_owned(),
            name: self.metadata.name.clone().unwrap_or_default(),
            uid: self.metadata.uid.clone().unwrap_or_default(),
            controller: Some(true),
            // A pod that is stuck on a dead node must not hold its run.
            block_owner_deletion: None,
        }
    }
}

/// Names an AgentDefinition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AgentRef {
    /// Name of an AgentDefinition in the run's namespace.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
}

/// Where an input is read from. Exactly one member is set.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("has(self.secretKeyRef) != has(self.configMapKeyRef)")
        .message("set exactly one of secretKeyRef and configMapKeyRef")
)]
pub struct InputSource {
    /// One key of a Secret. Whoever creates the run must be allowed to `get` that Secret.
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

    /// Key in its data.
    #[schemars(length(min = 1, max = 253))]
    pub key: String,
}

words! {
    /// What is wanted of a run.
    pub enum OperatingMode {
        /// It runs; the same as unset.
        Running,
        /// It ends, for good.
        Cancelled,
    }
}

words! {
    /// What happens when the store holds an earlier run of the same namespace and name.
    pub enum OnPriorRun {
        /// Touch nothing; the run is held.
        Hold,
        /// Fence it and go on with it.
        Adopt,
        /// Mark it as abandoned and begin anew.
        Ignore,
    }
}
