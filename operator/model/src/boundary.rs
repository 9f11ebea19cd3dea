//! A boundary of any branch, with its digests and its links.

use dalsegno_protocol::Boundary;

use crate::{BoundaryId, BoundaryRow, Digest, DigestKey, PayloadLoss};

/// A boundary as it is stored, with its payloads decoded.
#[derive(Clone, Debug)]
pub struct DecodedBoundary {
    /// Its contents.
    pub row: BoundaryRow,
    /// The boundary before; `None` for the first.
    pub parent: Option<BoundaryId>,
    /// Stored digest of its operations.
    pub ops_digest: Option<Digest>,
    /// Stored digest of its events.
    pub events_digest: Option<Digest>,
    /// Number of events according to its row; `None` if it does not come from a row.
    pub event_count: Option<i64>,
    /// The key of these digests; `None` if they are plain, or the payloads were not read.
    pub digest_key: Option<DigestKey>,
    /// Whether the payloads were read. If not, only the header can be checked.
    pub has_payloads: bool,
}

impl DecodedBoundary {
    /// The boundary's id.
    pub fn id(&self) -> BoundaryId {
        self.row.id()
    }

    /// The id of the parent, from its columns. All three are null only for the first boundary. If only some are null,
    /// the row is damaged, and the id matches no boundary.
    pub fn parent(turn: Option<i32>, boundary: Option<Boundary>, epoch: Option<i64>) -> Option<BoundaryId> {
        let is_first = turn.is_none() && boundary.is_none() && epoch.is_none();
        let boundary = boundary.unwrap_or(Boundary::Plan);
        (!is_first).then(|| BoundaryId { turn: turn.unwrap_or(0), boundary, epoch: epoch.unwrap_or(0) })
    }

    /// Number of events, if known.
    pub fn events(&self) -> Option<i64> {
        self.event_count.or_else(|| self.has_payloads.then_some(self.row.events.len() as i64))
    }
}

/// One boundary as [`crate::Read::links`] reads it: checked on its own, without its payloads.
#[derive(Clone, Debug)]
pub struct BoundaryCheck {
    /// The boundary's id.
    pub id: BoundaryId,
    /// Whether a rewind undid it, so that it is not on the live branch.
    pub undone: bool,
    /// How it is linked, or what is wrong with it.
    pub result: Result<ValidBoundary, String>,
}

/// How a boundary is linked, once its header and payloads have been checked against its hash.
#[derive(Clone, Copy, Debug)]
pub struct ValidBoundary {
    /// Id of the boundary before it.
    pub parent: Option<BoundaryId>,
    /// Hash of the boundary before it.
    pub parent_hash: Digest,
    /// Its own hash.
    pub content_hash: Digest,
    /// Whether the state after it can be rebuilt without earlier boundaries: it holds the full state, or it was
    /// dropped and a snapshot replaces it.
    pub full: bool,
    /// Events committed up to and with it.
    pub position: i64,
    /// Why its payloads are missing, if they are. Without payloads only its header was checked.
    pub payload_loss: Option<PayloadLoss>,
}
