//! Sets the conditions of a status, with the rules for times and messages that do not change without reason.

use dalsegno_crds::{
    AgentRunStatus, ConditionStatus, ConditionType, Reason, condition, find_condition, has_status,
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use super::mirror::time;
use crate::text;

/// Builds the new conditions from the old status.
pub(super) struct ConditionsBuilder<'a> {
    /// The old status.
    pub old: &'a AgentRunStatus,
    /// The new conditions.
    pub new: Vec<Condition>,
    /// Generation of the spec.
    pub generation: Option<i64>,
    /// The time, by the operator's clock.
    pub now: Timestamp,
}

impl ConditionsBuilder<'_> {
    /// Sets a condition. Keeps the time of the last transition if the status did not change.
    #[expect(clippy::too_many_arguments, reason = "the four parts of a condition")]
    pub fn set(
        &mut self,
        kind: ConditionType,
        status: impl Into<ConditionStatus>,
        reason: Reason,
        message: &str,
    ) {
        let mut new = Condition {
            message: text::keep_start(message, text::CONDITION_MESSAGE_BYTES),
            observed_generation: self.generation,
            ..condition(kind, status, reason, time(self.now))
        };
        if let Some(old) = self.before(kind).filter(|old| old.status == new.status) {
            new.last_transition_time = old.last_transition_time.clone();
        }
        self.new.push(new);
    }

    /// Sets a condition whose message may vary although nothing changed. Keeps the first message.
    #[expect(clippy::too_many_arguments, reason = "the four parts of a condition")]
    pub fn set_once(
        &mut self,
        kind: ConditionType,
        status: impl Into<ConditionStatus>,
        reason: Reason,
        message: &str,
    ) {
        let status = status.into();
        let before = self.before(kind).filter(|old| has_status(old, status) && old.reason == reason.as_str());
        let message = before.map_or_else(|| message.to_owned(), |old| old.message.clone());
        self.set(kind, status, reason, &message);
    }

    /// Keeps a condition. If it was not set before, it becomes Unknown with this reason.
    pub fn keep(&mut self, kind: ConditionType, reason_if_unset: Reason) {
        match self.before(kind).cloned() {
            Some(old) => self.new.push(old),
            None => self.set(kind, ConditionStatus::Unknown, reason_if_unset, ""),
        }
    }

    /// The condition of this type in the old status.
    pub fn before(&self, kind: ConditionType) -> Option<&Condition> {
        find_condition(&self.old.conditions, kind)
    }
}
