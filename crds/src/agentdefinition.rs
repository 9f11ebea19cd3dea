//! `AgentDefinition`: the pod template, the version and the defaults of an agent.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::policies::{
    Checkpoints, Liveness, OnPriorRun, Recovery, Retention, RunLimits, Suspend, VersionPolicy,
};
use crate::schema;
use crate::template::PodTemplate;

/// An agent: its pod template, its version, and the defaults for its runs.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "dalsegno.dev",
    version = "v1alpha1",
    kind = "AgentDefinition",
    namespaced,
    shortname = "adef",
    category = "dalsegno",
    doc = "An AgentDefinition describes an agent: its pod template, its version, and the defaults for the fields that \
           its runs leave unset. AgentRuns refer to it in spec.agentRef. An edit never changes a pod whose worker has attached: it \
           applies from the next attempt of each run on, as far as the run's version policy allows.",
    status = "AgentDefinitionStatus",
    derive = "PartialEq",
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status",
        description = "Whether the API server accepts the template's pod."
    ),
    printcolumn(
        name = "Version",
        type_ = "string",
        json_path = ".spec.agentVersion",
        description = "The declared agent version."
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct AgentDefinitionSpec {
    /// The agent's pod template and version.
    #[serde(flatten)]
    pub agent: Agent,

    /// Number of this definition's runs that run at the same time. Further runs wait, the oldest starts first, and
    /// `status.queuePosition` of each says how many are before it. A run that has had a pod does not wait any more, and a
    /// held run does not count. Unset: unlimited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub max_concurrent_runs: Option<i32>,

    /// Values for the fields that an AgentRun leaves unset. A field that is unset here too has its built-in value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(
        validation = Rule::new("!has(self.recovery) || !has(self.recovery.resetGeneration)")
            .message("resetGeneration belongs to one run: remove it here, and set it in the AgentRun")
            .field_path(".recovery.resetGeneration")
    )]
    pub defaults: Option<RunDefaults>,
}

/// The pod template of an agent, and the agent's version.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Agent {
    /// The template of each attempt's pod, as in a Deployment. The worker is the container that calls the gateway: the
    /// one named `agent`, or the only one. The operator adds its own labels, environment variables, token and input. It
    /// drops the template's labels and annotations that begin with `dalsegno.dev/`. The API server checks all other
    /// fields, and the condition Ready shows the result.
    pub template: PodTemplate,

    /// The agent's version, in any scheme, such as `1.4.2`. Each checkpoint records the version that wrote it. Only the
    /// same version may resume it, or a version that lists it in `compatibleWith`, or any version that the run's
    /// version policy allows. Unset: the version is the sha256 digest of the worker's pulled image, so every new image
    /// is a new version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 128))]
    pub agent_version: Option<String>,

    /// Earlier versions whose checkpoints this version can resume, each spelled as in the run's
    /// `status.checkpoint.agentVersion`. If you add a version here, the runs with checkpoints of that version use this
    /// template from their next attempt on. Unset: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(min = 1, max = 128)), extend("x-kubernetes-list-type" = "set"))]
    pub compatible_with: Vec<String>,

    /// Who keeps the checkpoints. `Gateway` (built-in): the worker attaches and commits each turn to the gateway.
    /// `External`: the agent's own engine does, such as DBOS. Then the worker never attaches and nothing fences it. Its
    /// exit with 0 ends the run, and any other end starts the next pod, but only once the kubelet has confirmed that the
    /// old one has ended. Immutable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpointing: Option<Checkpointing>,
}

impl Agent {
    /// Whether the agent's own engine keeps the checkpoints.
    pub fn is_external(&self) -> bool {
        self.checkpointing == Some(Checkpointing::External)
    }
}

string_enum! {
    /// Who keeps the checkpoints of an agent.
    pub enum Checkpointing {
        /// The worker commits them to the gateway.
        Gateway,
        /// The agent's own engine keeps them elsewhere.
        External,
    }
}

/// Values for the fields that a run leaves unset.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RunDefaults {
    /// What happens if another agent version wrote the latest checkpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version_policy: Option<VersionPolicy>,

    /// Limits and delays of recovery, and what happens when recovery is exhausted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recovery: Option<Recovery>,

    /// How long workers may send no heartbeat or commit nothing before they are replaced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub liveness: Option<Liveness>,

    /// How a suspend stops a worker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspend: Option<Suspend>,

    /// Limits over all attempts. A run that reaches one is held until the limit is raised.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<RunLimits>,
    /// Whether the approvals of the runs need four eyes. See the field of the same name in an AgentRun. Built-in: false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub four_eyes: Option<bool>,

    /// How checkpoints are stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoints: Option<Checkpoints>,

    /// How long pods, payloads and AgentRuns are kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retention: Option<Retention>,

    /// What happens if the store holds an earlier run of the same namespace and name that nobody deleted on purpose:
    /// `Hold` (built-in), `Adopt` or `Ignore`. See the field of the same name in an AgentRun.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_prior_run: Option<OnPriorRun>,
}

/// What the operator found out about a definition.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AgentDefinitionStatus {
    /// `Ready` is True while the API server accepts the template's pod in a dry run. The operator repeats the dry run
    /// one minute after a change. While nothing changes, it repeats it less and less often, at least every five
    /// minutes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,

    /// Generation of the spec that this status describes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub observed_generation: Option<i64>,
}
