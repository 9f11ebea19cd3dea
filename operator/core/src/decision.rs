//! What is to be done.

use std::time::Duration;

use dalsegno_crds::AgentRunStatus;
use dalsegno_model::{
    Deadlines, Ending, Identity, OnPrior, PodRecord, Retention, Rewind, RunId, RunRecord, Then,
};
use k8s_openapi::api::core::v1::Pod;

/// What is to be done, in this order: the effects, then (once none of them taught anything new) the status, then the
/// notices.
#[derive(Clone, Debug)]
pub struct Decision {
    /// What to change.
    pub effects: Vec<Effect>,
    /// What a person shall read. Written only if it differs from what stands there; what stands there, while effects are
    /// still to teach something.
    pub status: AgentRunStatus,
    /// What to tell once the status is written.
    pub notices: Vec<Notice>,
    /// Look again after this long, if nothing happens before.
    pub requeue: Option<Duration>,
}

/// One change, safe to repeat.
#[derive(Clone, Debug)]
pub enum Effect {
    /// Take the run up in the store; its first attempt is reserved by it.
    CreateRun {
        /// `recovery.resetGeneration` as it stands at creation.
        reset_generation: i64,
        /// Lengths of the deadlines.
        deadlines: Deadlines,
        /// What becomes of a prior run.
        on_prior: OnPrior,
    },
    /// End the attempt in the store, and with it the right of its worker to write.
    EndAttempt {
        /// Whose.
        run: RunId,
        /// How.
        ending: Ending,
        /// What follows.
        then: Then,
    },
    /// Read a stored template by its hash. It changes nothing.
    ReadTemplate(String),
    /// Verify that the state at the head of this row can be rebuilt. It changes nothing.
    VerifyHead(Box<RunRecord>),
    /// Go back to an earlier boundary.
    Rewind(RunId, Rewind),
    /// Keep the template, then create the attempt's pod from it.
    CreateWorker {
        /// Whose.
        run: RunId,
        /// Of which attempt.
        attempt: i32,
        /// The pod.
        pod: Box<Pod>,
        /// Hash of the template's document.
        revision: String,
        /// The template's document.
        document: String,
    },
    /// Record the pod of the reserved attempt.
    RecordPod {
        /// Whose.
        run: RunId,
        /// Of which attempt.
        attempt: i32,
        /// Which.
        pod: PodRecord,
    },
    /// Record that the pod has a node.
    RecordScheduled {
        /// Whose.
        run: RunId,
        /// Of which attempt.
        attempt: i32,
        /// Which node.
        node: String,
    },
    /// Record what the image turned out to be, with its verdict.
    RecordIdentity {
        /// Whose.
        run: RunId,
        /// Of which attempt.
        attempt: i32,
        /// What.
        identity: Identity,
    },
    /// Tell the store of a cancel.
    RequestCancel(RunId),
    /// Grant one fresh budget.
    ResetBudget {
        /// Whose.
        run: RunId,
        /// What was granted before.
        observed: i64,
        /// What is granted now.
        to: i64,
    },
    /// Change the lengths of the deadlines.
    SetDeadlines(RunId, Deadlines),
    /// Change what is kept of the run.
    SetRetention(RunId, Retention),
    /// Delete a pod, if it still has this UID.
    StopWorker {
        /// Its name.
        name: String,
        /// Its UID.
        uid: String,
    },
    /// Delete the AgentRun, if it is still what was looked at: it has ended, and its time to live is over.
    DeleteRun,
    /// Close the row for good: the AgentRun is being deleted.
    MarkDeleted,
}

impl Effect {
    /// Its name, for logs, metrics and crash tests.
    pub fn name(&self) -> &'static str {
        match self {
            Self::CreateRun { .. } => "create-run",
            Self::EndAttempt { .. } => "end-attempt",
            Self::ReadTemplate(_) => "read-template",
            Self::VerifyHead(_) => "verify-head",
            Self::Rewind(..) => "rewind",
            Self::CreateWorker { .. } => "create-worker",
            Self::RecordPod { .. } => "record-pod",
            Self::RecordScheduled { .. } => "record-scheduled",
            Self::RecordIdentity { .. } => "record-identity",
            Self::RequestCancel(_) => "request-cancel",
            Self::ResetBudget { .. } => "reset-budget",
            Self::SetDeadlines(..) => "set-deadlines",
            Self::SetRetention(..) => "set-retention",
            Self::StopWorker { .. } => "stop-worker",
            Self::DeleteRun => "delete-run",
            Self::MarkDeleted => "mark-deleted",
        }
    }
}

/// Something to tell a person, as a Kubernetes event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// How bad it is.
    pub level: Level,
    /// One CamelCase word.
    pub reason: String,
    /// What was done, to what: notices that differ in neither reason nor action are counted as one.
    pub action: String,
    /// One sentence.
    pub note: String,
}

/// How bad a notice is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// As it should be.
    Normal,
    /// Somebody may want to look.
    Warning,
}
