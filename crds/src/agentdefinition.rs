//! `AgentDefinition`: what an agent is.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Liveness, OnPriorRun, PodTemplate, Recovery, Retention, VersionPolicy, schema};

/// What an agent is: the pod it runs in, its version, and what its runs leave unset.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "dalsegno.dev",
    version = "v1alpha1",
    kind = "AgentDefinition",
    namespaced,
    shortname = "adef",
    category = "dalsegno",
    doc = "An AgentDefinition says what an agent is: the pod it runs in, its version, and the values of all that its \
           runs leave unset. AgentRuns name it in spec.agentRef. Editing it never touches a running pod: a run takes \
           the change up with its next attempt, as far as its version policy lets it.",
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
        description = "The declared version of the agent."
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct AgentDefinitionSpec {
    /// The agent itself.
    #[serde(flatten)]
    pub agent: Agent,

    /// What a run of this agent gets where the AgentRun leaves the field unset. A field unset here too has its built-in
    /// value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(
        validation = Rule::new("!has(self.recovery) || !has(self.recovery.resetGeneration)")
            .message("resetGeneration belongs to one run: remove it here and set it in the AgentRun")
            .field_path(".recovery.resetGeneration")
    )]
    pub defaults: Option<RunDefaults>,
}

/// The pod that an agent runs in, and the version of the agent in it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Agent {
    /// The pod that each attempt runs in: a pod template as in a Deployment. Its worker, the container that talks to
    /// the gateway, is the one named `agent`, or the only one. The operator adds its own labels, environment, token and
    /// input, and drops labels and annotations of the template that begin with `dalsegno.dev/`. All other fields are
    /// checked by the API server, and the condition Ready says what it found.
    pub template: PodTemplate,

    /// Version of the agent, in any scheme, such as `1.4.2`. A checkpoint keeps the version that wrote it, and a run is
    /// only resumed by the same version, by one that lists it in `compatibleWith`, or as the run's version policy
    /// allows. Unset: the sha256 digest of the worker's image as it was pulled is the version, so that every new image
    /// is another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 128))]
    pub agent_version: Option<String>,

    /// Earlier versions whose checkpoints this one can resume, each as it stands in the run's
    /// `status.checkpoint.agentVersion`. Adding a version here moves the runs that hold its checkpoints to this template
    /// at their next attempt. Unset: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(min = 1, max = 128)), extend("x-kubernetes-list-type" = "set"))]
    pub compatible_with: Vec<String>,
}

/// Values for what a run leaves unset.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RunDefaults {
    /// What happens when the latest checkpoint was written by another version of the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version_policy: Option<VersionPolicy>,

    /// How often and how patiently runs are recovered, and what happens after that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recovery: Option<Recovery>,

    /// How long workers may be silent or without a result before they are replaced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub liveness: Option<Liveness>,

    /// What is kept of runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retention: Option<Retention>,

    /// What happens when the store holds an earlier run of the same namespace and name that was not deleted on purpose:
    /// `Hold` (built-in), `Adopt` or `Ignore`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_prior_run: Option<OnPriorRun>,
}

/// What the operator found out about a definition.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AgentDefinitionStatus {
    /// `Ready` is True while the API server accepts the template's pod, as a dry run showed. It is tried again by itself: a
    /// minute after it changed, and more and more slowly, up to five minutes, while it stays as it is.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,

    /// Generation of the spec that this status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub observed_generation: Option<i64>,
}
