//! Short accessors for an AgentRun's status.

use anyhow::Context;
use dalsegno_crds::{AgentRunStatus, AttemptEnd, AttemptStatus, Cause, ConditionType, RecoveryStatus};

use crate::Result;

/// Short accessors for an AgentRun's status.
pub trait StatusExt {
    /// The current attempt; number 0 if there is none yet.
    fn attempt(&self) -> AttemptStatus;
    /// The recovery counters and the history.
    fn recovery(&self) -> RecoveryStatus;
    /// The latest committed turn; 0 if there is none.
    fn turn(&self) -> i32;
    /// Whether a condition is True.
    fn is_true(&self, kind: ConditionType) -> bool;
    /// The reason and the message of a condition; empty if it is absent.
    fn reason_and_message(&self, kind: ConditionType) -> (String, String);
    /// How an attempt ended. Fails if the history does not contain the attempt.
    fn attempt_end(&self, attempt: i32) -> Result<AttemptEnd>;
    /// The causes of the ended attempts, the earliest first.
    fn causes(&self) -> Vec<Cause>;
}

impl StatusExt for AgentRunStatus {
    fn attempt(&self) -> AttemptStatus {
        self.attempt.clone().unwrap_or_default()
    }

    fn recovery(&self) -> RecoveryStatus {
        self.recovery.clone().unwrap_or_default()
    }

    fn turn(&self) -> i32 {
        self.checkpoint.as_ref().map_or(0, |checkpoint| checkpoint.turn)
    }

    fn is_true(&self, kind: ConditionType) -> bool {
        dalsegno_crds::find_condition(&self.conditions, kind)
            .is_some_and(|condition| condition.status == "True")
    }

    fn reason_and_message(&self, kind: ConditionType) -> (String, String) {
        dalsegno_crds::find_condition(&self.conditions, kind)
            .map(|condition| (condition.reason.clone(), condition.message.clone()))
            .unwrap_or_default()
    }

    fn attempt_end(&self, attempt: i32) -> Result<AttemptEnd> {
        let history = self.recovery().history;
        let found = history.iter().find(|end| end.attempt == attempt).cloned();
        found.with_context(|| format!("the history does not contain attempt {attempt}: {history:?}"))
    }

    fn causes(&self) -> Vec<Cause> {
        self.recovery().history.iter().rev().map(|end| end.cause).collect()
    }
}
