//! Purging: runs that ended long ago are deleted from the store with all their rows.
//!
//! A run is purged in two steps. First its audit records the purge. Once an anchor names that row, the rows of the run
//! are deleted, in batches; the last batch leaves that row alone behind, as the run's *purge record*. So a check
//! distinguishes a purged run from one that somebody removed: the anchors name the record.

use jiff::Timestamp;

use crate::RunId;

/// Which runs may be purged: those that ended before a time, whose AgentRun was deleted or that were abandoned, and
/// whose payloads are past their retention and deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PurgeScope {
    /// Runs that ended before this time, by the store's clock.
    pub before: Timestamp,
    /// Only runs of this namespace; `None` for all.
    pub namespace: Option<String>,
}

/// The position of a run among those that may be purged, the earliest end first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct EndedRun {
    /// When the run ended, in milliseconds since 1970.
    pub ended_at: i64,
    /// The run.
    pub run: RunId,
}

impl EndedRun {
    /// Before all runs.
    pub const FIRST: Self = Self { ended_at: i64::MIN, run: RunId::nil() };
}

/// A request to purge a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Purge {
    /// The run.
    pub run: RunId,
    /// It is kept unless it ended before this time.
    pub before: Timestamp,
    /// Who requested it, for the audit.
    pub actor: String,
    /// Why, for the audit.
    pub reason: String,
}

/// The result of one step of [`crate::Admin::purge`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PurgeStep {
    /// The run may not be purged, or is purged already.
    Kept,
    /// The audit now records the purge. Rows are deleted once an anchor names this row.
    Recorded,
    /// The audit records the purge, and no anchor names this row yet.
    NotAnchored,
    /// Rows were deleted.
    Deleted {
        /// Their number.
        rows: u64,
        /// Whether the run is gone.
        done: bool,
    },
}

/// The result of one step of [`crate::Admin::forget_purges`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ForgottenPurges {
    /// Where the next step continues; `None` after the last purge record.
    pub next: Option<RunId>,
    /// Purge records that were deleted.
    pub rows: u64,
}
