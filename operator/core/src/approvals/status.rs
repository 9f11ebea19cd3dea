//! The status of an AgentApproval, and the events of its changes.

use dalsegno_crds::{
    AgentApproval, AgentApprovalStatus, ApprovalConditionType, ApprovalReason, ConditionStatus, EventReason,
    Verdict,
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use super::observed::{ClosedWait, ObservedApproval};
use crate::decision::{EventLevel, EventSpec};
use crate::text;

/// The state of an approval.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ApprovalState {
    /// A decision is needed, or does not count. Holds why.
    Waiting(ApprovalReason, String),
    /// It is over.
    Closed(ClosedWait),
}

/// Whether the status says that the approval is over.
pub fn is_over(approval: &AgentApproval) -> bool {
    use ApprovalConditionType::{Applied, Expired, Withdrawn};
    [Applied, Expired, Withdrawn].into_iter().any(|kind| is_true(approval, kind))
}

/// The reason of the condition Pending, if a decision is needed.
pub(super) fn pending_reason(approval: &AgentApproval) -> Option<ApprovalReason> {
    find(approval, ApprovalConditionType::Pending)
        .filter(|it| it.status == ConditionStatus::True.as_str())
        .and_then(|it| it.reason.parse().ok())
}

/// The reason and the message of the condition Pending, if they say why an earlier decision was removed. They stay until
/// somebody decides again.
pub(super) fn refusal(approval: &AgentApproval) -> Option<(ApprovalReason, String)> {
    let reason = pending_reason(approval).filter(|it| is_refusal(*it))?;
    Some((reason, find(approval, ApprovalConditionType::Pending)?.message.clone()))
}

/// Whether this reason says that a decision was removed.
pub(super) fn is_refusal(reason: ApprovalReason) -> bool {
    use ApprovalReason as R;
    matches!(
        reason,
        R::DecidedWithoutPolicy
            | R::OtherProposal
            | R::FourEyesViolated
            | R::FourEyesUnknown
            | R::ChangesTooLarge
    )
}

fn find(approval: &AgentApproval, kind: ApprovalConditionType) -> Option<&Condition> {
    let conditions = &approval.status.as_ref()?.conditions;
    conditions.iter().find(|it| it.type_ == kind.as_str())
}

fn is_true(approval: &AgentApproval, kind: ApprovalConditionType) -> bool {
    find(approval, kind).is_some_and(|it| it.status == ConditionStatus::True.as_str())
}

/// The object with the status of this state, if it has another one now.
pub(super) fn changed(
    seen: &ObservedApproval,
    state: &ApprovalState,
    now: Timestamp,
) -> Option<AgentApproval> {
    let new = status_of(seen, state, now);
    (seen.object.status.as_ref() != Some(&new))
        .then(|| AgentApproval { status: Some(new), ..seen.object.clone() })
}

