//! Records and events: data that SDKs store and read in addition to the state.

use dalsegno_protocol::{Event, Record, RecordOp, RecordOrder};
use uuid::Uuid;

use crate::{Digest, RunId};

/// A batch of changes of records, outside of a boundary.
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
    /// The batch was written now.
    Ok,
    /// The batch was written before, with the same bytes.
    Duplicate,
    /// A batch with this id was written before, with other bytes.
    Conflict,
    /// The capability is not the current epoch's.
    Fenced,
    /// The run is over.
    Finished,
    /// Calls of an earlier attempt are unsettled.
    UnsettledCalls,
    /// Its deletions of prefixes would empty more than [`dalsegno_protocol::Limits::PREFIX_KEYS`] keys. Nothing was
    /// written.
    TooManyKeys,
    /// There is no run with this id.
    NotFound,
}

/// Which records to read, or which keys.
#[derive(Clone, Debug, Default)]
pub struct RecordQuery {
    /// The space.
    pub space: String,
    /// The prefix of the keys.
    pub prefix: String,
    /// The order.
    pub order: RecordOrder,
    /// The last record of the page before: its key, and its number within the key.
    pub after: Option<(String, i64)>,
    /// The most records, or keys, to return.
    pub limit: u32,
    /// The page ends early once its values have this many bytes. It contains at least one record. Keys have no values.
    pub bytes: usize,
}

/// Records in the order of the query.
#[derive(Clone, Debug, Default)]
pub struct RecordPage {
    /// The records.
    pub records: Vec<Record>,
    /// The position of the last record, if there may be more.
    pub next: Option<(String, i64)>,
}

/// Keys with entries, in the order of the query.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordKeyPage {
    /// The keys, each once.
    pub keys: Vec<String>,
    /// The position of the last entry of the last key, if there are more keys.
    pub next: Option<(String, i64)>,
}

/// Keys whose records to read.
#[derive(Clone, Debug, Default)]
pub struct RecordKeysQuery {
    /// The space.
    pub space: String,
    /// The keys, each once.
    pub keys: Vec<String>,
    /// The number, within the first of these keys, of the last record of the page before; 0 if there is none.
    pub after: i64,
    /// The most records to return.
    pub limit: u32,
    /// The page ends early once its values have this many bytes. It contains at least one record.
    pub bytes: usize,
}

/// Which events to read.
#[derive(Clone, Copy, Debug)]
pub struct EventQuery {
    /// The position of the first event.
    pub from: i64,
    /// The most events to return.
    pub limit: u32,
    /// The page ends early once its events have this many bytes. It contains at least one event.
    pub bytes: usize,
}

/// Events of the live branch, and whether more may come.
#[derive(Clone, Debug, Default)]
pub struct EventPage {
    /// The events, in order.
    pub events: Vec<Event>,
    /// Whether the run is over. If it is, and the page is not full, no more events will follow.
    pub over: bool,
}
