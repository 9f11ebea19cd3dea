//! Kubernetes events for the change from the old status to the new one.
//!
//! Events describe changes of the status only. So there is no event for a failed try, and no event is lost if an
//! operator dies between a change and the status write: the operator that writes the status publishes the events.

use dalsegno_crds::{
    AgentRun, AgentRunStatus, AttemptEnd, AttemptStatus, Cause, Class, ConditionStatus, ConditionType,
    EventReason, LimitStatus, OperatingMode, Reason, RecoveryStatus, find_condition, has_status,
};
use dalsegno_model::{RequestedBy, is_near_limit};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use crate::attribution::{self, Request};
use crate::decision::{EventLevel, EventSpec};
use crate::text::{self, position};

/// The events for the change from the run's status to `new`.
pub(crate) fn of(run: &AgentRun, new: &AgentRunStatus) -> Vec<EventSpec> {
    let change = Change { run, old: run.status.as_ref(), new };
    let attempt = new.attempt.as_ref();
    let mut events = change.attempts_ended();
    events.extend(change.budget_reset());
    events.extend(change.rewound());
    events.extend(change.rewind_refused());
    if let Some(attempt) = attempt {
        events.extend(change.pod_created(attempt));
        events.extend(change.version_allowed(attempt));
        events.extend(change.image_pull_failed(attempt));
        events.extend(change.worker_attached(attempt));
    }
    let number = attempt.map_or(0, |it| it.number);
    events.extend(change.store_unavailable(number));
    events.extend(change.limits_near());
    events.extend(change.held(number));
    events.extend(change.suspended(number));
    events.extend(change.resumed(number));
    events.extend(change.run_finished(number));
    events
}

struct Change<'a> {
    run: &'a AgentRun,
    old: Option<&'a AgentRunStatus>,
    new: &'a AgentRunStatus,
}

