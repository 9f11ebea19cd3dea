//! The stage of a run: the part of a decision that the status is written from.

use dalsegno_crds::{AgentRunStatus, Reason, Summary};
use dalsegno_model::{AttemptState, FinishRow, RunOutcome, RunRecord, SignalRow};
use dalsegno_protocol::WaitKind;
use jiff::{SignedDuration, Timestamp};

use crate::observed::ObservedPod;
use crate::pod;
use crate::pod_create_error::PodCreateError;
use crate::recovery::{Hold, recovery_reason};
use crate::text::reason_and_message;

/// The stage of a run.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum RunStage {
    /// The store did not respond. Holds the error.
    StoreUnavailable(String),
    /// A person must act.
    Held(Hold),
    /// A person suspended the run, and it has no worker.
    Suspended,
    /// The run is parked on waits that are not answered.
    Waiting,
    /// The run waits for its place among the runs of its definition. Holds its position, from 1.
    Queued(i32),
    /// State and records of another run are being copied.
    Forking,
    /// The next attempt waits until this time.
    BackingOff(Timestamp),
    /// The current attempt's worker has not attached. Holds why, as a reason and a message.
    Starting(Reason, String),
    /// The status shows this start already, and its next step follows within seconds. The status is not changed yet.
    StartInProgress,
    /// A worker is attached.
    Running,
    /// The run has ended.
    Terminal,
    /// The status says that the run has ended, and the connected store does not know of it. The status is not changed.
    OrphanedTerminal,
    /// Effects are pending, and the next decision depends on their results. The status is not changed yet.
    EffectsPending,
}

impl RunStage {
    /// The stage of an attempt whose pod exists and whose worker has not attached.
    pub(crate) fn of_starting_pod(seen: &ObservedPod) -> Self {
        let ObservedPod { pod, volume_problem, .. } = seen;
        let unscheduled = pod::condition(pod, pod::POD_SCHEDULED).filter(|it| it.status == "False");
        match (pod::waiting(pod), unscheduled) {
            (Some((reason, message)), _) if pod::is_image_problem(reason) => {
                let problem = reason_and_message(reason, message);
                let remediation = Reason::ImagePullFailed.remediation();
                let message = format!("{}. {remediation}", problem.trim_end_matches('.'));
                Self::Starting(Reason::ImagePullFailed, message)
            }
            (Some((reason, message)), _) => {
                Self::Starting(Reason::Starting, reason_and_message(reason, message))
            }
            (None, Some(it)) => Self::Starting(Reason::Unschedulable, it.message.clone().unwrap_or_default()),
            (None, None) => {
                let message = match volume_problem {
                    Some(it) => &it.message,
                    None if pod::sandbox_lost_at(pod).is_some() => "the pod has lost its sandbox",
                    None => "the worker has not attached yet",
                };
                Self::Starting(Reason::Starting, message.to_owned())
            }
        }
    }

    /// The stage of an attempt whose pod the API server did not create. A run that is held for it stays held until a pod is
    /// created: a new operator does not know how often the API server has refused.
    pub(crate) fn of_create_error(error: &PodCreateError, old: Option<&AgentRunStatus>) -> Self {
        let message = error.message.clone();
        if let Some(reason) = PodCreateError::namespace_reason(error.code, &message) {
            return Self::Starting(reason, message);
        }
        match error.code {
            400 | 422 => Self::Held(Hold::new(Reason::TemplateInvalid, message)),
            _ if error.is_persistent() || old.is_some_and(is_held_as_refused) => {
                let retry_at = Some(error.retry_at());
                Self::Held(Hold { retry_at, ..Hold::new(Reason::PodRefused, message) })
            }
            _ => Self::Starting(Reason::PodRefused, message),
        }
    }

    /// Whether no worker is attached, and the next one is on its way.
    pub(crate) fn is_recovering(&self) -> bool {
        matches!(self, Self::BackingOff(_) | Self::Starting(..) | Self::StartInProgress)
    }

    /// Whether the status is not changed. A held run stays held while the store is unavailable.
    pub(crate) fn keeps_status(&self, old: &AgentRunStatus) -> bool {
        match self {
            Self::OrphanedTerminal | Self::EffectsPending | Self::StartInProgress => true,
            Self::StoreUnavailable(_) => old.summary == Some(Summary::Held),
            Self::Held(_)
            | Self::Suspended
            | Self::Waiting
            | Self::Queued(_)
            | Self::Forking
            | Self::BackingOff(_)
            | Self::Starting(..)
            | Self::Running
            | Self::Terminal => false,
        }
    }

