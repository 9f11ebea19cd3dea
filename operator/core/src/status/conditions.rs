//! The conditions of an AgentRun. The status fields `summary` and `reason` are derived from the same stage.

use dalsegno_crds::{
    Agent, AgentRun, AgentRunStatus, ConditionStatus, ConditionType, Reason, Summary, names,
};
use dalsegno_model::{AttemptState, RunRecord, Verdict};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use super::builder::ConditionsBuilder;
use super::mirror::{attempts, time};
use crate::observed::{Observed, ObservedPod};
use crate::pod::annotation;
use crate::recovery::{Hold, describe_last_end, describe_recovery, recovery_reason};
use crate::remedy::{self, HeldRun};
use crate::rewind;
use crate::run_stage::{RunStage, current_suspend, end_of, ready_until, waiting_reason};
use crate::text;

/// What a status is computed from.
pub(crate) struct StatusInput<'a> {
    /// The AgentRun, with its current status.
    pub run: &'a AgentRun,
    /// The store's row, if the store is consistent.
    pub row: Option<&'a RunRecord>,
    /// What was observed.
    pub observed: &'a Observed,
    /// The current attempt's pod, if it was seen.
    pub pod: Option<&'a ObservedPod>,
    /// The stage of the run.
    pub stage: &'a RunStage,
    /// The time, by the operator's clock.
    pub now: Timestamp,
}

/// Computes the new conditions.
pub(super) fn of(input: &StatusInput<'_>) -> Vec<Condition> {
    let StatusInput { run, row, observed, pod, stage, now } = *input;
    let none = AgentRunStatus::default();
    let old = run.status.as_ref().unwrap_or(&none);
    let mut builder = ConditionsBuilder { old, new: Vec::new(), generation: run.metadata.generation, now };
    let calls = observed.calls_to_settle.as_deref().unwrap_or_default();
    let is_external = observed.agent().is_some_and(Agent::is_external);
    let remedy =
        |hold: &Hold| remedy::describe(hold, HeldRun { run, row, calls, is_external }, &observed.cli);
    match (stage, row) {
        (RunStage::StoreUnavailable(error), _) => builder.store_unavailable(error),
        (RunStage::Held(hold), None) => builder.held_without_row(hold, &remedy(hold)),
        (_, None) => {}
        (_, Some(row)) => {
            builder.end(row);
            builder.worker_ready(row, stage);
            builder.checkpoint(row, stage);
            builder.version(row, pod, stage);
            builder.suspended(row, stage);
            builder.waiting(row, stage);
            builder.rewound(run, row);
            match stage {
                RunStage::Held(hold) => builder.held(hold, &remedy(hold)),
                _ => builder.control(row, stage),
            }
        }
    }
    builder.new
}

