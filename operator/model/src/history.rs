//! What a run has left behind, for people: boundaries and transitions.

use dalsegno_protocol::{Boundary, RawValue, Usage};
use jiff::Timestamp;
use uuid::Uuid;

use crate::{Digest, Place};

/// One boundary, payloads decoded.
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
    /// Events committed up to and with it.
    pub position: i64,
    /// The worker's id of the commit.
    pub commit_id: Uuid,
    /// SHA-256 of the body as it came.
    pub digest: Digest,
    /// Hash of the boundary before; zeroes for the first.
    pub parent_hash: Digest,
    /// Hash of this one: `dalsegno_format::header`.
    pub content_hash: Digest,
    /// When.
    pub at: Timestamp,
    /// Channel operations as JSON text; `None`: the state stayed.
    pub ops: Option<String>,
    /// Whether they are the full state.
    pub full: bool,
    /// The events, each as it came.
    pub events: Vec<Box<RawValue>>,
    /// What it spent.
    pub usage: Usage,
    /// Why it was committed.
    pub trigger: Option<String>,
    /// Of the changes of records since the boundary before; `None` where there are none.
    pub records_digest: Option<Digest>,
}

impl BoundaryRow {
    /// Where it stands.
    pub fn place(&self) -> Place {
        let Self { turn, boundary, epoch, .. } = *self;
        Place { turn, boundary, epoch }
    }
}

/// One transition of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct AuditRow {
    /// 1, 2, 3 …
    pub seq: i64,
    /// When.
    pub at: Timestamp,
    /// What: `created`, `reserved`, `pod`, `identity`, `attached`, `spent`, `ended`, `cancel-requested`, `cancelled`,
    /// `finished`, `key-refused`, `settled`, `reset`, `rewound`, `adopted`, `abandoned`, `deleted`, `dropped`, `expired`,
    /// `shredded`, `pruned`, `namespace-adopted`.
    pub kind: String,
    /// Who: `operator`, `worker`, or a person's name.
    pub actor: String,
    /// Details, as JSON text.
    pub detail: String,
    /// Hash of the row before; zeroes for the first.
    pub parent_hash: Digest,
    /// Hash of this one: `dalsegno_format::audit`.
    pub hash: Digest,
}

/// How much a lookup of the head reads, in bytes; of an unknown run none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    /// The state at most, as `dalsegno_format::size` counts. `None`: nobody knows without reading it.
    pub state: Option<i64>,
    /// What is kept of the latest boundaries, with whatever they say: of twice as many as a snapshot is due after. While
    /// snapshots are made in time no more of them are read.
    pub tail: i64,
    /// The open calls, as [`dalsegno_protocol::Limits::OPEN_CALLS_BYTES`] counts them: those that
    /// [`crate::CallFilter::Pending`] and [`crate::CallFilter::OpenTurn`] tell.
    pub calls: i64,
}
