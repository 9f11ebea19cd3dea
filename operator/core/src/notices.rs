//! What to tell a person, as events: the transitions from the status that stands there to the one that shall.
//!
//! Nothing is told of what was merely attempted, and nothing is lost when an operator dies between a change and its
//! status: whoever writes the status tells.

use dalsegno_crds::{
    AgentRunStatus, AttemptEnd, AttemptStatus, Cause, Class, ConditionType as Is, Reason, RecoveryStatus,
    find_condition,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use crate::{Level, Notice};

/// What to tell when the status changes from `old` to `new`.
pub(crate) fn of(old: Option<&AgentRunStatus>, new: &AgentRunStatus) -> Vec<Notice> {
    let change = Change { old, new };
    let attempt = new.attempt.as_ref();
    let mut notices = change.ended();
    notices.extend(change.budget_reset());
    notices.extend(change.rewound());
    if let Some(attempt) = attempt {
        notices.extend(change.created(attempt));
        notices.extend(change.allowed(attempt));
        notices.extend(change.attached(attempt));
    }
    let number = attempt.map_or(0, |it| it.number);
    notices.extend(change.store_away(number));
    notices.extend(change.held(number));
    notices.extend(change.finished(number));
    notices
}

struct Change<'a> {
    old: Option<&'a AgentRunStatus>,
    new: &'a AgentRunStatus,
}

