//! Conditions, the summary that is derived from them, and how attempts and runs end.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use crate::reasons::Reason;

string_enum! {
    /// The type of a condition.
    pub enum ConditionType {
        /// The run has ended. The reason says how.
        Finished,
        /// The agent reached its goal.
        Succeeded,
        /// A worker is attached and can commit.
        WorkerReady,
        /// The next attempt has a checkpoint to resume from.
        CheckpointAvailable,
        /// The deployed agent version may resume the latest checkpoint.
        VersionCompatible,
        /// The operator has stopped the run. A person must act.
        Held,
        /// A person suspended the run, and no worker is attached. Absent while nobody has suspended the run.
        Suspended,
        /// The run is parked on waits and has no worker. The reason is the kind of what it waits for. Absent while the run is
        /// not parked.
        Waiting,
        /// The run went back to the turn that the last `spec.rewind` names. Absent while there was no such request.
        Rewound,
        /// On an AgentRun: a worker is attached, the run is recovering within its limits, or the run succeeded. On an
        /// AgentDefinition: the API server accepts the template's pod.
        Ready,
        /// No worker has attached yet under this generation of the spec. Absent when False.
        Reconciling,
        /// A person must act. Absent when False.
        Stalled,
    }
}

string_enum! {
    /// The type of a condition of an AgentApproval.
    pub enum ApprovalConditionType {
        /// A decision is needed.
        Pending,
        /// A decision was made that counts.
        Decided,
        /// The run has the answer.
        Applied,
        /// Nobody decided in time. Absent when False.
        Expired,
        /// The run does not wait any more. Absent when False.
        Withdrawn,
    }
}

string_enum! {
    /// The state of a run in one word, derived from its conditions, for columns and field selectors.
    pub enum Summary {
        /// The attempt has no pod yet, or its pod has no node yet. The reason says why. No deadline runs.
        Pending,
        /// The attempt's pod has a node, and its worker has not attached yet.
        Starting,
        /// A worker is attached.
        Running,
        /// The next attempt waits for its backoff to end.
        BackingOff,
        /// A person suspended the run. It has no pod.
        Suspended,
        /// The run waits for an answer, and has no pod meanwhile. The reason says what it waits for.
        Waiting,
        /// The operator has stopped the run. A person must act.
        Held,
        /// The agent reached its goal.
        Succeeded,
        /// The agent gave up, or recovery was exhausted under `onExhausted: Fail`.
        Failed,
        /// A person cancelled the run.
        Cancelled,
    }
}

string_enum! {
    /// What answers a wait.
    pub enum WaitKind {
        /// A person's decision.
        Approval,
        /// A time.
        Until,
        /// A message to the run.
        Message,
        /// The end of a provider's rate limit.
        RateLimit,
    }
}

string_enum! {
    /// Who caused the end of an attempt.
    pub enum Class {
        /// The agent caused it. The end is charged to the recovery budget.
        Crash,
        /// Something else caused it. The end is never charged.
        Disruption,
        /// Nobody is to blame: the attempt ended as intended, or before it started. The end is never charged.
        Neutral,
    }
}

string_enum! {
    /// The reasons of Kubernetes events that are neither a [`Reason`] nor a [`Cause`](crate::Cause).
    pub enum EventReason {
        /// A person granted a fresh recovery budget.
        BudgetReset,
        /// The run went back to an earlier checkpoint.
        Rewound,
        /// The attempt's pod was created.
        WorkerCreated,
        /// A person suspended the run, and it has no pod.
        Suspended,
        /// A person lifted the suspend of the run.
        Resumed,
        /// At least 80 % of one of the run's limits are used.
        LimitNear,
        /// The agent asks for a decision.
        ApprovalRequested,
        /// A person decided, and the run has the answer.
        ApprovalDecided,
        /// Nobody decided in time.
        ApprovalExpired,
        /// A decision does not count, and was removed.
        DecisionRefused,
        /// A decision does not count yet.
        DecisionWaits,
        /// The agent resumed a checkpoint of another version, because the version policy allows it.
        VersionAllowed,
        /// A defect of the operator stopped the reconcile of the object.
        ReconcilePanicked,
    }
}

string_enum! {
    /// How a run ended.
    pub enum RunOutcome {
        /// The agent reached its goal.
        Succeeded,
        /// The agent did not reach its goal.
        Failed,
        /// A person cancelled the run.
        Cancelled,
    }
}

string_enum! {
    /// The status of a condition.
    pub enum ConditionStatus {
        /// The condition holds.
        True,
        /// The condition does not hold.
        False,
        /// It is not known whether the condition holds.
        Unknown,
    }
}

impl From<bool> for ConditionStatus {
    fn from(holds: bool) -> Self {
        if holds { Self::True } else { Self::False }
    }
}

/// Builds a condition with an empty message and no observed generation.
///
/// `since` is the time of the last transition. If the previous condition of this type ([`find_condition`]) has the same
/// status, pass its time; otherwise pass the current time.
pub fn condition(
    kind: ConditionType,
    status: impl Into<ConditionStatus>,
    reason: Reason,
    since: Time,
) -> Condition {
    Condition {
        type_: kind.as_str().to_owned(),
        status: status.into().as_str().to_owned(),
        reason: reason.as_str().to_owned(),
        message: String::new(),
        observed_generation: None,
        last_transition_time: since,
    }
}

/// Returns the condition of the given type.
pub fn find_condition(conditions: &[Condition], kind: ConditionType) -> Option<&Condition> {
    conditions.iter().find(|condition| condition.type_ == kind.as_str())
}

/// Whether a condition has this status.
pub fn has_status(condition: &Condition, status: ConditionStatus) -> bool {
    condition.status == status.as_str()
}
