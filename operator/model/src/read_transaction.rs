//! A consistent view of the whole store, row by row: for checks of the store and for exports of a run.

use async_trait::async_trait;
use dalsegno_protocol::{Call, Message, RawValue, Usage, WaitOutcome, WaitState};
use jiff::Timestamp;
use uuid::Uuid;

use crate::anchor::AnchoredHead;
use crate::boundary_id::boundary_number;
use crate::{
    AnchorRow, AuditRow, BoundaryId, CallDigests, DecodedBoundary, Digest, Lifecycle, OpenWait, PayloadLoss,
    Result, RunId, RunOutcome,
};

/// Reads the store as it was at one moment. Rows are returned in pages, in a fixed order; each page continues after
/// the last row of the one before, and an empty page is the end. Later writes are visible only after
/// [`ReadTransaction::renew`].
///
/// Exception: with a store in memory, each page is a moment of its own.
#[async_trait]
pub trait ReadTransaction: Send {
    /// Reads the store as it is now from here on. While a moment is held, the store keeps every row version that was
    /// visible then: a long reading that need not be of one moment calls this often.
    async fn renew(&mut self) -> Result<()>;

    /// Runs by their ids.
    async fn runs(&mut self, after: Option<RunId>) -> Result<Vec<RunHead>>;

    /// Checks that the run's data key, if it has one, can be unwrapped with the mounted keys. Errors:
    /// [`crate::Error::Corrupt`] if the data key is damaged, [`crate::Error::Unusable`] if it is wrapped with another
    /// key.
    async fn unwrap_data_key(&mut self, run: RunId) -> Result<()>;

    /// Audit rows in the order of run and number, for runs up to and including `to`.
    async fn audit(&mut self, after: AuditKey, to: RunId) -> Result<Vec<(RunId, AuditRow)>>;

    /// Boundaries in the order of run, turn, boundary and epoch, for runs up to and including `to`; undone ones too.
    /// A parent comes before its children.
    async fn boundaries(&mut self, after: BoundaryKey, to: RunId) -> Result<Vec<StoredBoundary>>;

    /// Anchors with a number higher than `after`, in order.
    async fn anchors(&mut self, after: i64) -> Result<Vec<AnchorRow>>;

    /// Leaves in the order of anchor and run; each with the number of its anchor.
    async fn leaves(&mut self, after: LeafKey) -> Result<Vec<(i64, AnchoredHead)>>;

    /// Leaves in the order of run and anchor, for runs up to and including `to`; each with the number of its anchor.
    async fn leaves_by_run(&mut self, after: RunLeafKey, to: RunId) -> Result<Vec<(i64, AnchoredHead)>>;

    /// Purge records in the order of their runs, for runs up to and including `to`: each the last audit row of a run
    /// that was purged.
    async fn purges(&mut self, after: RunId, to: RunId) -> Result<Vec<(RunId, AuditRow)>>;

    /// All snapshots of one run, in the order of their boundaries. Each is compared with the state that is rebuilt
    /// from the boundaries, unless these were dropped. Earlier snapshots that passed the check are used for the
    /// rebuild.
    async fn snapshots(&mut self, run: RunId) -> Result<Vec<StoredSnapshot>>;

    /// Calls of one run in the order of turns, and within a turn in the order in which they were first seen.
    async fn calls(&mut self, run: RunId, after: Option<CallKey>) -> Result<Vec<StoredCall>>;

    /// Waits of one run after this one, in the order of their opening; undone ones too.
    async fn waits(&mut self, run: RunId, after: Option<WaitKey>) -> Result<Vec<StoredWait>>;

    /// Messages to one run after this position, in order.
    async fn messages(&mut self, run: RunId, after: i64) -> Result<Vec<StoredMessage>>;

    /// Batches of records of one run after number `after`, in the order of their arrival; undone ones too.
    async fn record_changes(&mut self, run: RunId, after: i64) -> Result<Vec<StoredBatch>>;

    /// Records of one run in the order of space, key and number within the key.
    async fn records(&mut self, run: RunId, after: &RecordKey) -> Result<Vec<StoredRecord>>;
}

/// The position of an audit row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AuditKey {
    /// The run.
    pub run: RunId,
    /// Number of the row.
    pub seq: i64,
}

