//! What a worker requests for its run: attach, commit, heartbeat, finish, acknowledge a cancel.

use dalsegno_protocol::{Boundary, ParkMode, ParkRequest, PlannedCall, RawValue, RecordOp, Usage};
use uuid::Uuid;

use crate::{DeltaBase, Digest, NewFinish, RunId, RunRecord};

/// The answer to an attach.
#[derive(Clone, Debug)]
pub enum Attached {
    /// The worker may write. The row afterwards.
    Ok(Box<RunRecord>),
    /// There is no run with this id.
    NotFound,
    /// The attempt's pod is not recorded yet: try again.
    NotRecorded,
    /// The image's verdict is not recorded yet: try again.
    VersionPending,
    /// The run may not continue with this image; the text says why.
    VersionIncompatible(String),
    /// Another process of this attempt has already attached.
    Spent,
    /// The agent's own engine keeps the checkpoints: no worker attaches.
    External,
    /// The pod is not that of the current attempt.
    Fenced,
    /// The run is over.
    Finished,
}

/// A boundary to commit.
#[derive(Debug)]
pub struct Commit {
    /// Of which run.
    pub run: RunId,
    /// SHA-256 of the worker's instance.
    pub capability: Digest,
    /// Number of the turn.
    pub turn: i32,
    /// Which boundary of it.
    pub boundary: Boundary,
    /// The worker's id of the commit.
    pub commit_id: Uuid,
    /// SHA-256 of the body as it came.
    pub digest: Digest,
    /// Channel operations, as the JSON text of [`dalsegno_protocol::ChannelOps`]; `None` if the state does not
    /// change.
    pub ops: Option<Vec<u8>>,
    /// Whether `ops` is the full state.
    pub full: bool,
    /// Upper bound of the bytes that `ops` add to the state (`dalsegno_format::size::of_ops`).
    pub size: usize,
    /// A state, if the committer knows one: full operations may then be stored as a patch against it. If it is not
    /// the head's state, they are stored plain. Invariant: it is the state after the boundary that it names; nobody
    /// checks this.
    pub base: Option<DeltaBase>,
    /// The events, byte for byte as received.
    pub events: Vec<Box<RawValue>>,
    /// Calls that this turn plans to make.
    pub calls: Vec<PlannedCall>,
    /// Calls of this attempt that may stay without an outcome, by id.
    pub open_calls: Vec<String>,
    /// Changes of records, applied with the boundary.
    pub records: Vec<RecordOp>,
    /// Positions of the messages that the boundary takes.
    pub inbox: Vec<i64>,
    /// The usage of this boundary.
    pub usage: Usage,
    /// Why the worker commits.
    pub trigger: Option<String>,
    /// The end of the run, if it ends with this boundary.
    pub finish: Option<NewFinish>,
    /// The park, if the attempt ends with this boundary.
    pub park: Option<ParkRequest>,
}

/// The answer to a commit or a finish.
#[derive(Clone, Debug, PartialEq)]
pub enum Committed {
    /// It was committed now.
    Ok(CommitReceipt),
    /// It was committed now, and the attempt is over.
    Parked(CommitReceipt),
    /// It was committed before, with the same bytes.
    Duplicate(CommitReceipt),
    /// It is not the next boundary, or a boundary with other bytes is already there.
    Conflict {
        /// The head at the time of the check; `None` if nothing is committed yet.
        head: Option<(i32, Boundary)>,
    },
    /// The capability is not the current epoch's.
    Fenced {
        /// Whether this same commit is on the live branch.
        committed: bool,
    },
    /// The run is over.
    Finished,
    /// Calls of an earlier attempt are unsettled.
    UnsettledCalls,
    /// A call of this attempt with the policy `probe` or `ask` has no outcome, and the boundary does not name it or is a
    /// finish.
    OpenCalls,
    /// It parks on a wait that the run does not have on its live branch. Nothing was committed.
    NoSuchWait(String),
    /// The state would exceed [`dalsegno_protocol::Limits::STATE_BYTES`].
    TooLarge,
    /// With the planned calls the open calls would exceed [`dalsegno_protocol::Limits::OPEN_CALLS_BYTES`].
    CallsTooLarge,
    /// Its deletions of prefixes would empty more than [`dalsegno_protocol::Limits::PREFIX_KEYS`] keys. Nothing was
    /// committed.
    TooManyKeys,
    /// The boundary takes a message that does not exist, or that another boundary has taken.
    NoSuchMessage {
        /// The position of the first such message.
        position: i64,
    },
    /// There is no run with this id.
    NotFound,
}

/// The state of a run after a commit.
#[derive(Clone, Debug, PartialEq)]
pub struct CommitReceipt {
    /// The head; `None` only if a run finishes that never committed.
    pub head: Option<dalsegno_protocol::Head>,
    /// Content hash of the boundary before the head. Present only if the boundary was committed now and has a parent.
    pub parent: Option<Digest>,
    /// What a person requests of the worker.
    pub signals: WorkerSignals,
}

/// What a person requests of a worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkerSignals {
    /// Park, and go on in a later attempt.
    pub suspend: bool,
    /// Stop for good.
    pub cancel: bool,
    /// A limit of the run is reached: exit.
    pub limit: bool,
    /// Position of the latest message to the run.
    pub inbox: i64,
    /// Length of the lease, in milliseconds.
    pub lease_ms: i64,
}

/// The answer to one heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeartbeatAnswer {
    /// The lease is renewed.
    Ok(WorkerSignals),
    /// The run is over.
    Finished,
    /// The capability is not the current epoch's, or there is no such run.
    Fenced,
}

/// A request to finish a run without a boundary.
#[derive(Debug)]
pub struct FinishCall {
    /// Of which run.
    pub run: RunId,
    /// SHA-256 of the worker's instance.
    pub capability: Digest,
    /// The worker's id of this request.
    pub commit_id: Uuid,
    /// SHA-256 of the body as it came.
    pub digest: Digest,
    /// How it ended.
    pub finish: NewFinish,
}

/// A request to park.
#[derive(Clone, Debug)]
pub struct Park {
    /// Of which run.
    pub run: RunId,
    /// SHA-256 of the worker's instance.
    pub capability: Digest,
    /// The worker's id of this request.
    pub park_id: Uuid,
    /// Ids of the waits to park on. Empty: the park acknowledges a suspend or a cancel.
    pub on: Vec<String>,
    /// Whether all of them must be answered, or any of them.
    pub mode: ParkMode,
}

/// The answer to a park.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Parked {
    /// The attempt is over, now or before by this same request.
    Parked,
    /// Nothing to wait for: go on.
    Ready,
    /// Calls of an earlier attempt are unsettled, or a tool refused the key of a call.
    UnsettledCalls,
    /// A call of this attempt with the policy `probe` or `ask` has no outcome.
    OpenCalls,
    /// The run has no wait with this id on its live branch.
    NoSuchWait(String),
    /// The run is over.
    Finished,
    /// The capability is not the current epoch's, or there is no such run.
    Fenced,
}

/// The answer to an acknowledged cancel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acknowledged {
    /// The run is cancelled, now or before by this same worker.
    Cancelled,
    /// No cancel was requested.
    NotRequested,
    /// The run ended in another way first.
    Finished,
    /// The capability is not the current epoch's, or there is no such run.
    Fenced,
}
