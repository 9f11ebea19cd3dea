//! A boundary of any branch: as it is kept, and what it is linked by.

use dalsegno_protocol::Boundary;

use crate::{BoundaryRow, Digest, DigestKey, Gone, Place};

/// A boundary as it is kept, payloads decoded.
#[derive(Clone, Debug)]
pub struct Kept {
    /// What it says.
    pub row: BoundaryRow,
    /// The one before; `None` for the first.
    pub parent: Option<Place>,
    /// Digest of its operations, as it is kept.
    pub ops_digest: Option<Digest>,
    /// Digest of its events, as it is kept.
    pub events_digest: Option<Digest>,
    /// How many events its row counts; `None`: it comes from no row.
    pub event_count: Option<i64>,
    /// What these digests are made with; `None`: they are plain, or the payloads were not read.
    pub digest_key: Option<DigestKey>,
    /// Whether the payloads were read: without them only the header is judged.
    pub has_payloads: bool,
}

impl Kept {
    /// Where it stands.
    pub fn place(&self) -> Place {
        self.row.place()
    }

    /// Where the one before stands, by its columns. Only the first boundary has none of these; of a part that is left no
    /// boundary is the place.
    pub fn parent(turn: Option<i32>, boundary: Option<Boundary>, epoch: Option<i64>) -> Option<Place> {
        let is_first = turn.is_none() && boundary.is_none() && epoch.is_none();
        let boundary = boundary.unwrap_or(Boundary::Plan);
        (!is_first).then(|| Place { turn: turn.unwrap_or(0), boundary, epoch: epoch.unwrap_or(0) })
    }

    /// How many events it has, where anything tells.
    pub fn events(&self) -> Option<i64> {
        self.event_count.or_else(|| self.has_payloads.then_some(self.row.events.len() as i64))
    }
}

/// One boundary as [`crate::Read::links`] reads it: judged by itself, without its payloads.
#[derive(Clone, Debug)]
pub struct Link {
    /// Where it stands.
    pub place: Place,
    /// Whether it was rewound: then it is not of the live branch.
    pub undone: bool,
    /// What it is linked by; or what is wrong with it.
    pub sound: Result<Sound, String>,
}

/// What a boundary is linked by, once its header and its payloads are what its hash says.
#[derive(Clone, Copy, Debug)]
pub struct Sound {
    /// Where the boundary before it stands.
    pub parent: Option<Place>,
    /// Hash of the boundary before it.
    pub parent_hash: Digest,
    /// Its own hash.
    pub content_hash: Digest,
    /// Whether the state after it needs nothing before it: it is the full state, and is there; or, dropped, has a snapshot.
    pub full: bool,
    /// Events committed up to and with it.
    pub position: i64,
    /// Why its payloads are not there any more; without them only its header is judged.
    pub gone: Option<Gone>,
}