impl AuditKey {
    /// Before all rows of a run.
    pub fn before(run: RunId) -> Self {
        Self { run, seq: i64::MIN }
    }

    /// After all rows of a run.
    pub fn after(run: RunId) -> Self {
        Self { run, seq: i64::MAX }
    }
}

/// The position of a leaf among those of all anchors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LeafKey {
    /// Number of the anchor.
    pub anchor: i64,
    /// The leaf's run.
    pub run: RunId,
}

impl LeafKey {
    /// Before all leaves.
    pub const FIRST: Self = Self { anchor: i64::MIN, run: NO_RUN };
}

/// The position of a leaf among those of all runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RunLeafKey {
    /// The leaf's run.
    pub run: RunId,
    /// Number of the anchor.
    pub anchor: i64,
}

impl RunLeafKey {
    /// Before all leaves of a run.
    pub fn before(run: RunId) -> Self {
        Self { run, anchor: i64::MIN }
    }
}

/// The position of a boundary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BoundaryKey {
    /// The run.
    pub run: RunId,
    /// Its turn.
    pub turn: i32,
    /// Number of the boundary, see [`boundary_number`]; 0 is before both.
    pub boundary: i16,
    /// The epoch it was committed under.
    pub epoch: i64,
}

impl BoundaryKey {
    /// Before all boundaries of a run.
    pub fn before(run: RunId) -> Self {
        Self { run, turn: i32::MIN, boundary: 0, epoch: i64::MIN }
    }

    /// After all boundaries of a run.
    pub fn after(run: RunId) -> Self {
        Self { run, turn: i32::MAX, boundary: i16::MAX, epoch: i64::MAX }
    }
}

/// The position of a call in its run.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CallKey {
    /// The turn in which it was first seen.
    pub turn: i32,
    /// Its number among the calls of the run.
    pub ordinal: i64,
    /// Its id. It is part of the order because a forged row may have any number.
    pub id: String,
}

/// The position of a wait in its run.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct WaitKey {
    /// Its number among the waits of the run.
    pub ordinal: i64,
    /// Its id. It is part of the order because a forged row may have any number.
    pub id: String,
    /// The epoch it was opened under.
    pub epoch: i64,
}

/// The position of a record in its run.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct RecordKey {
    /// Its space.
    pub space: String,
    /// Its key.
    pub key: String,
    /// Its number within the key.
    pub seq: i64,
}

/// A run's own row.
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
    /// When it was created.
    pub created_at: Timestamp,
    /// Its lifecycle state.
    pub lifecycle: Lifecycle,
    /// How it ended; `None` while it is live.
    pub outcome: Option<RunOutcome>,
    /// Its epoch.
    pub epoch: i64,
    /// Its head.
    pub head: Option<HeadRef>,
    /// Number of the last row of its audit.
    pub audit_seq: i64,
    /// Hash of that row.
    pub audit_hash: Digest,
    /// Digest of the changes of records since its head. A bundle has none.
    pub records_digest: Option<Digest>,
}

/// The head of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadRef {
    /// The boundary.
    pub boundary: BoundaryId,
    /// The boundary's content hash.
    pub content_hash: Digest,
    /// Total number of events up to and including this boundary.
    pub position: i64,
}

/// A boundary of any branch.
#[derive(Clone, Debug)]
pub struct StoredBoundary {
    /// The run.
    pub run: RunId,
    /// The boundary.
    pub decoded: DecodedBoundary,
    /// Whether a rewind removed it from the live branch.
    pub undone: bool,
    /// Why its payloads are missing on purpose, if they are.
    pub payload_loss: Option<PayloadLoss>,
    /// Why its payloads cannot be decoded. They are then absent.
    pub damage: Option<String>,
}

/// A call as it is stored.
#[derive(Clone, Debug)]
pub struct StoredCall {
    /// Its number among the calls of the run.
    pub ordinal: i64,
    /// The call.
    pub call: Call,
    /// The attempt that claimed it last.
    pub attempt: Option<i32>,
    /// The turn that was open when it was last planned, claimed or ended; `None` if that is not stored.
    pub touched: Option<i32>,
    /// What it has used.
    pub usage: Usage,
    /// How its digests in the audit are computed.
    pub digests: CallDigests,
    /// Why its payloads cannot be decoded. They are then absent.
    pub damage: Option<String>,
}