impl Change<'_> {
    fn before(&self, kind: ConditionType) -> Option<&Condition> {
        find_condition(&self.old?.conditions, kind)
    }

    fn after(&self, kind: ConditionType) -> Option<&Condition> {
        find_condition(&self.new.conditions, kind)
    }

    /// A condition that became True, or whose reason changed while it was True.
    fn became_true(&self, kind: ConditionType) -> Option<&Condition> {
        let is_true = |it: &&Condition| has_status(it, ConditionStatus::True);
        let was = self.before(kind).filter(is_true);
        self.after(kind).filter(is_true).filter(|now| was.is_none_or(|was| was.reason != now.reason))
    }

    fn old_attempt(&self) -> Option<&AttemptStatus> {
        self.old?.attempt.as_ref()
    }

    fn is_another_attempt(&self, attempt: &AttemptStatus) -> bool {
        self.old_attempt().is_none_or(|old| old.number != attempt.number)
    }

    /// The attempts that have ended since the old status, the earliest first. A status that is rebuilt from the store
    /// has no events for old attempts.
    fn attempts_ended(&self) -> Vec<EventSpec> {
        let Some(since) = self.old_attempt() else { return Vec::new() };
        let known = history(self.old);
        let is_new = |end: &&AttemptEnd| {
            end.attempt >= since.number && known.iter().all(|it| it.attempt != end.attempt)
        };
        let ended_with_run = |end: &&AttemptEnd| matches!(end.cause, Cause::Finished | Cause::Cancelled);
        let new = history(Some(self.new)).iter().filter(is_new).filter(|it| !ended_with_run(it));
        let is_external = self.new.attempt.as_ref().is_some_and(|it| it.resumed_from_turn.is_none());
        new.rev().map(|end| attempt_ended(end, is_external)).collect()
    }

    fn budget_reset(&self) -> Option<EventSpec> {
        let granted = |status: Option<&AgentRunStatus>| recovery(status)?.observed_reset_generation;
        let (was, is) = (granted(self.old)?, granted(Some(self.new))?);
        (is > was).then(|| {
            let note = format!("recovery.resetGeneration {is} grants one fresh budget");
            event(EventLevel::Normal, EventReason::BudgetReset.as_str(), format!("Reset{is}"), note)
        })
    }

    /// The head went back to an earlier turn.
    fn rewound(&self) -> Option<EventSpec> {
        let turn = |status: Option<&AgentRunStatus>| Some(status?.checkpoint.as_ref()?.turn);
        let (was, is) = (turn(self.old)?, turn(Some(self.new))?);
        (is < was).then(|| {
            let note =
                format!("the run was rewound from turn {was} to turn {is}; the later turns are discarded");
            event(EventLevel::Warning, EventReason::Rewound.as_str(), format!("Rewind{is}"), note)
        })
    }

    /// A requested rewind was refused.
    fn rewind_refused(&self) -> Option<EventSpec> {
        let is_false = |it: &&Condition| has_status(it, ConditionStatus::False);
        let refused = self.after(ConditionType::Rewound).filter(is_false)?;
        let is_known = self.before(ConditionType::Rewound).is_some_and(|old| old.message == refused.message);
        let generation = self.run.spec.rewind.as_ref().map_or(0, |it| it.generation);
        (!is_known).then(|| {
            let note = text::keep_both_ends(&refused.message, text::EVENT_NOTE_BYTES);
            let refused =
                event(EventLevel::Warning, &refused.reason, format!("RefuseRewind{generation}"), note);
            EventSpec { log: "a requested rewind was refused".to_owned(), ..refused }
        })
    }

    fn pod_created(&self, attempt: &AttemptStatus) -> Option<EventSpec> {
        let pod = attempt.pod_name.as_deref()?;
        let known = self.old_attempt().is_some_and(|old| old.pod_uid == attempt.pod_uid);
        let rebuilt = self.old.is_none() && attempt.number > 1;
        (!known && !rebuilt).then(|| {
            let note = format!("created pod {pod}{}", first_turn(attempt, " to start at"));
            event(
                EventLevel::Normal,
                EventReason::WorkerCreated.as_str(),
                format!("Create{}", attempt.number),
                note,
            )
        })
    }

    fn version_allowed(&self, attempt: &AttemptStatus) -> Option<EventSpec> {
        let is_allowed = |it: &&Condition| has_status_and_reason(it, ConditionStatus::True, Reason::Allowed);
        let allowed = self.after(ConditionType::VersionCompatible).filter(is_allowed)?;
        let was_allowed = self.before(ConditionType::VersionCompatible).filter(is_allowed).is_some();
        (!was_allowed || self.is_another_attempt(attempt)).then(|| {
            event(
                EventLevel::Warning,
                EventReason::VersionAllowed.as_str(),
                format!("Allow{}", attempt.number),
                allowed.message.clone(),
            )
        })
    }

    /// The image of this attempt cannot be pulled.
    fn image_pull_failed(&self, attempt: &AttemptStatus) -> Option<EventSpec> {
        let is_failed = |it: &&Condition| it.reason == Reason::ImagePullFailed.as_str();
        let failed = self.after(ConditionType::WorkerReady).filter(is_failed)?;
        let was_failed = self.before(ConditionType::WorkerReady).filter(is_failed).is_some();
        (!was_failed || self.is_another_attempt(attempt)).then(|| {
            let action = format!("Pull{}", attempt.number);
            event(EventLevel::Warning, &failed.reason, action, failed.message.clone())
        })
    }

    /// The worker attached. `Unknown` while the store was unavailable does not count as detached.
    fn worker_attached(&self, attempt: &AttemptStatus) -> Option<EventSpec> {
        let ready =
            self.after(ConditionType::WorkerReady).filter(|it| has_status(it, ConditionStatus::True))?;
        let before = self.before(ConditionType::WorkerReady);
        let was_attached = before.is_some_and(|was| !has_status(was, ConditionStatus::False));
        (!was_attached || self.is_another_attempt(attempt)).then(|| {
            let note =
                format!("the worker of attempt {} starts{}", attempt.number, first_turn(attempt, " at"));
            event(EventLevel::Normal, &ready.reason, format!("Attach{}", attempt.number), note)
        })
    }

    /// The store became unavailable.
    fn store_unavailable(&self, attempt: i32) -> Option<EventSpec> {
        let is_unavailable =
            |it: &&Condition| has_status_and_reason(it, ConditionStatus::Unknown, Reason::StoreUnavailable);
        let ready = self.after(ConditionType::Ready).filter(is_unavailable)?;
        let was_unavailable = self.before(ConditionType::Ready).filter(is_unavailable).is_some();
        (!was_unavailable).then(|| {
            let note = ready.message.clone();
            event(EventLevel::Warning, &ready.reason, format!("Wait{attempt}"), note)
        })
    }

    /// At least 80 % of a limit are used: one event for each limit and each value of it.
    fn limits_near(&self) -> Vec<EventSpec> {
        let is_near = |it: &&LimitStatus| is_near_limit(it.used, it.max);
        let old = self.old.map(|it| it.limits.as_slice()).unwrap_or_default();
        let was_near = |new: &LimitStatus| {
            old.iter().filter(is_near).any(|it| (it.limit, it.max) == (new.limit, new.max))
        };
        let near = self.new.limits.iter().filter(is_near).filter(|it| !was_near(it));
        near.map(|LimitStatus { limit, used, max }| {
            let limit = limit.as_str();
            let note =
                format!("the run has used {used} of limits.{limit} {max}, and is held when it reaches it");
            event(EventLevel::Warning, EventReason::LimitNear.as_str(), format!("Near{limit}{max}"), note)
        })
        .collect()
    }

    fn held(&self, attempt: i32) -> Option<EventSpec> {
        let held = self.became_true(ConditionType::Held)?;
        let note = text::keep_both_ends(&held.message, text::EVENT_NOTE_BYTES);
        let held = event(EventLevel::Warning, &held.reason, format!("Hold{attempt}"), note);
        Some(EventSpec { log: "the run is held until a person acts".to_owned(), ..held })
    }

    /// A person suspended the run, and its worker is gone.
    fn suspended(&self, attempt: i32) -> Option<EventSpec> {
        self.became_true(ConditionType::Suspended)?;
        let log = "the run is suspended and has no pod".to_owned();
        let by =
            self.new.suspend.clone().map(|it| RequestedBy { manager: it.by, user: None, reason: it.reason });
        let note = log.clone() + &attributed("suspended", by.unwrap_or_default());
        let reason = EventReason::Suspended.as_str();
        Some(EventSpec { log, ..event(EventLevel::Normal, reason, format!("Suspend{attempt}"), note) })
    }

    /// A person lifted the suspend of a run that goes on.
    fn resumed(&self, attempt: i32) -> Option<EventSpec> {
        self.old?.suspend.as_ref().filter(|_| self.new.suspend.is_none())?;
        let is_cancelled = self.run.spec.operating_mode == Some(OperatingMode::Cancelled);
        (!is_cancelled && self.new.completion_time.is_none()).then(|| {
            let log = "the run is no longer suspended".to_owned();
            let note = log.clone() + &attributed("resumed", attribution::of_resume(self.run));
            let reason = EventReason::Resumed.as_str();
            EventSpec { log, ..event(EventLevel::Normal, reason, format!("Resume{attempt}"), note) }
        })
    }

    fn run_finished(&self, attempt: i32) -> Option<EventSpec> {
        let finished = self.became_true(ConditionType::Finished)?;
        let failed = self.after(ConditionType::Stalled).is_some();
        let level = if failed { EventLevel::Warning } else { EventLevel::Normal };
        let log = "the run has ended".to_owned();
        let message = match finished.reason == Reason::Cancelled.as_str() {
            true => self.cancelled(&finished.message),
            false => finished.message.clone(),
        };
        let note = format!("{log}. {message}").trim_end().to_owned();
        Some(EventSpec { log, ..event(level, &finished.reason, format!("Finish{attempt}"), note) })
    }

    /// Who cancelled the run, and why, as far as the AgentRun shows.
    fn cancelled(&self, message: &str) -> String {
        let message = if message.is_empty() { "the run was cancelled" } else { message };
        let by = attribution::of(&self.run.metadata, Request::OperatingMode, attribution::observed(self.run));
        message.to_owned() + &attributed("cancelled", by)
    }
}

