//! Where a run stands: what a decision comes to, and what the status is written from.

use dalsegno_crds::{AgentRunStatus, Reason, Summary};
use dalsegno_model::{AttemptState, FinishRow, RunOutcome, RunRecord};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;

use crate::Refusal;
use crate::pod;
use crate::recovery::{Hold, cause_of_recovery};
use crate::text::said;

/// Where a run stands.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Situation {
    /// The store could not be asked; why.
    StoreUnknown(String),
    /// A person is needed.
    Held(Hold),
    /// The next attempt waits for its time.
    BackingOff(Timestamp),
    /// There is an attempt whose worker has not attached; what it waits for.
    Starting(Reason, String),
    /// The start that the status tells of goes on, step upon step. The status stays as it is until it rests.
    UnderWay,
    /// A worker is attached.
    Running,
    /// The run has reached an end.
    Over,
    /// The run is over by its status, and the store that is there does not know of it. The status stays as it is.
    Closed,
    /// Something is being changed; what follows is decided on what the change teaches. The status stays as it is.
    Changing,
}

impl Situation {
    /// A pod whose worker has not attached.
    pub(crate) fn starting(pod: &Pod) -> Self {
        let unscheduled = pod::condition(pod, pod::POD_SCHEDULED).filter(|it| it.status == "False");
        match (pod::waiting(pod), unscheduled) {
            (Some((reason, message)), _) if pod::is_image_problem(reason) => {
                Self::Starting(Reason::ImagePullFailed, said(reason, message))
            }
            (Some((reason, message)), _) => Self::Starting(Reason::Starting, said(reason, message)),
            (None, Some(it)) => Self::Starting(Reason::Unschedulable, it.message.clone().unwrap_or_default()),
            (None, None) => Self::Starting(Reason::Starting, "the worker has not attached yet".to_owned()),
        }
    }

    /// A pod that the API server did not create.
    pub(crate) fn refused(refusal: &Refusal) -> Self {
        let message = refusal.message.clone();
        if let Some(reason) = Refusal::of_namespace(refusal.code, &message) {
            return Self::Starting(reason, message);
        }
        match refusal.code {
            400 | 422 => Self::Held(Hold::new(Reason::TemplateInvalid, message)),
            _ => Self::Starting(Reason::PodRefused, message),
        }
    }

    /// Whether the status is left as it is. A run that is held needs its person whether the store answers or not.
    pub(crate) fn keeps(&self, old: &AgentRunStatus) -> bool {
        match self {
            Self::Closed | Self::Changing | Self::UnderWay => true,
            Self::StoreUnknown(_) => old.summary == Some(Summary::Held),
            Self::Held(_) | Self::BackingOff(_) | Self::Starting(..) | Self::Running | Self::Over => false,
        }
    }

    /// The two words of the columns.
    pub(crate) fn headline(&self, row: Option<&RunRecord>, old: &AgentRunStatus) -> (Summary, Reason) {
        let as_before = old.summary.unwrap_or(Summary::Pending);
        match self {
            Self::Held(hold) => (Summary::Held, hold.reason),
            Self::StoreUnknown(_) => (as_before, Reason::StoreUnavailable),
            Self::BackingOff(_) => {
                (Summary::BackingOff, row.and_then(cause_of_recovery).unwrap_or(Reason::BackingOff))
            }
            Self::Starting(reason, _) => {
                let scheduled = row.is_some_and(|row| row.attempt.scheduled_at.is_some());
                let summary = if scheduled { Summary::Starting } else { Summary::Pending };
                // What keeps it from starting matters more than why it has to.
                let why = row.filter(|_| *reason == Reason::Starting).and_then(cause_of_recovery);
                (summary, why.unwrap_or(*reason))
            }
            Self::Running if row.is_some_and(|row| row.cancel.is_some()) => {
                (Summary::Running, Reason::Cancelling)
            }
            Self::Running => (Summary::Running, Reason::UnderControl),
            Self::Over => row.map_or((Summary::Failed, Reason::Failed), end_of),
            Self::Closed | Self::Changing | Self::UnderWay => {
                (as_before, old.reason.unwrap_or(Reason::Starting))
            }
        }
    }
}

/// How a run that is over has ended, in two words.
pub(crate) fn end_of(row: &RunRecord) -> (Summary, Reason) {
    let failed = if ended_by_operator(row) { Reason::RecoveryFailed } else { Reason::AgentFailed };
    match row.finish.as_ref().map(|finish| finish.outcome) {
        Some(RunOutcome::Succeeded) => (Summary::Succeeded, Reason::Completed),
        Some(RunOutcome::Cancelled) => (Summary::Cancelled, Reason::Cancelled),
        Some(RunOutcome::Failed) | None => (Summary::Failed, failed),
    }
}

/// A worker's finish leaves its attempt as it is; the operator's ends it.
fn ended_by_operator(row: &RunRecord) -> bool {
    row.attempt.state == AttemptState::Ended
}

/// Whether the worker knows that the run is over, and may exit by itself: it finished the run, or acknowledged its
/// cancel, which the store notes without a word.
pub(crate) fn worker_knows(row: &RunRecord, finish: &FinishRow) -> bool {
    let acknowledged = finish.outcome == RunOutcome::Cancelled && finish.message.is_empty();
    acknowledged || !ended_by_operator(row)
}
