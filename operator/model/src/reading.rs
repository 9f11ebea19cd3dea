//! The whole store as it stood at one moment, row by row: for those who check it or carry a run out of it.

use async_trait::async_trait;
use dalsegno_protocol::Call;
use jiff::Timestamp;
use uuid::Uuid;

use crate::place::boundary_number;
use crate::{AuditRow, CallDigests, Digest, Gone, Kept, Lifecycle, Place, Result, RunId, RunOutcome};

/// What one moment's look at the store answers. Rows come in pages, in a fixed order, each page after the last row of
/// the one before; an empty page is the end. Nothing that is written meanwhile shows.
///
/// A store in memory is the exception: there each page is a moment of its own.
#[async_trait]
pub trait Reading: Send {
    /// Runs by their ids.
    async fn runs(&mut self, after: Option<RunId>) -> Result<Vec<RunHead>>;

    /// Whether the data key of a run, if it has one, can be unwrapped with the keys that are there: [`crate::Error::Corrupt`]
    /// where it is damaged, [`crate::Error::Unfit`] where what wraps it is another key.
    async fn unwrap_data_key(&mut self, run: RunId) -> Result<()>;

    /// Rows of the audit by run and number, of runs up to and with `to`.
    async fn audit(&mut self, after: AuditKey, to: RunId) -> Result<Vec<(RunId, AuditRow)>>;

    /// Boundaries by run, turn, boundary and epoch, of runs up to and with `to`; those that were undone too. A parent
    /// comes before its children.
    async fn boundaries(&mut self, after: BoundaryKey, to: RunId) -> Result<Vec<StoredBoundary>>;

    /// Lines of anchors by their numbers, from the one after `after` on; each with its number.
    async fn anchors(&mut self, after: i64) -> Result<Vec<(i64, String)>>;

    /// All snapshots of one run, in the order of places, each held to the state that is rebuilt from the boundaries, unless
    /// these were dropped. To rebuild it, those before it are used, once they are found to be right.
    async fn snapshots(&mut self, run: RunId) -> Result<Vec<StoredSnapshot>>;

    /// Calls of one run by turn, and inside it in the order in which they were first seen.
    async fn calls(&mut self, run: RunId, after: Option<CallKey>) -> Result<Vec<StoredCall>>;

    /// Batches of records of one run in the order in which they came, from the one after `after` on; those that were undone too.
    async fn record_changes(&mut self, run: RunId, after: i64) -> Result<Vec<StoredBatch>>;

    /// What the keys of one run hold, by space, key and place in the key.
    async fn records(&mut self, run: RunId, after: &RecordKey) -> Result<Vec<StoredRecord>>;
}

/// Where a row of the audit stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AuditKey {
    /// The run.
    pub run: RunId,
    /// Its number.
    pub seq: i64,
}

impl AuditKey {
    /// Before all rows of a run.
    pub fn before(run: RunId) -> Self {
        Self { run, seq: i64::MIN }
    }
}

/// Where a boundary stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BoundaryKey {
    /// The run.
    pub run: RunId,
    /// Its turn.
    pub turn: i32,
    /// Which boundary of it, as [`boundary_number`] says; 0: before both.
    pub boundary: i16,
    /// The epoch it was committed under.
    pub epoch: i64,
}

impl BoundaryKey {
    /// Before all boundaries of a run.
    pub fn before(run: RunId) -> Self {
        Self { run, turn: i32::MIN, boundary: 0, epoch: i64::MIN }
    }
}

/// Where a call stands in its run.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CallKey {
    /// The turn in which it was first seen.
    pub turn: i32,
    /// Its place among the calls of the run.
    pub ordinal: i64,
    /// Its name: who forges a row may give it any place.
    pub id: String,
}

/// Where a record stands in its run.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct RecordKey {
    /// Its space.
    pub space: String,
    /// Its key.
    pub key: String,
    /// Its place in the key.
    pub seq: i64,
}

