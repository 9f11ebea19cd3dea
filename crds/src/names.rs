//! Every name that Dal Segno puts on an object of the API server.

/// Prefix of the labels and annotations that belong to the operator; those of a template are dropped.
pub const PREFIX: &str = "dalsegno.dev/";

/// Field manager of every write.
pub const FIELD_MANAGER: &str = "dalsegno";

/// Finalizer of an AgentRun: its row is fenced before the object goes.
pub const FINALIZER: &str = "dalsegno.dev/fence";

/// Name of the worker among a template's containers. A template with one container may name it as it likes.
pub const WORKER_CONTAINER: &str = "agent";

/// Label of a pod: name of its AgentRun.
pub const LABEL_RUN: &str = "dalsegno.dev/run";

/// Label of a pod: number of its attempt.
pub const LABEL_ATTEMPT: &str = "dalsegno.dev/attempt";

/// Label of a pod: UID of its AgentRun.
pub const LABEL_RUN_UID: &str = "dalsegno.dev/run-uid";

/// Label of everything that the operator makes; its value is [`MANAGED_BY`].
pub const LABEL_MANAGED_BY: &str = "app.kubernetes.io/managed-by";

/// Value of [`LABEL_MANAGED_BY`].
pub const MANAGED_BY: &str = "dalsegno";

/// Annotation of a pod: the run's inline input, which the downward API shows the worker as a file.
pub const ANNOTATION_INPUT: &str = "dalsegno.dev/input";

/// Annotation of an AgentRun: why somebody cancels it, grants it a budget or deletes it; the audit keeps what it says then.
pub const ANNOTATION_REASON: &str = "dalsegno.dev/reason";

/// Annotation of a pod: hash of the template that made it.
pub const ANNOTATION_REVISION: &str = "dalsegno.dev/revision";

/// Annotation of a pod: the agent's version that its template declares.
pub const ANNOTATION_AGENT_VERSION: &str = "dalsegno.dev/agent-version";

/// Annotation of a pod: turn and event position it resumes from, as `turn/position`.
pub const ANNOTATION_TURN: &str = "dalsegno.dev/turn";

/// Annotation of a pod: the revision it was pinned to, where the current template was not used.
pub const ANNOTATION_PINNED: &str = "dalsegno.dev/pinned";

/// What stands in [`crate::AgentRunStatus::agent`] of a run with an inline `agent`.
pub const INLINE_AGENT: &str = "<inline>";

/// Subresource of an AgentRun that no API server serves: whoever may `get` it may read from the gateway what the run has
/// committed. The status says how a run does; this is what it works on.
pub const SUBRESOURCE_CHECKPOINTS: &str = "checkpoints";
