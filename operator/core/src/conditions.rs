//! The conditions of an AgentRun: the truth that `summary` and `reason` are derived from.

use dalsegno_crds::{
    AgentRun, AgentRunStatus, ConditionType as Is, Reason, Summary, Truth, condition, find_condition, names,
};
use dalsegno_model::{RunRecord, Verdict};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use crate::PodSight;
use crate::pod::annotation;
use crate::recovery::{Hold, cause_of_recovery, last_end, told_with_next};
use crate::situation::{Situation, end_of};
use crate::status::{attempts, time};
use crate::text;

/// The conditions as they shall be. `row` is the store's, if it is trusted; `pod` the current attempt's.
pub(crate) fn of(
    run: &AgentRun,
    row: Option<&RunRecord>,
    pod: Option<&PodSight>,
    situation: &Situation,
    now: Timestamp,
) -> Vec<Condition> {
    let none = AgentRunStatus::default();
    let old = run.status.as_ref().unwrap_or(&none);
    let mut to = Conditions { old, new: Vec::new(), generation: run.metadata.generation, now };
    match (situation, row) {
        (Situation::StoreUnknown(why), _) => to.store_unknown(why),
        (Situation::Held(hold), None) => to.held_unread(hold),
        (_, None) => {}
        (_, Some(row)) => {
            to.end(row);
            to.worker_ready(row, situation);
            to.checkpoint(row, situation);
            to.version(row, pod, situation);
            to.control(row, situation);
        }
    }
    to.new
}

/// Conditions in the making.
struct Conditions<'a> {
    old: &'a AgentRunStatus,
    new: Vec<Condition>,
    generation: Option<i64>,
    now: Timestamp,
}