impl ConditionsBuilder<'_> {
    /// The store is unavailable: Ready becomes Unknown, and the other conditions are kept.
    fn store_unavailable(&mut self, error: &str) {
        for kind in [
            ConditionType::Finished,
            ConditionType::Succeeded,
            ConditionType::WorkerReady,
            ConditionType::CheckpointAvailable,
        ] {
            self.keep(kind, Reason::StoreUnavailable);
        }
        self.keep(ConditionType::VersionCompatible, Reason::StoreUnavailable);
        self.keep(ConditionType::Held, Reason::StoreUnavailable);
        let message = format!("{error}; no pod is replaced and nothing is charged in the meantime");
        self.set_once(ConditionType::Ready, ConditionStatus::Unknown, Reason::StoreUnavailable, &message);
        let optional = [
            ConditionType::Suspended,
            ConditionType::Waiting,
            ConditionType::Rewound,
            ConditionType::Reconciling,
        ];
        for kind in optional {
            let before = self.before(kind).cloned();
            self.new.extend(before);
        }
    }

    /// The run is held and has no row, because the store is not consistent or the run was not created in it.
    fn held_without_row(&mut self, hold: &Hold, remedy: &str) {
        self.set(ConditionType::Finished, false, Reason::Running, "");
        self.set(ConditionType::Succeeded, ConditionStatus::Unknown, Reason::Running, "");
        if matches!(hold.reason, Reason::AgentNotFound | Reason::Malformed | Reason::NotSupported) {
            self.set(ConditionType::WorkerReady, false, Reason::NoWorker, "");
            self.set(ConditionType::CheckpointAvailable, false, Reason::NothingCommitted, "");
            self.set(ConditionType::VersionCompatible, ConditionStatus::Unknown, Reason::NotYetKnown, "");
        } else {
            self.set(ConditionType::WorkerReady, ConditionStatus::Unknown, hold.reason, "");
            self.keep(ConditionType::CheckpointAvailable, hold.reason);
            self.keep(ConditionType::VersionCompatible, hold.reason);
        }
        for kind in [ConditionType::Suspended, ConditionType::Waiting] {
            if self.before(kind).is_some() {
                self.set(kind, false, Reason::Held, "");
            }
        }
        let rewound = self.before(ConditionType::Rewound).cloned();
        self.new.extend(rewound);
        self.held(hold, remedy);
    }

    fn end(&mut self, row: &RunRecord) {
        let Some(finish) = &row.finish else {
            self.set(ConditionType::Finished, false, Reason::Running, "");
            return self.set(ConditionType::Succeeded, ConditionStatus::Unknown, Reason::Running, "");
        };
        let (summary, reason) = end_of(row);
        self.set(ConditionType::Finished, true, reason, &finish.message);
        self.set(ConditionType::Succeeded, summary == Summary::Succeeded, reason, &finish.message);
    }

    /// Present only while a person has suspended the run.
    fn suspended(&mut self, row: &RunRecord, stage: &RunStage) {
        if current_suspend(row).is_none() {
            return;
        }
        match stage {
            RunStage::Suspended => self.set(ConditionType::Suspended, true, Reason::Suspended, ""),
            RunStage::Held(_) => self.set(ConditionType::Suspended, false, Reason::Held, ""),
            _ => self.set(ConditionType::Suspended, false, Reason::Suspending, ""),
        }
    }

    /// Present only while the run is parked on waits.
    fn waiting(&mut self, row: &RunRecord, stage: &RunStage) {
        if row.park.is_none() || row.finish.is_some() {
            return;
        }
        match stage {
            RunStage::Held(_) => self.set(ConditionType::Waiting, false, Reason::Held, ""),
            RunStage::Suspended => self.set(ConditionType::Waiting, false, Reason::Suspended, ""),
            _ => self.set(ConditionType::Waiting, true, waiting_reason(row), ""),
        }
    }

    /// Present once a rewind was requested.
    fn rewound(&mut self, run: &AgentRun, row: &RunRecord) {
        if let Some(rewind::Outcome { is_done, reason, message }) = rewind::outcome(run, row) {
            self.set(ConditionType::Rewound, is_done, reason, &message);
        }
    }

    fn worker_ready(&mut self, row: &RunRecord, stage: &RunStage) {
        match stage {
            RunStage::Running if row.is_external => {
                self.set(ConditionType::WorkerReady, true, Reason::Started, "");
            }
            RunStage::Running => self.set(ConditionType::WorkerReady, true, Reason::Attached, ""),
            // The worker of an agent that keeps its own checkpoints may run while the run is held.
            RunStage::Held(hold) if hold.reason == Reason::EndNotConfirmed => {
                self.set(ConditionType::WorkerReady, ConditionStatus::Unknown, hold.reason, "");
            }
            RunStage::Held(hold)
                if hold.reason == Reason::NotSupported && row.attempt.state == AttemptState::Attached =>
            {
                self.set(ConditionType::WorkerReady, true, Reason::Started, "");
            }
            RunStage::Starting(reason, message)
                if has_varying_message(*reason) && self.is_same_attempt(row) =>
            {
                self.set_once(ConditionType::WorkerReady, false, *reason, message);
            }
            RunStage::Starting(reason, message) => {
                self.set(ConditionType::WorkerReady, false, *reason, message)
            }
            RunStage::Queued(position) => {
                self.set(ConditionType::WorkerReady, false, Reason::Queued, &waits_in_queue(*position));
            }
            RunStage::Forking => self.set(ConditionType::WorkerReady, false, Reason::Forking, ""),
            RunStage::BackingOff(at) => {
                self.set(ConditionType::WorkerReady, false, Reason::BackingOff, &waits_until(row, *at));
            }
            RunStage::Held(_)
            | RunStage::Suspended
            | RunStage::Waiting
            | RunStage::Terminal
            | RunStage::StoreUnavailable(_)
            | RunStage::OrphanedTerminal
            | RunStage::EffectsPending
            | RunStage::StartInProgress => self.set(ConditionType::WorkerReady, false, Reason::NoWorker, ""),
        }
    }

    fn checkpoint(&mut self, row: &RunRecord, stage: &RunStage) {
        if let RunStage::Held(hold) = stage
            && hold.reason == Reason::CheckpointCorrupt
        {
            return self.set(ConditionType::CheckpointAvailable, false, hold.reason, &hold.message);
        }
        match &row.head {
            None if row.is_external => {
                let unknown = ConditionStatus::Unknown;
                self.set(ConditionType::CheckpointAvailable, unknown, Reason::KeptByAgent, "");
            }
            Some(head) => {
                self.set(
                    ConditionType::CheckpointAvailable,
                    true,
                    Reason::Committed,
                    &format!("turn {}", head.turn),
                );
            }
            None => self.set(ConditionType::CheckpointAvailable, false, Reason::NothingCommitted, ""),
        }
    }

    fn version(&mut self, row: &RunRecord, pod: Option<&ObservedPod>, stage: &RunStage) {
        let kind = ConditionType::VersionCompatible;
        if let RunStage::Held(hold) = stage
            && hold.reason == Reason::VersionBlocked
        {
            return self.set(kind, false, Reason::Mismatch, &hold.message);
        }
        let Some(identity) = &row.attempt.identity else {
            return self.set(kind, ConditionStatus::Unknown, Reason::NotYetKnown, "");
        };
        let (remark, digest) = (&identity.remark, &identity.image_digest);
        match identity.verdict {
            Verdict::Refused => self.set(kind, false, Reason::Mismatch, remark),
            Verdict::Allowed => self.set(kind, true, Reason::Allowed, remark),
            Verdict::Accepted if self.is_pinned(row, pod) => {
                let message = format!("the run continues with the image that wrote its checkpoint, {digest}");
                self.set(kind, true, Reason::Pinned, &message);
            }
            Verdict::Accepted if remark.is_empty() => self.set(kind, true, Reason::Same, ""),
            Verdict::Accepted => self.set(kind, true, Reason::Compatible, remark),
        }
    }

    /// Whether the current attempt is pinned to an older template. The pod's annotation says so, or, after the pod is
    /// gone, the old status.
    fn is_pinned(&self, row: &RunRecord, pod: Option<&ObservedPod>) -> bool {
        let was_pinned = || {
            let before = self.before(ConditionType::VersionCompatible);
            before.is_some_and(|it| it.reason == Reason::Pinned.as_str())
        };
        match pod {
            Some(seen) => annotation(&seen.pod, names::ANNOTATION_PINNED).is_some(),
            None => self.is_same_attempt(row) && was_pinned(),
        }
    }

    /// Held, Ready, Reconciling and Stalled of a run that is not held: whether it is under control.
    fn control(&mut self, row: &RunRecord, stage: &RunStage) {
        match stage {
            RunStage::Terminal => return self.terminal(row),
            _ => self.set(ConditionType::Held, false, Reason::NotHeld, ""),
        }
        if matches!(stage, RunStage::Running | RunStage::Suspended | RunStage::Waiting) {
            let (_, reason) = stage.summary_and_reason(Some(row), self.old);
            return self.set(ConditionType::Ready, true, reason, "");
        }
        let why = recovery_reason(row);
        if self.was_attached(row) {
            return self.recovering(row, stage);
        }
        let (reason, message) = match (stage, why) {
            (RunStage::Starting(Reason::Starting, message), Some(why)) => {
                (why, describe_recovery(row, &format!("is starting: {message}")))
            }
            (RunStage::Starting(reason, message), _) => (*reason, message.clone()),
            (RunStage::Queued(position), _) => (Reason::Queued, waits_in_queue(*position)),
            (RunStage::Forking, _) => (Reason::Forking, String::new()),
            (RunStage::BackingOff(at), why) => (why.unwrap_or(Reason::BackingOff), waits_until(row, *at)),
            _ => (Reason::BackingOff, describe_last_end(row)),
        };
        for (kind, status) in [(ConditionType::Ready, false), (ConditionType::Reconciling, true)] {
            if has_varying_message(reason) && self.is_same_attempt(row) {
                self.set_once(kind, status, reason, &message);
            } else {
                self.set(kind, status, reason, &message);
            }
        }
    }

    /// Ready of a run that has had a worker. It stays True while the next worker is on its way, but not for long, and not
    /// while the next worker cannot start.
    fn recovering(&mut self, row: &RunRecord, stage: &RunStage) {
        let is_late = ready_until(row).is_some_and(|until| row.now >= until);
        let why = recovery_reason(row).unwrap_or(Reason::Recovering);
        match stage {
            RunStage::Starting(reason @ (Reason::ImagePullFailed | Reason::PodRefused), message) => {
                let message = describe_recovery(row, &format!("cannot start: {message}"));
                self.set_once(ConditionType::Ready, false, *reason, &message);
            }
            RunStage::Starting(Reason::Starting, _) => {
                self.set(ConditionType::Ready, !is_late, why, &describe_recovery(row, "is starting"));
            }
            RunStage::Starting(reason, message) => {
                let message = describe_recovery(row, &format!("waits: {message}"));
                self.set_once(ConditionType::Ready, !is_late, if is_late { *reason } else { why }, &message);
            }
            RunStage::BackingOff(at) => self.set(ConditionType::Ready, !is_late, why, &waits_until(row, *at)),
            _ => self.set(ConditionType::Ready, !is_late, why, &describe_recovery(row, "is starting")),
        }
    }

    /// Held, Ready and Stalled of a run that is held. Only Held has the long message.
    fn held(&mut self, hold: &Hold, remedy: &str) {
        let what = text::keep_start(&hold.message, text::CONDITION_MESSAGE_BYTES / 2);
        let next =
            hold.retry_at.map_or_else(String::new, |at| format!(" The next try is at {}.", time(at).0));
        let message = format!("{}.{next} {remedy}", what.trim_end_matches('.'));
        self.set(ConditionType::Held, true, hold.reason, &message);
        let short = format!("held: {}. The condition Held says why, and what to do", hold.reason);
        self.set(ConditionType::Ready, false, Reason::Held, &short);
        self.set(ConditionType::Stalled, true, hold.reason, &short);
    }

    fn terminal(&mut self, row: &RunRecord) {
        let message = row.finish.as_ref().map_or("", |it| it.message.as_str());
        let (summary, _) = end_of(row);
        let (ready, reason) = match summary {
            Summary::Succeeded => (true, Reason::Succeeded),
            Summary::Cancelled => (true, Reason::Cancelled),
            _ => (false, Reason::Failed),
        };
        self.set(ConditionType::Held, false, Reason::NotHeld, "");
        self.set(ConditionType::Ready, ready, reason, message);
        if !ready {
            self.set(ConditionType::Stalled, true, reason, message);
        }
    }

    /// Whether a worker has attached under this generation of the spec. From then on the run is recovering, and no
    /// longer reconciling the spec.
    fn was_attached(&self, row: &RunRecord) -> bool {
        let since = self.before(ConditionType::Reconciling).map(|it| it.last_transition_time.0);
        // A generation that was not observed yet is reconciled from now on. The store's clock may be ahead of this one.
        let is_new = self.old.observed_generation != self.generation;
        let since = since.or_else(|| is_new.then_some(time(self.now).0));
        attempts(row).filter_map(|it| it.attached_at).any(|at| since.is_none_or(|since| at >= since))
    }

    fn is_same_attempt(&self, row: &RunRecord) -> bool {
        self.old.attempt.as_ref().is_some_and(|it| it.number == row.attempt.number)
    }
}

/// Whether the message of one cause differs from try to try: the kubelet alternates between several messages for one
/// failed pull, the scheduler counts the nodes, a quota counts what is used. Only the first message is written.
fn has_varying_message(reason: Reason) -> bool {
    matches!(
        reason,
        Reason::ImagePullFailed | Reason::Unschedulable | Reason::QuotaExceeded | Reason::PodRefused
    )
}

fn waits_in_queue(position: i32) -> String {
    format!("{} runs of this AgentDefinition start before it", position.saturating_sub(1))
}

/// Describes the end of the last attempt, and when the next one starts.
fn waits_until(row: &RunRecord, at: Timestamp) -> String {
    describe_recovery(row, &format!("starts at {}", time(at).0))
}