/// A wait as it is stored.
#[derive(Clone, Debug)]
pub struct StoredWait {
    /// Everything but its state and its payloads.
    pub facts: OpenWait,
    /// The position on the branch at which it was opened.
    pub boundary: BoundaryId,
    /// Whether a rewind undid it.
    pub undone: bool,
    /// Its state.
    pub state: WaitState,
    /// Which answer it has.
    pub outcome: Option<WaitOutcome>,
    /// The request as it came.
    pub request: Option<Box<RawValue>>,
    /// A person's words.
    pub answer: Option<Box<RawValue>>,
    /// How its digests in the audit are computed.
    pub digests: CallDigests,
    /// Why its payloads cannot be decoded. They are then absent.
    pub damage: Option<String>,
}

/// A message as it is stored.
#[derive(Clone, Debug)]
pub struct StoredMessage {
    /// The message. Its value is absent if it was deleted, shredded, or cannot be decoded.
    pub message: Message,
    /// When it was stored, in milliseconds since 1970.
    pub at: i64,
    /// The epoch of the boundary that has taken it.
    pub taken_epoch: Option<i64>,
    /// Its digest, according to its row.
    pub digest: Digest,
    /// How its digest is computed.
    pub digests: CallDigests,
    /// Why its value cannot be decoded.
    pub damage: Option<String>,
}

/// A snapshot, and the result of its check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredSnapshot {
    /// The boundary whose state it holds.
    pub boundary: BoundaryId,
    /// Digest of its contents; `None` if it is wrong or shredded.
    pub digest: Option<Digest>,
    /// What is wrong with it: it is damaged, or it differs from the state that the boundaries produce.
    pub fault: Option<String>,
}

/// A batch of records with digests instead of values, as defined in `dalsegno_format::records`.
#[derive(Clone, Debug)]
pub struct StoredBatch {
    /// Its number among the batches of the run.
    pub seq: i64,
    /// The position on the branch from which it takes effect. No earlier boundary includes it in its hash.
    pub boundary: BoundaryId,
    /// Whether a rewind undid it.
    pub undone: bool,
    /// Its digest, according to its row.
    pub digest: Digest,
    /// The batch, encoded.
    pub batch: Vec<u8>,
    /// Whether the batch has this digest.
    pub is_whole: bool,
}

/// A stored record.
#[derive(Clone, Debug)]
pub struct StoredRecord {
    /// Its position.
    pub at: RecordKey,
    /// Its entry id, if it was appended.
    pub entry_id: Option<String>,
    /// The position on the branch at which it was written.
    pub boundary: BoundaryId,
    /// The digest of its value; `None` if the value was shredded or is damaged.
    pub value: Option<Digest>,
    /// The value: a payload as JSON text; `None` if it was shredded or is damaged.
    pub text: Option<String>,
    /// Why its value cannot be decoded.
    pub damage: Option<String>,
}

impl StoredBoundary {
    /// The boundary's position.
    pub fn key(&self) -> BoundaryKey {
        let BoundaryId { turn, boundary, epoch } = self.decoded.id();
        let boundary = boundary_number(boundary).into();
        BoundaryKey { run: self.run, turn, boundary, epoch }
    }
}

impl StoredWait {
    /// The wait's position.
    pub fn key(&self) -> WaitKey {
        WaitKey { ordinal: self.facts.ordinal, id: self.facts.id.clone(), epoch: self.facts.epoch }
    }
}

impl StoredCall {
    /// The call's position.
    pub fn key(&self) -> CallKey {
        CallKey { turn: self.call.turn, ordinal: self.ordinal, id: self.call.id.clone() }
    }
}

/// A run's own row, if there is one.
pub async fn run_head(reading: &mut dyn ReadTransaction, run: RunId) -> Result<Option<RunHead>> {
    let before = run.as_u128().checked_sub(1).map(Uuid::from_u128);
    Ok(reading.runs(before).await?.into_iter().next().filter(|found| found.id == run))
}

/// Smaller than the id of any run.
pub const NO_RUN: RunId = Uuid::nil();
/// Larger than the id of any run.
pub const EVERY_RUN: RunId = Uuid::max();
