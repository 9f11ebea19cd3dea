//! What keeps the cost of a lookup and of a boundary within bounds: snapshots, and the bases of patches.

use std::sync::Arc;

use crate::Digest;

/// A snapshot is due this many boundaries past what a lookup can begin with.
pub const SNAPSHOT_DUE: i32 = 10;

/// Above this many, a snapshot is overdue.
pub const SNAPSHOT_OVERDUE: i32 = 50;

/// Boundaries from one full state that is kept plain to the next, at most: no chain of patches is longer.
pub const PATCH_CHAIN: i32 = 50;

/// The answer to [`crate::Worker::snapshot`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Snapshotted {
    /// Whether one was made now.
    pub made: bool,
    /// Turn of the head that this was judged by; 0: nothing is committed.
    pub turn: i32,
    /// Boundaries that a lookup of that head folds onto what it begins with: the nearest snapshot, full state that is
    /// kept plain, or the run's beginning.
    pub lag: i32,
}

/// The state that a boundary comes after, as its committer knows it.
#[derive(Clone, Debug)]
pub struct Base {
    /// Of the boundary after which the state was this one.
    pub content_hash: Digest,
    /// Its text: `dalsegno_format::fold::text`.
    pub state: Arc<Vec<u8>>,
}