/// What a run's own row says of it.
#[derive(Clone, Debug, PartialEq)]
pub struct RunHead {
    /// The run.
    pub id: RunId,
    /// UID of its namespace.
    pub tenant: String,
    /// Name of its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// UID of its AgentRun.
    pub object_uid: String,
    /// When it was begun.
    pub created_at: Timestamp,
    /// Where it stands.
    pub lifecycle: Lifecycle,
    /// How it ended, if it did.
    pub outcome: Option<RunOutcome>,
    /// Its epoch.
    pub epoch: i64,
    /// Its latest boundary.
    pub head: Option<HeadMark>,
    /// Number of the last row of its audit.
    pub audit_seq: i64,
    /// Hash of that row.
    pub audit_hash: Digest,
    /// Of the changes of records since its latest boundary; a bundle has none.
    pub records_digest: Option<Digest>,
}

/// The latest boundary of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadMark {
    /// Where it stands.
    pub place: Place,
    /// Its hash.
    pub content_hash: Digest,
    /// Events committed up to and with it.
    pub position: i64,
}

/// A boundary of any branch.
#[derive(Clone, Debug)]
pub struct StoredBoundary {
    /// The run.
    pub run: RunId,
    /// The boundary.
    pub kept: Kept,
    /// Whether a rewind took it off the live branch.
    pub undone: bool,
    /// Why its payloads are not there any more, if they are not.
    pub gone: Option<Gone>,
    /// Why its payloads, which are not there then, cannot be decoded.
    pub damage: Option<String>,
}

/// A call as it stands.
#[derive(Clone, Debug)]
pub struct StoredCall {
    /// Its place among the calls of the run.
    pub ordinal: i64,
    /// The call.
    pub call: Call,
    /// The attempt that claimed it last.
    pub attempt: Option<i32>,
    /// The turn that was open when it was planned, claimed or ended last; `None` where that is not kept.
    pub touched: Option<i32>,
    /// How its digests in the audit are made.
    pub digests: CallDigests,
    /// Why its payloads, which are not there then, cannot be decoded.
    pub damage: Option<String>,
}

/// A snapshot, held to what it must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredSnapshot {
    /// The boundary after which the state is to be this one.
    pub place: Place,
    /// The digest of what it holds, where nothing is wrong with it and it was not shredded.
    pub digest: Option<Digest>,
    /// What is wrong with it: it is damaged, or another state than the one that the boundaries make.
    pub fault: Option<String>,
}

/// A batch of records, each value by its digest, as `dalsegno_format::records` says.
#[derive(Clone, Debug)]
pub struct StoredBatch {
    /// Its place among the batches of the run.
    pub seq: i64,
    /// Where it stands: no boundary of an earlier place has it in its hash.
    pub place: Place,
    /// Whether a rewind hides it.
    pub undone: bool,
    /// Its digest, as its row has it.
    pub digest: Digest,
    /// What it says.
    pub batch: Vec<u8>,
    /// Whether that has this digest.
    pub is_whole: bool,
}

/// A record that a key holds.
#[derive(Clone, Debug)]
pub struct StoredRecord {
    /// Where it is kept.
    pub at: RecordKey,
    /// Its id, where it was appended.
    pub entry_id: Option<String>,
    /// Where it was written.
    pub place: Place,
    /// The digest of its value; `None`: it was shredded, or is damaged.
    pub value: Option<Digest>,
    /// Why its value cannot be decoded.
    pub damage: Option<String>,
}

impl StoredBoundary {
    /// Where it stands.
    pub fn key(&self) -> BoundaryKey {
        let Place { turn, boundary, epoch } = self.kept.place();
        let boundary = boundary_number(boundary).into();
        BoundaryKey { run: self.run, turn, boundary, epoch }
    }
}

impl StoredCall {
    /// Where it stands.
    pub fn key(&self) -> CallKey {
        CallKey { turn: self.call.turn, ordinal: self.ordinal, id: self.call.id.clone() }
    }
}

/// What a run's own row says, if it is there.
pub async fn run_head(reading: &mut dyn Reading, run: RunId) -> Result<Option<RunHead>> {
    let before = run.as_u128().checked_sub(1).map(Uuid::from_u128);
    Ok(reading.runs(before).await?.into_iter().next().filter(|found| found.id == run))
}

/// Before the first run.
pub const NO_RUN: RunId = Uuid::nil();
/// After the last run.
pub const EVERY_RUN: RunId = Uuid::max();
