//! Every name that Dal Segno writes to objects of the API server.

/// Prefix of the labels and annotations that are reserved for the operator. The operator drops a template's own ones.
pub const PREFIX: &str = "dalsegno.dev/";

/// Field manager of every write.
pub const FIELD_MANAGER: &str = "dalsegno";

/// Finalizer of an AgentRun. The operator fences the run's row before the API server removes the object.
pub const FINALIZER: &str = "dalsegno.dev/fence";

/// Finalizer of the pod of an agent with `checkpointing: External`. The pod stays until the operator has recorded that its
/// worker has ended.
pub const POD_FINALIZER: &str = "dalsegno.dev/confirm-end";

/// Name of the worker container in a template with several containers. The only container of a template may have any
/// name.
pub const WORKER_CONTAINER: &str = "agent";

/// Pod label: name of the AgentRun.
pub const LABEL_RUN: &str = "dalsegno.dev/run";

/// Pod label: number of the attempt.
pub const LABEL_ATTEMPT: &str = "dalsegno.dev/attempt";

/// Pod label: UID of the AgentRun.
pub const LABEL_RUN_UID: &str = "dalsegno.dev/run-uid";

/// Label of every object that the operator creates. Its value is [`MANAGED_BY`].
pub const LABEL_MANAGED_BY: &str = "app.kubernetes.io/managed-by";

/// Value of [`LABEL_MANAGED_BY`].
pub const MANAGED_BY: &str = "dalsegno";

/// Pod annotation: the run's inline input. The downward API mounts it as a file for the worker.
pub const ANNOTATION_INPUT: &str = "dalsegno.dev/input";

/// Pod annotation: the CAs that verify the gateway's certificate, in PEM. The downward API mounts it as a file for the
/// worker, which follows each change.
pub const ANNOTATION_CA: &str = "dalsegno.dev/ca";

/// Pod annotation: the ids of the CAs in [`ANNOTATION_CA`], separated by commas. Absent if the pod was started without TLS.
pub const ANNOTATION_CA_IDS: &str = "dalsegno.dev/ca-ids";

/// Pod annotation: when [`ANNOTATION_CA`] was last changed, in RFC 3339. Absent if the pod was created with it.
pub const ANNOTATION_CA_SINCE: &str = "dalsegno.dev/ca-since";

/// Name of the gateway's Service.
pub const GATEWAY_SERVICE: &str = "dalsegno-gateway";

/// Name of the Service of the aggregated API.
pub const AGGREGATED_SERVICE: &str = "dalsegno-aggregated";

/// Pod annotation: name of the worker's container. Admission may add containers to a pod, so the pod itself does not show
/// which container was the only one of its template.
pub const ANNOTATION_WORKER: &str = "dalsegno.dev/worker-container";

/// AgentRun annotation: who last changed `spec.operatingMode`, as `generation user`. The API server or the user writes
/// it, and a policy refuses a forged one.
pub const ANNOTATION_OPERATING_MODE_BY: &str = "dalsegno.dev/operating-mode-by";

/// AgentRun annotation: who last changed `spec.recovery.resetGeneration`, as `generation user`.
pub const ANNOTATION_RESET_GENERATION_BY: &str = "dalsegno.dev/reset-generation-by";

/// AgentRun annotation: who last changed `spec.rewind`, as `generation user`.
pub const ANNOTATION_REWIND_BY: &str = "dalsegno.dev/rewind-by";

/// Annotation of an AgentDefinition, or of an AgentRun with an inline agent: who last changed the agent, as
/// `generation user`.
pub const ANNOTATION_SPEC_BY: &str = "dalsegno.dev/spec-by";

/// AgentRun annotation: the user who created it.
pub const ANNOTATION_CREATED_BY: &str = "dalsegno.dev/created-by";

/// AgentRun annotation: why somebody cancels the run, resets its budget or deletes it. The audit records the value at
/// the time of that change.
pub const ANNOTATION_REASON: &str = "dalsegno.dev/reason";

/// Pod annotation: hash of the template that the pod was created from.
pub const ANNOTATION_REVISION: &str = "dalsegno.dev/revision";

/// Annotation of a pod: the nonce of its attempt. Only a pod that carries it is the attempt's.
pub const ANNOTATION_NONCE: &str = "dalsegno.dev/pod-nonce";

/// Pod annotation: the agent version that the pod's template declares.
pub const ANNOTATION_AGENT_VERSION: &str = "dalsegno.dev/agent-version";

/// Pod annotation: the turn and the event position that the attempt resumes from, as `turn/position`.
pub const ANNOTATION_TURN: &str = "dalsegno.dev/turn";

/// Pod annotation: the revision that the pod is pinned to. Absent if the pod uses the current template.
pub const ANNOTATION_PINNED: &str = "dalsegno.dev/pinned";

/// Pod annotation of the Cluster Autoscaler: it may evict the pod to remove a node. Without it no node with a worker
/// would be removed, because the autoscaler does not know the pod's controller. A template may set it to `false`.
pub const ANNOTATION_SAFE_TO_EVICT: &str = "cluster-autoscaler.kubernetes.io/safe-to-evict";

/// Pod annotation: until when the pod excludes a node on which earlier attempts failed, in RFC 3339. Absent if it
/// excludes none.
pub const ANNOTATION_AVOIDS_UNTIL: &str = "dalsegno.dev/avoids-until";

/// Value of [`crate::AgentRunStatus::agent`] for a run with an inline `agent`.
pub const INLINE_AGENT: &str = "<inline>";

/// API group of what a run has committed: `agentruns/state`, `agentruns/events`, `agentruns/messages` and so on, one
/// subresource for each document of the gateway. RBAC names them; the gateway serves them.
pub const SUBRESOURCES_GROUP: &str = "subresources.dalsegno.dev";
