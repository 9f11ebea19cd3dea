//! How a run ends.

use dalsegno_protocol::FinishOutcome;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::millis;

/// The end of a run.
#[derive(Clone, Debug)]
pub struct NewFinish {
    /// Which.
    pub outcome: RunOutcome,
    /// One CamelCase word.
    pub reason: String,
    /// For people.
    pub message: String,
    /// The result, as JSON text.
    pub output: Option<String>,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RunOutcome {
    /// The agent reached its goal.
    Succeeded,
    /// It did not.
    Failed,
    /// A person did not want it any more.
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
    /// Which end.
    pub outcome: RunOutcome,
    /// One CamelCase word.
    pub reason: String,
    /// For people.
    pub message: String,
    /// The result, as JSON text.
    pub output: Option<String>,
    /// When.
    #[serde(with = "millis")]
    pub at: Timestamp,
}
