//! What the rules of a decision take and return.

use std::time::Duration;

use dalsegno_crds::{AgentRun, Reason, names};
use dalsegno_model::{Identity, NextStep, RunRecord};
use jiff::{SignedDuration, Timestamp};

use crate::decision::Effect;
use crate::end::End;
use crate::observed::{Observed, ObservedAgent, ObservedPod};
use crate::pod::annotation;
use crate::recovery::Hold;
use crate::revision::ImageDigest;
use crate::run_stage::RunStage;
use crate::settings::Settings;
use crate::version::{self, WorkerImage};

/// Delay until an unavailable store is tried again.
pub(super) const STORE_RETRY: Duration = Duration::from_secs(3);
/// Interval for rechecking what no watch reports: a missing definition, an inconsistent store, a prior run.
pub const RECHECK_INTERVAL: Duration = Duration::from_secs(60);
/// Added to every computed delay, so that rounding to milliseconds never wakes the operator before a deadline.
pub(super) const WAKE_MARGIN: SignedDuration = SignedDuration::from_millis(50);

/// What the rules for a run with a row need.
#[derive(Clone, Copy)]
pub(super) struct Context<'a> {
    pub run: &'a AgentRun,
    pub observed: &'a Observed,
    pub row: &'a RunRecord,
    pub settings: &'a Settings,
    /// The time, by the operator's clock.
    pub now: Timestamp,
}

impl Context<'_> {
    /// Checks whether the image with this digest in the pod may resume the checkpoint.
    pub fn check_image(&self, seen: &ObservedPod, digest: ImageDigest<'_>) -> Option<Identity> {
        let declared_version = annotation(&seen.pod, names::ANNOTATION_AGENT_VERSION);
        let image = WorkerImage { declared_version, digest };
        version::check_image(self.row, self.observed.agent(), self.settings.on_mismatch, image)
    }
}

/// The effects of a decision, and the stage of the run.
pub(super) struct Plan {
    pub effects: Vec<Effect>,
    pub stage: RunStage,
    pub requeue: Option<Duration>,
}

impl Plan {
    /// Nothing to do.
    pub fn wait(stage: RunStage) -> Self {
        Self { effects: Vec::new(), stage, requeue: None }
    }

    /// One effect. The next decision depends on its result.
    pub fn act(effect: Effect) -> Self {
        Self { effects: vec![effect], stage: RunStage::EffectsPending, requeue: None }
    }

    /// A person must act.
    pub fn hold(hold: Hold) -> Self {
        Self::wait(RunStage::Held(hold))
    }

    /// The run is held until a person acts, or until the hold ends by itself.
    pub fn hold_or_wait(row: &RunRecord, hold: Hold) -> Self {
        match hold.retry_at {
            Some(at) => Self::hold(hold).requeue_when_left(at.duration_since(row.now)),
            None => Self::hold(hold),
        }
    }

    /// The current attempt has ended.
    pub fn end(row: &RunRecord, end: End, then: NextStep) -> Self {
        Self::act(Effect::EndAttempt { run: row.id, ending: end.into_ending(row.attempt.number), then })
    }

    /// Adds to the end of an attempt how long its worker ran.
    pub fn with_time_of_worker(mut self, ran: Option<SignedDuration>) -> Self {
        for effect in &mut self.effects {
            if let Effect::EndAttempt { ending, .. } = effect {
                ending.ran = ran;
            }
        }
        self
    }

    pub fn requeue_after(self, delay: Duration) -> Self {
        Self { requeue: Some(delay), ..self }
    }

    /// Requeues when this time has passed, or earlier if the plan wants that.
    pub fn requeue_at_latest(self, left: SignedDuration) -> Self {
        let before = self.requeue;
        let plan = self.requeue_when_left(left);
        Self { requeue: plan.requeue.into_iter().chain(before).min(), ..plan }
    }

    /// Requeues when this time has passed by the store's clock.
    pub fn requeue_when_left(self, left: SignedDuration) -> Self {
        self.requeue_after(Duration::try_from(left + WAKE_MARGIN).unwrap_or(STORE_RETRY))
    }
}

/// The hold of a run whose AgentDefinition is missing or cannot be parsed.
pub(super) fn missing_agent(run: &AgentRun, observed: &Observed) -> Hold {
    let name = run.spec.agent_ref.as_ref().map_or("", |it| it.name.as_str());
    match &observed.agent {
        ObservedAgent::Malformed(error) => {
            Hold::new(Reason::Malformed, format!("the AgentDefinition {name:?} cannot be parsed: {error}"))
        }
        ObservedAgent::NotFound | ObservedAgent::Found { .. } => Hold::new(
            Reason::AgentNotFound,
            format!("there is no AgentDefinition named {name:?} in this namespace"),
        ),
    }
}