fn status_of(seen: &ObservedApproval, state: &ApprovalState, now: Timestamp) -> AgentApprovalStatus {
    use ApprovalConditionType as Type;
    use ApprovalReason as Reason;
    let decided = match state {
        ApprovalState::Closed(ClosedWait::Decided(verdict)) => Some(reason_of(*verdict)),
        ApprovalState::Closed(_) | ApprovalState::Waiting(..) => None,
    };
    let (pending, reason, message) = match state {
        ApprovalState::Waiting(reason, message) => (true, *reason, message.as_str()),
        ApprovalState::Closed(ClosedWait::Decided(verdict)) => (false, reason_of(*verdict), ""),
        ApprovalState::Closed(ClosedWait::TimedOut) => (false, Reason::DeadlinePassed, ""),
        ApprovalState::Closed(ClosedWait::Withdrawn) => (false, Reason::WaitWithdrawn, ""),
    };
    let mut conditions = vec![
        (Type::Pending, pending, reason, message),
        (Type::Decided, decided.is_some(), reason, message),
        match decided {
            Some(_) => (Type::Applied, true, Reason::Answered, ""),
            None => (Type::Applied, false, Reason::NotApplied, ""),
        },
    ];
    match state {
        ApprovalState::Closed(ClosedWait::TimedOut) => {
            conditions.push((Type::Expired, true, Reason::DeadlinePassed, ""));
        }
        ApprovalState::Closed(ClosedWait::Withdrawn) => {
            conditions.push((Type::Withdrawn, true, Reason::WaitWithdrawn, ""));
        }
        ApprovalState::Closed(ClosedWait::Decided(_)) | ApprovalState::Waiting(..) => {}
    }
    let build = |(kind, status, reason, message): (Type, bool, Reason, &str)| {
        let status = ConditionStatus::from(status).as_str().to_owned();
        let before = find(&seen.object, kind).filter(|it| it.status == status);
        Condition {
            type_: kind.as_str().to_owned(),
            last_transition_time: before.map_or(Time(now), |it| it.last_transition_time.clone()),
            status,
            reason: reason.as_str().to_owned(),
            message: text::keep_start(message, text::CONDITION_MESSAGE_BYTES),
            observed_generation: seen.object.metadata.generation,
        }
    };
    let decided_time = decided.and_then(|_| {
        let known = seen.object.status.as_ref().and_then(|it| it.decided_time.clone());
        known.or_else(|| seen.decided_at().map(Time))
    });
    AgentApprovalStatus { conditions: conditions.into_iter().map(build).collect(), decided_time }
}

fn reason_of(verdict: Verdict) -> ApprovalReason {
    match verdict {
        Verdict::Approved => ApprovalReason::Approved,
        Verdict::Denied => ApprovalReason::Denied,
        Verdict::Changed => ApprovalReason::Changed,
    }
}

/// The event of the run for this change of an approval, if it is worth one.
pub(super) fn event(before: &ObservedApproval, state: &ApprovalState) -> Option<EventSpec> {
    let name = before.name();
    let by = || {
        let spec = &before.object.spec;
        let second = spec.second_decision.as_ref().map(|it| format!(" and {}", it.by)).unwrap_or_default();
        spec.decision.as_ref().map_or_else(String::new, |it| format!(" by {}{second}", it.by))
    };
    let (level, reason, note) = match state {
        ApprovalState::Waiting(reason, message) => {
            let was = pending_reason(&before.object);
            match reason {
                _ if was == Some(*reason) => return None,
                ApprovalReason::AwaitingDecision if was.is_none() => (
                    EventLevel::Normal,
                    EventReason::ApprovalRequested,
                    format!("the agent asks for a decision: AgentApproval {name}"),
                ),
                reason if is_refusal(*reason) => (
                    EventLevel::Warning,
                    EventReason::DecisionRefused,
                    format!("AgentApproval {name} ({reason}): {message}"),
                ),
                ApprovalReason::PolicyMissing | ApprovalReason::AwaitingSecondDecision => (
                    EventLevel::Warning,
                    EventReason::DecisionWaits,
                    format!("AgentApproval {name} ({reason}): {message}"),
                ),
                _ => return None,
            }
        }
        ApprovalState::Closed(ClosedWait::Decided(verdict)) => {
            let verdict = reason_of(*verdict);
            (
                EventLevel::Normal,
                EventReason::ApprovalDecided,
                format!("AgentApproval {name}: {verdict}{}", by()),
            )
        }
        ApprovalState::Closed(ClosedWait::TimedOut) => (
            EventLevel::Warning,
            EventReason::ApprovalExpired,
            format!("AgentApproval {name}: nobody decided before the deadline"),
        ),
        ApprovalState::Closed(ClosedWait::Withdrawn) => return None,
    };
    let note = text::keep_start(&note, text::EVENT_NOTE_BYTES);
    Some(EventSpec {
        level,
        reason: reason.as_str().to_owned(),
        action: name.to_owned(),
        log: note.clone(),
        note,
    })
}