/// The end of a sentence: the first turn of an attempt. Empty if its agent keeps its own checkpoints.
fn first_turn(attempt: &AttemptStatus, at: &str) -> String {
    attempt.resumed_from_turn.map_or_else(String::new, |turn| format!("{at} turn {}", turn + 1))
}

/// The end of a sentence: who did this, and why, as far as it is known.
fn attributed(done: &str, by: RequestedBy) -> String {
    let RequestedBy { manager, user, reason } = by;
    let manager = user.or(manager).map_or_else(String::new, |it| format!("; {done} by {it}"));
    let reason = reason.map_or_else(String::new, |it| format!("; reason: {it}"));
    manager + &reason
}

fn attempt_ended(end: &AttemptEnd, is_external: bool) -> EventSpec {
    let level = if end.class == Class::Crash { EventLevel::Warning } else { EventLevel::Normal };
    let charged = if end.charged { "charged" } else { "not charged" };
    let message = end.message.as_deref().unwrap_or_default();
    let log = match is_external {
        true => format!("attempt {} ended, {charged}", end.attempt),
        false => {
            format!("attempt {} ended {} and is fenced, {charged}", end.attempt, position(end.turn_at_end))
        }
    };
    let note = format!("{log}. {message}").trim_end().to_owned();
    EventSpec { log, ..event(level, end.cause.as_str(), format!("EndAttempt{}", end.attempt), note) }
}

fn has_status_and_reason(condition: &Condition, status: ConditionStatus, reason: Reason) -> bool {
    has_status(condition, status) && condition.reason == reason.as_str()
}

fn recovery(status: Option<&AgentRunStatus>) -> Option<&RecoveryStatus> {
    status?.recovery.as_ref()
}

fn history(status: Option<&AgentRunStatus>) -> &[AttemptEnd] {
    recovery(status).map(|it| it.history.as_slice()).unwrap_or_default()
}

fn event(level: EventLevel, reason: &str, action: String, note: String) -> EventSpec {
    EventSpec { level, reason: reason.to_owned(), action, log: note.clone(), note }
}
