//! Anchors as the store keeps them. `dalsegno_proof` creates, signs and checks them.

use crate::{BoundaryId, Digest, RunId};

/// The most runs that one anchor names. If more have moved, the next anchor continues after the last of them.
pub const LEAVES_PER_ANCHOR: u32 = 16_384;

/// A leaf of an anchor: where a run was when the anchor was created.
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

/// An anchor as it is stored, without its leaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnchorRow {
    /// Its number; the first is 1.
    pub seq: i64,
    /// Hash of the anchor before.
    pub parent_hash: Digest,
    /// The Merkle root over its leaves.
    pub root: Digest,
    /// The number of its leaves.
    pub leaves: u32,
    /// The public key that verifies its signature.
    pub public_key: [u8; 32],
    /// What is signed, as one line of JSON. This line is also kept outside of the store.
    pub line: String,
}

/// An anchor to be stored, with its leaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewAnchor {
    /// The anchor.
    pub row: AnchorRow,
    /// Its leaves, in the order of the runs' ids.
    pub heads: Vec<AnchoredHead>,
}

/// The last anchor, and the runs that have moved since they were last anchored.
#[derive(Clone, Debug)]
pub struct HeadsToAnchor {
    /// The last anchor; `None` before the first.
    pub last: Option<AnchorRow>,
    /// Number of the first anchor that must be kept. Earlier ones may be deleted once an anchor outside of the store
    /// announces it.
    pub keep_from: i64,
    /// Runs that have moved, in the order of their ids; at most [`LEAVES_PER_ANCHOR`].
    pub heads: Vec<AnchoredHead>,
    /// Whether these are all runs that have moved.
    pub is_complete: bool,
}

impl HeadsToAnchor {
    /// The runs that moved and have an id after `after`, in the order of their ids.
    pub fn new(last: Option<AnchorRow>, keep_from: i64, after: RunId, heads: Vec<AnchoredHead>) -> Self {
        let is_complete = after.is_nil() && heads.len() < LEAVES_PER_ANCHOR as usize;
        Self { last, keep_from, heads, is_complete }
    }

    /// Where the next list of moved runs begins: after this run.
    pub fn next_after(&self) -> RunId {
        let is_full = self.heads.len() >= LEAVES_PER_ANCHOR as usize;
        self.heads.last().filter(|_| is_full).map_or(RunId::nil(), |last| last.run)
    }
}