impl Change<'_> {
    fn before(&self, kind: Is) -> Option<&Condition> {
        find_condition(&self.old?.conditions, kind)
    }

    fn after(&self, kind: Is) -> Option<&Condition> {
        find_condition(&self.new.conditions, kind)
    }

    /// A condition that has become True, or is so for another reason.
    fn became(&self, kind: Is) -> Option<&Condition> {
        let was = self.before(kind).filter(|was| was.status == "True");
        self.after(kind).filter(|now| now.status == "True" && was.is_none_or(|was| was.reason != now.reason))
    }

    fn old_attempt(&self) -> Option<&AttemptStatus> {
        self.old?.attempt.as_ref()
    }

    fn is_another_attempt(&self, attempt: &AttemptStatus) -> bool {
        self.old_attempt().is_none_or(|old| old.number != attempt.number)
    }

    /// Attempts that have ended since, the earliest first. A status that is rebuilt tells no old stories.
    fn ended(&self) -> Vec<Notice> {
        let Some(since) = self.old_attempt() else { return Vec::new() };
        let known = history(self.old);
        let is_new = |end: &&AttemptEnd| {
            end.attempt >= since.number && known.iter().all(|it| it.attempt != end.attempt)
        };
        let of_the_run = |end: &&AttemptEnd| matches!(end.cause, Cause::Finished | Cause::Cancelled);
        let new = history(Some(self.new)).iter().filter(is_new).filter(|it| !of_the_run(it));
        new.rev().map(ended).collect()
    }

    fn budget_reset(&self) -> Option<Notice> {
        let granted = |status: Option<&AgentRunStatus>| recovery(status)?.observed_reset_generation;
        let (was, is) = (granted(self.old)?, granted(Some(self.new))?);
        (is > was).then(|| {
            let note = format!("recovery.resetGeneration {is} grants one fresh budget");
            notice(Level::Normal, "BudgetReset", format!("Reset{is}"), note)
        })
    }

    /// The head went back: a person or a policy wanted it.
    fn rewound(&self) -> Option<Notice> {
        let turn = |status: Option<&AgentRunStatus>| Some(status?.checkpoint.as_ref()?.turn);
        let (was, is) = (turn(self.old)?, turn(Some(self.new))?);
        (is < was).then(|| {
            let note =
                format!("the run went back from turn {was} to turn {is}; the turns between are undone");
            notice(Level::Warning, "Rewound", format!("Rewind{is}"), note)
        })
    }

    fn created(&self, attempt: &AttemptStatus) -> Option<Notice> {
        let pod = attempt.pod_name.as_deref()?;
        let known = self.old_attempt().is_some_and(|old| old.pod_uid == attempt.pod_uid);
        let rebuilt = self.old.is_none() && attempt.number > 1;
        let turn = attempt.resumed_from_turn.unwrap_or_default();
        (!known && !rebuilt).then(|| {
            let note = format!("created pod {pod} to go on after turn {turn}");
            notice(Level::Normal, "WorkerCreated", format!("Create{}", attempt.number), note)
        })
    }

    fn allowed(&self, attempt: &AttemptStatus) -> Option<Notice> {
        let allowed = self.after(Is::VersionCompatible).filter(|it| is(it, "True", Reason::Allowed))?;
        let told = self.before(Is::VersionCompatible).is_some_and(|it| is(it, "True", Reason::Allowed));
        (!told || self.is_another_attempt(attempt)).then(|| {
            notice(
                Level::Warning,
                "VersionAllowed",
                format!("Allow{}", attempt.number),
                allowed.message.clone(),
            )
        })
    }

    /// That a store was away meanwhile makes no attach of what was attached before.
    fn attached(&self, attempt: &AttemptStatus) -> Option<Notice> {
        let ready = self.after(Is::WorkerReady).filter(|it| it.status == "True")?;
        let told = self.before(Is::WorkerReady).is_some_and(|was| was.status != "False");
        let turn = attempt.resumed_from_turn.unwrap_or_default();
        (!told || self.is_another_attempt(attempt)).then(|| {
            let note = format!("attempt {} goes on after turn {turn}", attempt.number);
            notice(Level::Normal, &ready.reason, format!("Attach{}", attempt.number), note)
        })
    }

    /// Told once for each time it is away.
    fn store_away(&self, attempt: i32) -> Option<Notice> {
        let is_away = |it: &&Condition| is(it, "Unknown", Reason::StoreUnavailable);
        let ready = self.after(Is::Ready).filter(is_away)?;
        let told = self.before(Is::Ready).filter(is_away).is_some();
        (!told)
            .then(|| notice(Level::Warning, &ready.reason, format!("Wait{attempt}"), ready.message.clone()))
    }

    fn held(&self, attempt: i32) -> Option<Notice> {
        let held = self.became(Is::Held)?;
        Some(notice(Level::Warning, &held.reason, format!("Hold{attempt}"), held.message.clone()))
    }

    fn finished(&self, attempt: i32) -> Option<Notice> {
        let finished = self.became(Is::Finished)?;
        let failed = self.after(Is::Stalled).is_some();
        let level = if failed { Level::Warning } else { Level::Normal };
        let note = format!("the run is over. {}", finished.message);
        Some(notice(level, &finished.reason, format!("Finish{attempt}"), note.trim_end().to_owned()))
    }
}

fn ended(end: &AttemptEnd) -> Notice {
    let level = if end.class == Class::Crash { Level::Warning } else { Level::Normal };
    let charged = if end.charged { "charged" } else { "not charged" };
    let message = end.message.as_deref().unwrap_or_default();
    let note = format!(
        "attempt {} ended after turn {} and is fenced off, {charged}. {message}",
        end.attempt, end.turn_at_end
    );
    let action = format!("EndAttempt{}", end.attempt);
    notice(level, end.cause.as_str(), action, note.trim_end().to_owned())
}

fn is(condition: &Condition, status: &str, reason: Reason) -> bool {
    condition.status == status && condition.reason == reason.as_str()
}

fn recovery(status: Option<&AgentRunStatus>) -> Option<&RecoveryStatus> {
    status?.recovery.as_ref()
}

fn history(status: Option<&AgentRunStatus>) -> &[AttemptEnd] {
    recovery(status).map(|it| it.history.as_slice()).unwrap_or_default()
}

fn notice(level: Level, reason: &str, action: String, note: String) -> Notice {
    Notice { level, reason: reason.to_owned(), action, note }
}