    /// The status fields `summary` and `reason`, which `kubectl get` shows.
    pub(crate) fn summary_and_reason(
        &self,
        row: Option<&RunRecord>,
        old: &AgentRunStatus,
    ) -> (Summary, Reason) {
        let unchanged = old.summary.unwrap_or(Summary::Pending);
        match self {
            Self::Held(hold) => (Summary::Held, hold.reason),
            Self::StoreUnavailable(_) => (unchanged, Reason::StoreUnavailable),
            Self::Suspended => (Summary::Suspended, Reason::Suspended),
            Self::Waiting => (Summary::Waiting, row.map_or(Reason::Until, waiting_reason)),
            Self::Queued(_) => (Summary::Pending, Reason::Queued),
            Self::Forking => (Summary::Pending, Reason::Forking),
            Self::BackingOff(_) => {
                (Summary::BackingOff, row.and_then(recovery_reason).unwrap_or(Reason::BackingOff))
            }
            Self::Starting(reason, _) => {
                let scheduled = row.is_some_and(|row| row.attempt.scheduled_at.is_some());
                let summary = if scheduled { Summary::Starting } else { Summary::Pending };
                // A problem of this start is more important than the end of the last attempt.
                let why = row.filter(|_| *reason == Reason::Starting).and_then(recovery_reason);
                (summary, why.unwrap_or(*reason))
            }
            Self::Running if row.is_some_and(|row| row.cancel.is_some()) => {
                (Summary::Running, Reason::Cancelling)
            }
            Self::Running if row.is_some_and(|row| row.suspend.is_some()) => {
                (Summary::Running, Reason::Suspending)
            }
            Self::Running => (Summary::Running, Reason::UnderControl),
            Self::Terminal => row.map_or((Summary::Failed, Reason::Failed), end_of),
            Self::OrphanedTerminal | Self::EffectsPending | Self::StartInProgress => {
                (unchanged, old.reason.unwrap_or(Reason::Starting))
            }
        }
    }
}

/// What a parked run waits for: a person before anything else.
pub(crate) fn waiting_reason(row: &RunRecord) -> Reason {
    match row.parked_on().map(|wait| wait.kind).min() {
        Some(WaitKind::Approval) => Reason::Approval,
        Some(WaitKind::Message) => Reason::Message,
        Some(WaitKind::RateLimit) => Reason::RateLimit,
        Some(WaitKind::Until) | None => Reason::Until,
    }
}

/// The suspend of a run that has neither ended nor been cancelled.
pub(crate) fn current_suspend(row: &RunRecord) -> Option<&SignalRow> {
    row.suspend.as_ref().filter(|_| row.cancel.is_none() && row.finish.is_none())
}

/// How long a run that has lost its worker stays Ready. Most recoveries take seconds.
const READY_WITHOUT_WORKER: SignedDuration = SignedDuration::from_mins(3);

/// When a run whose worker has ended stops being Ready, by the store's clock. `None`: no worker has ever attached.
pub(crate) fn ready_until(row: &RunRecord) -> Option<Timestamp> {
    let attempts = std::iter::once(&row.attempt).chain(&row.past);
    let last = attempts.filter(|it| it.attached_at.is_some()).max_by_key(|it| it.number)?;
    Some(last.ended_at?.checked_add(READY_WITHOUT_WORKER).unwrap_or(Timestamp::MAX))
}

fn is_held_as_refused(old: &AgentRunStatus) -> bool {
    (old.summary, old.reason) == (Some(Summary::Held), Some(Reason::PodRefused))
}

/// How a finished run ended, as `summary` and `reason`.
pub(crate) fn end_of(row: &RunRecord) -> (Summary, Reason) {
    let timed_out = |finish: &FinishRow| finish.reason == Reason::WaitTimedOut.as_str();
    let failed = match ended_by_operator(row) {
        true if row.finish.as_ref().is_some_and(timed_out) => Reason::WaitTimedOut,
        true => Reason::RecoveryFailed,
        false => Reason::AgentFailed,
    };
    match row.finish.as_ref().map(|finish| finish.outcome) {
        Some(RunOutcome::Succeeded) => (Summary::Succeeded, Reason::Completed),
        Some(RunOutcome::Cancelled) => (Summary::Cancelled, Reason::Cancelled),
        Some(RunOutcome::Failed) | None => (Summary::Failed, failed),
    }
}

/// Whether the operator ended the run. It ends the attempt with the run; a worker's finish does not.
fn ended_by_operator(row: &RunRecord) -> bool {
    row.attempt.state == AttemptState::Ended
}

/// Whether the worker knows that the run has ended, so that it can exit on its own. It knows if it finished the run or
/// acknowledged the cancel. The store records an acknowledged cancel with an empty message.
pub(crate) fn worker_knows_end(row: &RunRecord, finish: &FinishRow) -> bool {
    let acknowledged = finish.outcome == RunOutcome::Cancelled && finish.message.is_empty();
    acknowledged || !ended_by_operator(row)
}