impl Conditions<'_> {
    /// Sets a condition, keeping the time if its status did not change.
    fn set(&mut self, kind: Is, is: impl Into<Truth>, reason: Reason, message: &str) {
        let message = text::head(message, text::CONDITION_BYTES);
        let mut new = condition(kind, is, reason, message, self.generation, time(self.now));
        if let Some(old) = self.before(kind).filter(|old| old.status == new.status) {
            new.last_transition_time = old.last_transition_time.clone();
        }
        self.new.push(new);
    }

    /// Sets a condition whose message varies while nothing changes: the first one stands.
    fn set_once(&mut self, kind: Is, is: impl Into<Truth>, reason: Reason, message: &str) {
        let is = is.into();
        let before =
            self.before(kind).filter(|old| old.status == is.as_str() && old.reason == reason.as_str());
        let message = before.map_or_else(|| message.to_owned(), |old| old.message.clone());
        self.set(kind, is, reason, &message);
    }

    /// Leaves a condition as it is.
    fn keep(&mut self, kind: Is, unless: Reason) {
        match self.before(kind).cloned() {
            Some(old) => self.new.push(old),
            None => self.set(kind, Truth::Unknown, unless, ""),
        }
    }

    fn before(&self, kind: Is) -> Option<&Condition> {
        find_condition(&self.old.conditions, kind)
    }

    /// Nothing is known for certain, and one condition says so.
    fn store_unknown(&mut self, why: &str) {
        for kind in [Is::Finished, Is::Succeeded, Is::WorkerReady, Is::CheckpointAvailable] {
            self.keep(kind, Reason::StoreUnavailable);
        }
        self.keep(Is::VersionCompatible, Reason::StoreUnavailable);
        self.keep(Is::Held, Reason::StoreUnavailable);
        let message = format!("{why}; nothing is replaced and nothing is charged meanwhile");
        self.set_once(Is::Ready, Truth::Unknown, Reason::StoreUnavailable, &message);
        let reconciling = self.before(Is::Reconciling).cloned();
        self.new.extend(reconciling);
    }

    /// Held, and there is no row to tell of: it is not trusted, or the run was not taken up.
    fn held_unread(&mut self, hold: &Hold) {
        self.set(Is::Finished, false, Reason::Running, "");
        self.set(Is::Succeeded, Truth::Unknown, Reason::Running, "");
        if matches!(hold.reason, Reason::AgentNotFound | Reason::Malformed) {
            self.set(Is::WorkerReady, false, Reason::NoWorker, "");
            self.set(Is::CheckpointAvailable, false, Reason::NothingCommitted, "");
            self.set(Is::VersionCompatible, Truth::Unknown, Reason::NotYetKnown, "");
        } else {
            self.set(Is::WorkerReady, Truth::Unknown, hold.reason, "");
            self.keep(Is::CheckpointAvailable, hold.reason);
            self.keep(Is::VersionCompatible, hold.reason);
        }
        self.held(hold);
    }

    fn end(&mut self, row: &RunRecord) {
        let Some(finish) = &row.finish else {
            self.set(Is::Finished, false, Reason::Running, "");
            return self.set(Is::Succeeded, Truth::Unknown, Reason::Running, "");
        };
        let (summary, reason) = end_of(row);
        self.set(Is::Finished, true, reason, &finish.message);
        self.set(Is::Succeeded, summary == Summary::Succeeded, reason, &finish.message);
    }

    fn worker_ready(&mut self, row: &RunRecord, situation: &Situation) {
        match situation {
            Situation::Running => self.set(Is::WorkerReady, true, Reason::Attached, ""),
            // The kubelet tells of one failed pull in several ways, in turn.
            Situation::Starting(Reason::ImagePullFailed, message) if self.is_same_attempt(row) => {
                self.set_once(Is::WorkerReady, false, Reason::ImagePullFailed, message);
            }
            Situation::Starting(reason, message) => self.set(Is::WorkerReady, false, *reason, message),
            Situation::BackingOff(at) => {
                self.set(Is::WorkerReady, false, Reason::BackingOff, &waits_until(row, *at));
            }
            Situation::Held(_)
            | Situation::Over
            | Situation::StoreUnknown(_)
            | Situation::Closed
            | Situation::Changing
            | Situation::UnderWay => self.set(Is::WorkerReady, false, Reason::NoWorker, ""),
        }
    }

    fn checkpoint(&mut self, row: &RunRecord, situation: &Situation) {
        if let Situation::Held(hold) = situation
            && hold.reason == Reason::CheckpointCorrupt
        {
            return self.set(Is::CheckpointAvailable, false, hold.reason, &hold.message);
        }
        match &row.head {
            Some(head) => {
                self.set(Is::CheckpointAvailable, true, Reason::Committed, &format!("turn {}", head.turn));
            }
            None => self.set(Is::CheckpointAvailable, false, Reason::NothingCommitted, ""),
        }
    }

    fn version(&mut self, row: &RunRecord, pod: Option<&PodSight>, situation: &Situation) {
        let kind = Is::VersionCompatible;
        if let Situation::Held(hold) = situation
            && hold.reason == Reason::VersionBlocked
        {
            return self.set(kind, false, Reason::Mismatch, &hold.message);
        }
        let Some(identity) = &row.attempt.identity else {
            return self.set(kind, Truth::Unknown, Reason::NotYetKnown, "");
        };
        let (remark, digest) = (&identity.remark, &identity.image_digest);
        match identity.verdict {
            Verdict::Refused => self.set(kind, false, Reason::Mismatch, remark),
            Verdict::Allowed => self.set(kind, true, Reason::Allowed, remark),
            Verdict::Accepted if self.is_pinned(row, pod) => {
                let message = format!("the run goes on with the image that wrote its checkpoint, {digest}");
                self.set(kind, true, Reason::Pinned, &message);
            }
            Verdict::Accepted if remark.is_empty() => self.set(kind, true, Reason::Same, ""),
            Verdict::Accepted => self.set(kind, true, Reason::Compatible, remark),
        }
    }

    /// Whether the current attempt's pod was made from an older template on purpose. Its annotation says so; once it
    /// is gone, what was told of it does.
    fn is_pinned(&self, row: &RunRecord, pod: Option<&PodSight>) -> bool {
        let told =
            || self.before(Is::VersionCompatible).is_some_and(|it| it.reason == Reason::Pinned.as_str());
        match pod {
            Some(seen) => annotation(&seen.pod, names::ANNOTATION_PINNED).is_some(),
            None => self.is_same_attempt(row) && told(),
        }
    }

    /// Held, Ready, Reconciling, Stalled: whether the run is under control, and whether a person is needed.
    fn control(&mut self, row: &RunRecord, situation: &Situation) {
        match situation {
            Situation::Held(hold) => return self.held(hold),
            Situation::Over => return self.over(row),
            _ => self.set(Is::Held, false, Reason::NotHeld, ""),
        }
        if matches!(situation, Situation::Running) {
            let (_, reason) = situation.headline(Some(row), self.old);
            return self.set(Is::Ready, true, reason, "");
        }
        let why = cause_of_recovery(row);
        if self.was_attached(row) {
            let message = match situation {
                Situation::BackingOff(at) => waits_until(row, *at),
                _ => told_with_next(row, "is starting"),
            };
            return self.set(Is::Ready, true, why.unwrap_or(Reason::Recovering), &message);
        }
        let (reason, message) = match (situation, why) {
            (Situation::Starting(Reason::Starting, message), Some(why)) => {
                (why, told_with_next(row, &format!("is starting: {message}")))
            }
            (Situation::Starting(reason, message), _) => (*reason, message.clone()),
            (Situation::BackingOff(at), why) => (why.unwrap_or(Reason::BackingOff), waits_until(row, *at)),
            _ => (Reason::BackingOff, last_end(row)),
        };
        for (kind, is) in [(Is::Ready, false), (Is::Reconciling, true)] {
            if reason == Reason::ImagePullFailed && self.is_same_attempt(row) {
                self.set_once(kind, is, reason, &message);
            } else {
                self.set(kind, is, reason, &message);
            }
        }
    }

    fn held(&mut self, hold: &Hold) {
        let what = text::head(&hold.message, text::CONDITION_BYTES / 2);
        let message = format!("{}. {}", what.trim_end_matches('.'), hold.reason.way_out());
        self.set(Is::Held, true, hold.reason, &message);
        self.set(Is::Ready, false, Reason::Held, &message);
        self.set(Is::Stalled, true, hold.reason, &message);
    }

    fn over(&mut self, row: &RunRecord) {
        let message = row.finish.as_ref().map_or("", |it| it.message.as_str());
        let (summary, _) = end_of(row);
        let (ready, reason) = match summary {
            Summary::Succeeded => (true, Reason::Succeeded),
            Summary::Cancelled => (true, Reason::Cancelled),
            _ => (false, Reason::Failed),
        };
        self.set(Is::Held, false, Reason::NotHeld, "");
        self.set(Is::Ready, ready, reason, message);
        if !ready {
            self.set(Is::Stalled, true, reason, message);
        }
    }

    /// Whether a worker has attached under this generation of the spec: from then on the run is recovering, and no
    /// longer on its way to what was asked for.
    fn was_attached(&self, row: &RunRecord) -> bool {
        let asked_since = self.before(Is::Reconciling).map(|it| it.last_transition_time.0);
        let mut attached = attempts(row).filter_map(|it| it.attached_at);
        self.old.observed_generation == self.generation
            && attached.any(|at| asked_since.is_none_or(|since| at >= since))
    }

    fn is_same_attempt(&self, row: &RunRecord) -> bool {
        self.old.attempt.as_ref().is_some_and(|it| it.number == row.attempt.number)
    }
}

/// What happened, and when the next attempt is due.
fn waits_until(row: &RunRecord, at: Timestamp) -> String {
    told_with_next(row, &format!("starts at {}", time(at).0))
}
