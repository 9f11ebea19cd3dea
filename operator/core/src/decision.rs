//! The decision: what to do for a run.

use std::time::Duration;

use dalsegno_crds::AgentRunStatus;
use dalsegno_model::{
    Deadlines, Ending, Forgiveness, ForkRequest, HoldNotice, Identity, NextStep, ObjectHold, OnPrior,
    PodRecord, Retention, Rewind, RewindRequest, RunId, RunLimits, RunRecord, StepBack,
};
use serde_json::Value;

use crate::approvals::ApprovalEffect;
use crate::rule::Rule;

/// What to do, in this order: the effects; then, if no effect returned a new result, the status; then the events.
#[derive(Clone, Debug)]
pub struct Decision {
    /// The rule that it follows.
    pub rule: Rule,
    /// The changes to make.
    pub effects: Vec<Effect>,
    /// The new status. It is written only if it differs from the current one. While results of effects are pending, it
    /// equals the current one.
    pub status: AgentRunStatus,
    /// The hold to announce to people before the status is written. `None`: the run is not held, or the hold was announced.
    pub announcement: Option<Announcement>,
    /// The Kubernetes events to publish after the status is written.
    pub events: Vec<EventSpec>,
    /// Reconcile again after this long, if nothing happens before.
    pub requeue: Option<Duration>,
}

/// A hold that people hear of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Announcement {
    /// Of a run. The store notes that it was announced.
    Run(RunId, HoldNotice),
    /// Of an AgentRun whose run in the store cannot be used. Its status notes that it was announced.
    Object(ObjectHold),
}

/// One change. It is safe to repeat.
#[derive(Clone, Debug)]
pub enum Effect {
    /// Create the run in the store. This also reserves its first attempt.
    CreateRun {
        /// `recovery.resetGeneration` at the time of creation. It grants nothing.
        reset_generation: i64,
        /// `rewind.generation` at the time of creation. It rewinds nothing.
        rewind_generation: i64,
        /// Whether the run begins as a fork.
        is_fork: bool,
        /// Whether the agent keeps its own checkpoints.
        is_external: bool,
        /// Lengths of the deadlines.
        deadlines: Deadlines,
        /// What to do with a prior run of the same name.
        on_prior: OnPrior,
    },
    /// End the attempt in the store. Its worker can no longer commit.
    EndAttempt {
        /// Id of the run.
        run: RunId,
        /// How the attempt ended.
        ending: Ending,
        /// What to do next in the same transaction.
        then: NextStep,
    },
    /// Take back the charge of an attempt that has ended.
    ForgiveEnd(RunId, Forgiveness),
    /// Read a stored template by its hash. Changes nothing.
    ReadTemplate(String),
    /// Read the ids of the calls that hold the run until a person settles them. Changes nothing.
    ReadCallsToSettle(RunId),
    /// Verify that the state at the head of this row can be rebuilt. Changes nothing.
    VerifyHead(Box<RunRecord>),
    /// Go back to an earlier boundary.
    Rewind(RunId, Rewind),
    /// Go back to the end of an earlier turn, as a person requests, or record why not.
    RequestRewind(RunId, RewindRequest),
    /// Go back one turn before the last try at a checkpoint, if no call with an effect would be repeated.
    StepBack(RunId, StepBack),
    /// Copy state and records of another run, or a part of them.
    Fork(RunId, ForkRequest),
    /// Store the template, then create the attempt's pod from it.
    CreateWorker {
        /// Id of the run.
        run: RunId,
        /// Number of the attempt.
        attempt: i32,
        /// The pod to create, as JSON.
        pod: Value,
        /// Hash of the template's document.
        revision: String,
        /// The template's document.
        document: String,
    },
    /// Record the pod of the reserved attempt.
    RecordPod {
        /// Id of the run.
        run: RunId,
        /// Number of the attempt.
        attempt: i32,
        /// The pod.
        pod: PodRecord,
    },
    /// Record that the pod was assigned to a node.
    RecordScheduled {
        /// Id of the run.
        run: RunId,
        /// Number of the attempt.
        attempt: i32,
        /// Name of the node.
        node: String,
    },
    /// Record that the worker has started, of an agent that keeps its own checkpoints.
    RecordStarted {
        /// Id of the run.
        run: RunId,
        /// Number of the attempt.
        attempt: i32,
    },
    /// Record the digest and the version of the worker's image, and whether that version may resume the checkpoint.
    RecordIdentity {
        /// Id of the run.
        run: RunId,
        /// Number of the attempt.
        attempt: i32,
        /// The image's identity, with the verdict.
        identity: Identity,
    },
    /// Record in the store that the run was cancelled.
    RequestCancel(RunId),
    /// Record in the store that the run was suspended.
    Suspend(RunId),
    /// Record in the store that the suspend was lifted.
    Resume(RunId),
    /// Let the store's clock answer the waits whose time has come, and do what passed deadlines ask for.
    SettleTime(RunId),
    /// Park the run on its open waits, because its worker has opened one and neither parks nor commits.
    ParkUnattended {
        /// Id of the run.
        run: RunId,
        /// Number of the attempt.
        attempt: i32,
    },
    /// Grant one fresh recovery budget.
    ResetBudget {
        /// Id of the run.
        run: RunId,
        /// The reset generation that was granted last.
        observed: i64,
        /// The reset generation to grant.
        to: i64,
    },
    /// Change the lengths of the deadlines.
    SetDeadlines(RunId, Deadlines),
    /// Change the limits of the run.
    SetLimits(RunId, RunLimits),
    /// Change the retention settings of the run.
    SetRetention(RunId, Retention),
    /// Do something for an approval of the run.
    Approval(Box<ApprovalEffect>),
    /// Delete a pod, if it still has this UID.
    StopWorker {
        /// Name of the pod.
        name: String,
        /// UID of the pod.
        uid: String,
    },
    /// Remove the finalizer of a pod whose end is recorded, if the pod still has this UID.
    ReleasePod {
        /// Name of the pod.
        name: String,
        /// UID of the pod.
        uid: String,
    },
    /// Delete the AgentRun, if it has not changed since it was observed. It has ended, and its time to live has
    /// expired.
    DeleteRun,
    /// Mark the row as deleted, because the AgentRun is being deleted. This is final.
    MarkDeleted,
}

