//! The history of a run: its boundaries and its transitions.

use dalsegno_protocol::{Boundary, RawValue, Usage};
use jiff::Timestamp;
use uuid::Uuid;

use crate::{BoundaryId, Digest, ForkedFrom};

/// One boundary, with its payloads decoded.
#[derive(Clone, Debug)]
pub struct BoundaryRow {
    /// Number of the turn.
    pub turn: i32,
    /// Which boundary of it.
    pub boundary: Boundary,
    /// The epoch it was committed under.
    pub epoch: i64,
    /// The attempt that committed it.
    pub attempt: i32,
    /// Total number of events up to and including this boundary.
    pub position: i64,
    /// The worker's id of the commit.
    pub commit_id: Uuid,
    /// SHA-256 of the body as it came.
    pub digest: Digest,
    /// Hash of the boundary before; all zeroes for the first.
    pub parent_hash: Digest,
    /// Hash of this boundary; see `dalsegno_format::header`.
    pub content_hash: Digest,
    /// When.
    pub at: Timestamp,
    /// Channel operations as JSON text; `None` if the state did not change.
    pub ops: Option<String>,
    /// Whether the operations are the full state.
    pub full: bool,
    /// The events, byte for byte as received.
    pub events: Vec<Box<RawValue>>,
    /// The usage of this boundary.
    pub usage: Usage,
    /// Why the worker committed it.
    pub trigger: Option<String>,
    /// Digest of the changes of records since the boundary before; `None` if there are none.
    pub records_digest: Option<Digest>,
    /// The boundary of another run after which a fork begins. Only the first boundary of a fork has it.
    pub forked_from: Option<ForkedFrom>,
}

impl BoundaryRow {
    /// The boundary's id.
    pub fn id(&self) -> BoundaryId {
        let Self { turn, boundary, epoch, .. } = *self;
        BoundaryId { turn, boundary, epoch }
    }
}

/// One row of a run's audit: a transition of the run.
#[derive(Clone, Debug, PartialEq)]
pub struct AuditRow {
    /// 1, 2, 3 …
    pub seq: i64,
    /// When.
    pub at: Timestamp,
    /// The kind of transition: `created`, `reserved`, `pod`, `identity`, `attached`, `spent`, `ended`,
    /// `cancel-requested`, `cancelled`, `finished`, `key-refused`, `settled`, `reset`, `rewound`, `adopted`,
    /// `abandoned`, `deleted`, `dropped`, `expired`, `shredded`, `pruned`, `purged`, `namespace-adopted`.
    pub kind: String,
    /// The actor: `operator`, `worker`, or a person's name.
    pub actor: String,
    /// Details, as JSON text.
    pub detail: String,
    /// Hash of the row before; all zeroes for the first.
    pub parent_hash: Digest,
    /// Hash of this row; see `dalsegno_format::audit`.
    pub hash: Digest,
}

/// How many bytes a lookup of the head reads. All zero for an unknown run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    /// Upper bound of the state's size, counted as in `dalsegno_format::size`. `None` if it cannot be known without
    /// reading the state.
    pub state: Option<i64>,
    /// Stored bytes of the latest boundaries, twice as many as a snapshot is due after. No more than these are read,
    /// as long as snapshots are made in time.
    pub tail: i64,
    /// The open calls ([`crate::CallFilter::Pending`] and [`crate::CallFilter::OpenTurn`]), counted as in
    /// [`dalsegno_protocol::Limits::OPEN_CALLS_BYTES`], and the ended calls of the open turn that a rewind has undone.
    pub calls: i64,
}
