//! Anchors as the store keeps them. `dalsegno_proof` makes, signs and checks what their lines say.

use crate::{Digest, Place, RunId};

/// Runs that one anchor names at most: its line is shorter than 16 KiB, from where on container runtimes split lines.
pub const RUNS_PER_ANCHOR: u32 = 48;

/// Where a run stood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// The run.
    pub run: RunId,
    /// Number of the last row of its audit.
    pub audit_seq: i64,
    /// Hash of that row.
    pub audit_hash: Digest,
    /// Its head, and that boundary's hash.
    pub head: Option<(Place, Digest)>,
}

/// The last anchor, and the runs that have moved since.
#[derive(Clone, Debug)]
pub struct Unanchored {
    /// Number and hash of the last anchor.
    pub last: Option<(i64, Digest)>,
    /// What moved; at most [`RUNS_PER_ANCHOR`].
    pub standings: Vec<Standing>,
}

/// What is kept of an anchor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnchorRow {
    /// Its number; the first is 1.
    pub seq: i64,
    /// Its hash.
    pub hash: Digest,
    /// The line of JSON that it is.
    pub line: String,
    /// Where the runs stood that it names.
    pub standings: Vec<Standing>,
}