impl Effect {
    /// Name of the effect for logs, metrics and crash tests.
    pub fn name(&self) -> &'static str {
        match self {
            Self::CreateRun { .. } => "create-run",
            Self::EndAttempt { .. } => "end-attempt",
            Self::ForgiveEnd(..) => "forgive-end",
            Self::ReadTemplate(_) => "read-template",
            Self::ReadCallsToSettle(_) => "read-calls-to-settle",
            Self::VerifyHead(_) => "verify-head",
            Self::Rewind(..) => "rewind",
            Self::RequestRewind(..) => "request-rewind",
            Self::StepBack(..) => "step-back",
            Self::Fork(..) => "fork",
            Self::CreateWorker { .. } => "create-worker",
            Self::RecordPod { .. } => "record-pod",
            Self::RecordScheduled { .. } => "record-scheduled",
            Self::RecordStarted { .. } => "record-started",
            Self::RecordIdentity { .. } => "record-identity",
            Self::RequestCancel(_) => "request-cancel",
            Self::Suspend(_) => "suspend",
            Self::Resume(_) => "resume",
            Self::SettleTime(_) => "settle-time",
            Self::ParkUnattended { .. } => "park-unattended",
            Self::ResetBudget { .. } => "reset-budget",
            Self::SetDeadlines(..) => "set-deadlines",
            Self::SetLimits(..) => "set-limits",
            Self::SetRetention(..) => "set-retention",
            Self::Approval(effect) => effect.name(),
            Self::StopWorker { .. } => "stop-worker",
            Self::ReleasePod { .. } => "release-pod",
            Self::DeleteRun => "delete-run",
            Self::MarkDeleted => "mark-deleted",
        }
    }
}

/// A Kubernetes event to publish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventSpec {
    /// Type of the event.
    pub level: EventLevel,
    /// Reason, in one CamelCase word.
    pub reason: String,
    /// What was done to what. The API server counts events with the same reason and action as one series.
    pub action: String,
    /// One sentence for people. It may contain a worker's text, which only readers of events may see.
    pub note: String,
    /// The same for the log, without any text of a worker.
    pub log: String,
}

/// Type of a Kubernetes event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventLevel {
    /// Everything works as intended.
    Normal,
    /// Somebody may want to look at it.
    Warning,
}
