//! Anchors as the store keeps them. `dalsegno_proof` creates, signs and checks them.

use crate::{BoundaryId, Digest, RunId};

/// The most runs that one anchor names. With this limit its line stays shorter than 16 KiB, the length at which
/// container runtimes split log lines.
pub const RUNS_PER_ANCHOR: u32 = 48;

/// Where a run was when an anchor was created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnchoredHead {
    /// The run.
    pub run: RunId,
    /// Number of the last row of the run's audit.
    pub audit_seq: i64,
    /// Hash of that row.
    pub audit_hash: Digest,
    /// The run's head, and the content hash of that boundary.
    pub head: Option<(BoundaryId, Digest)>,
}

/// The last anchor, and the runs that have moved since.
#[derive(Clone, Debug)]
pub struct HeadsToAnchor {
    /// Number and hash of the last anchor; `None` before the first.
    pub last: Option<(i64, Digest)>,
    /// Runs that have moved; at most [`RUNS_PER_ANCHOR`].
    pub heads: Vec<AnchoredHead>,
}

/// An anchor as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnchorRow {
    /// Its number; the first is 1.
    pub seq: i64,
    /// Its hash.
    pub hash: Digest,
    /// The anchor itself: one line of JSON.
    pub line: String,
    /// The runs that the anchor names.
    pub heads: Vec<AnchoredHead>,
}
