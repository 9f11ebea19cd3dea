//! Records and events: what SDKs keep and read beside the state.

use dalsegno_protocol::{Event, Record, RecordOp};
use uuid::Uuid;

use crate::{Digest, RunId};

/// Changes of records outside of a boundary.
#[derive(Clone, Debug)]
pub struct RecordBatch {
    /// Of which run.
    pub run: RunId,
    /// SHA-256 of the worker's instance.
    pub capability: Digest,
    /// The worker's id of the batch.
    pub batch_id: Uuid,
    /// SHA-256 of the body as it came.
    pub digest: Digest,
    /// The changes, in order.
    pub operations: Vec<RecordOp>,
}

/// The answer to a batch of changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// Written now.
    Ok,
    /// Written before, with the same bytes.
    Duplicate,
    /// Written before, with other bytes.
    Conflict,
    /// The capability is not the current epoch's.
    Fenced,
    /// The run is over.
    Finished,
    /// Calls of an earlier attempt are unsettled.
    UnsettledCalls,
    /// No run of this id.
    NotFound,
}

/// Which entries to read.
#[derive(Clone, Debug, Default)]
pub struct RecordQuery {
    /// The space.
    pub space: String,
    /// What the keys begin with.
    pub prefix: String,
    /// The last entry that was read: its key, and its place there.
    pub after: Option<(String, i64)>,
    /// How many at most.
    pub limit: u32,
    /// Bytes of values after which the page ends early; one entry there is in any case.
    pub bytes: usize,
}

impl RecordQuery {
    /// The entry after which to look. Places in a key are numbered from 1, and a prefix is the first key that begins with it.
    pub fn begin(&self) -> (&str, i64) {
        let first = (self.prefix.as_str(), 0);
        self.after.as_ref().map_or(first, |(key, place)| first.max((key, *place)))
    }
}

/// Entries in order, by the bytes of their keys, then as they were added.
#[derive(Clone, Debug, Default)]
pub struct RecordPage {
    /// The entries.
    pub records: Vec<Record>,
    /// The last of them, if there may be more.
    pub next: Option<(String, i64)>,
}

/// Which events to read.
#[derive(Clone, Copy, Debug)]
pub struct EventQuery {
    /// The position of the first one.
    pub from: i64,
    /// How many at most.
    pub limit: u32,
    /// Bytes of events after which the page ends early; one event there is in any case.
    pub bytes: usize,
}

/// Events of the live branch, and whether more may come.
#[derive(Clone, Debug, Default)]
pub struct EventPage {
    /// The events, in order.
    pub events: Vec<Event>,
    /// Whether the run is over, so that these are the last where the page is not full.
    pub over: bool,
}
