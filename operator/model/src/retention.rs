//! How long the data of a run is kept: all of it after the run's end, and the payloads of older boundaries at any
//! time. And how much the store holds for each namespace.

use serde::{Deserialize, Serialize};

use crate::{Digest, RunId, SNAPSHOT_DUE};

/// How the payloads of a run are stored, how much of them is kept, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Retention {
    /// Days that the payloads are kept after the run's end.
    pub days: i32,
    /// The number of last boundaries whose payloads are kept, at least 1; `None` to keep all.
    pub keep_last: Option<i32>,
    /// A snapshot is due this many boundaries after the last one; `None`: [`crate::SNAPSHOT_DUE`].
    #[serde(default)]
    pub snapshot_every: Option<i32>,
}

impl Retention {
    /// The number of boundaries after which a snapshot is due.
    pub fn snapshot_due(&self) -> i32 {
        self.snapshot_every.unwrap_or(SNAPSHOT_DUE)
    }
}

impl Default for Retention {
    fn default() -> Self {
        Self { days: 30, keep_last: None, snapshot_every: None }
    }
}

/// A request to prune the first rows of a run's audit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prune {
    /// The run.
    pub run: RunId,
    /// Number of the last row to prune.
    pub seq: i64,
    /// Hash of that row.
    pub hash: Digest,
    /// Who requested it, for the audit.
    pub actor: String,
    /// Why, for the audit.
    pub reason: String,
}

/// The result of one step of [`crate::Operator::expire`] or [`crate::Operator::compact`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dropped {
    /// The run whose payloads were dropped; `None` if there was nothing to drop.
    pub run: Option<RunId>,
    /// Rows that were deleted or emptied.
    pub rows: u64,
    /// Whether it was the last step of this run.
    pub done: bool,
}

/// What the store holds for the runs of a namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceUsage {
    /// Name of the namespace; `None` for the sum of all namespaces that are not listed by name.
    pub namespace: Option<String>,
    /// Stored bytes of the operations and events of all boundaries. Snapshots (which are derived), calls and records
    /// are not included.
    pub bytes: i64,
}
