//! Snapshots and the bases of patches: they limit the cost of a lookup and the size of a boundary.

use std::sync::Arc;

use crate::Digest;

/// A snapshot is due once a lookup must fold this many boundaries, unless the run has a number of its own
/// ([`crate::Retention::snapshot_every`]).
pub const SNAPSHOT_DUE: i32 = 10;

/// A snapshot is overdue once a lookup must fold more boundaries than this. No run may set a larger number.
pub const SNAPSHOT_OVERDUE: i32 = 50;

/// The most boundaries from one full state that is stored plain to the next. No chain of patches is longer.
pub const PATCH_CHAIN: i32 = 50;

/// The answer to [`crate::Worker::snapshot`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Snapshotted {
    /// Whether a snapshot was made now.
    pub made: bool,
    /// Turn of the head at which this was decided; 0 if nothing is committed.
    pub turn: i32,
    /// The boundaries that a lookup of that head must fold, from the nearest snapshot, the nearest full state that is
    /// stored plain, or the run's beginning.
    pub lag: i32,
    /// The lag at which a snapshot of this run is due.
    pub due: i32,
}

/// The state after the boundary before, as the committer knows it.
#[derive(Clone, Debug)]
pub struct DeltaBase {
    /// Content hash of the boundary after which the run had this state.
    pub content_hash: Digest,
    /// The state's text; see `dalsegno_format::fold::text`.
    pub state: Arc<Vec<u8>>,
}
