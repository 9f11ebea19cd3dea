//! How a run ends.

use dalsegno_protocol::FinishOutcome;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::millis;

/// A request to end a run.
#[derive(Clone, Debug)]
pub struct NewFinish {
    /// The outcome.
    pub outcome: RunOutcome,
    /// The reason, one CamelCase word.
    pub reason: String,
    /// A message for people.
    pub message: String,
    /// The result, as JSON text.
    pub output: Option<String>,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RunOutcome {
    /// The agent reached its goal.
    Succeeded,
    /// The agent did not reach its goal.
    Failed,
    /// A person cancelled the run.
    Cancelled,
}

impl From<FinishOutcome> for RunOutcome {
    fn from(outcome: FinishOutcome) -> Self {
        match outcome {
            FinishOutcome::Succeeded => Self::Succeeded,
            FinishOutcome::Failed => Self::Failed,
        }
    }
}

/// How and when a run ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FinishRow {
    /// The outcome.
    pub outcome: RunOutcome,
    /// The reason, one CamelCase word.
    pub reason: String,
    /// A message for people.
    pub message: String,
    /// The result, as JSON text.
    pub output: Option<String>,
    /// When.
    #[serde(with = "millis")]
    pub at: Timestamp,
}
