//! Conditions, the summary derived from them, and the causes by which attempts end.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use crate::Reason;

words! {
    /// What a condition is about.
    pub enum ConditionType {
        /// The run has reached an end, of whichever kind; the reason says which.
        Finished,
        /// The agent has reached its goal.
        Succeeded,
        /// A worker is attached and can commit.
        WorkerReady,
        /// There is a checkpoint to resume from.
        CheckpointAvailable,
        /// The agent that would resume fits the latest checkpoint.
        VersionCompatible,
        /// The operator has stopped the run, and a person is needed.
        Held,
        /// The run is under control: attached, recovering within its limits, or succeeded. On an AgentDefinition: the API
        /// server accepts its pod.
        Ready,
        /// The first attach of this generation is still to come; absent when False.
        Reconciling,
        /// A person is needed; absent when False.
        Stalled,
    }
}

words! {
    /// Where a run stands, derived from its conditions: for columns and field selectors.
    pub enum Summary {
        /// The attempt has no pod yet, or its pod waits for a node; the reason says why. Nothing of it counts towards a
        /// deadline.
        Pending,
        /// The attempt's pod has a node, and its worker has not attached.
        Starting,
        /// A worker is attached.
        Running,
        /// The next attempt waits for its time.
        BackingOff,
        /// The operator has stopped the run, and a person is needed.
        Held,
        /// The agent reached its goal.
        Succeeded,
        /// The agent gave up, or recovery came to its end under `onExhausted: Fail`.
        Failed,
        /// A person cancelled the run.
        Cancelled,
    }
}

words! {
    /// Who is to blame for the end of an attempt.
    pub enum Class {
        /// The agent: it is charged to the recovery budget.
        Crash,
        /// Not the agent: never charged.
        Disruption,
        /// Nobody: the attempt ended as it was meant to, or before it began; never charged.
        Neutral,
    }
}

words! {
    /// The end of a run.
    pub enum RunOutcome {
        /// The agent reached its goal.
        Succeeded,
        /// It did not.
        Failed,
        /// A person cancelled it.
        Cancelled,
    }
}

words! {
    /// The status of a condition.
    pub enum Truth {
        /// It is so.
        True,
        /// It is not so.
        False,
        /// Nobody can tell.
        Unknown,
    }
}

impl From<bool> for Truth {
    fn from(is_so: bool) -> Self {
        if is_so { Self::True } else { Self::False }
    }
}

/// Builds a condition. `since` is the time of its last transition: that of the condition before it, if its status is the
/// same ([`find_condition`]), else now.
pub fn condition(
    kind: ConditionType,
    status: impl Into<Truth>,
    reason: Reason,
    message: impl Into<String>,
    generation: Option<i64>,
    since: Time,
) -> Condition {
    Condition {
        type_: kind.as_str().to_owned(),
        status: status.into().as_str().to_owned(),
        reason: reason.as_str().to_owned(),
        message: message.into(),
        observed_generation: generation,
        last_transition_time: since,
    }
}

/// The condition of a type.
pub fn find_condition(conditions: &[Condition], kind: ConditionType) -> Option<&Condition> {
    conditions.iter().find(|condition| condition.type_ == kind.as_str())
}
