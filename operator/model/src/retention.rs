//! What is left of a run: of one that is over, once its time is past; and of its older boundaries, at any time.

use serde::{Deserialize, Serialize};

use crate::{Digest, RunId};

/// How much of a run is kept, and how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Retention {
    /// How many days after its end its payloads stay.
    pub days: i32,
    /// How many of its last boundaries keep their payloads, at least 1; `None`: all.
    pub keep_last: Option<i32>,
}

impl Default for Retention {
    fn default() -> Self {
        Self { days: 30, keep_last: None }
    }
}

/// The start of a run's audit that is dropped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prune {
    /// The run.
    pub run: RunId,
    /// Number of the last row that goes.
    pub seq: i64,
    /// Hash of that row.
    pub hash: Digest,
    /// Who wants it, for the audit.
    pub actor: String,
    /// Why, for the audit.
    pub reason: String,
}

/// What one step of [`crate::Operator::drop_expired`] or [`crate::Operator::drop_old`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dropped {
    /// The run whose payloads were dropped; `None`: there was none left to drop.
    pub run: Option<RunId>,
    /// Rows that were deleted or emptied.
    pub rows: u64,
    /// Whether it was the last step of this run.
    pub done: bool,
}
