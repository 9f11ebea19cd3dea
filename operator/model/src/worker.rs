//! What a worker asks of its run: attach, commit, heartbeat, finish, acknowledge a cancel.

use dalsegno_protocol::{Boundary, PlannedCall, RawValue, RecordOp, Usage};
use uuid::Uuid;

use crate::{Base, Digest, NewFinish, RunId, RunRecord};

/// The answer to an attach.
#[derive(Clone, Debug)]
pub enum Attached {
    /// The worker may write. The row after.
    Ok(Box<RunRecord>),
    /// No run of this id.
    NotFound,
    /// The attempt's pod is not recorded yet: ask again.
    NotRecorded,
    /// The image's verdict is not recorded yet: ask again.
    VersionPending,
    /// The run does not go on under this image; why.
    VersionIncompatible(String),
    /// Another process of this attempt attached before.
    Spent,
    /// Not the pod of the current attempt.
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
    /// Channel operations, as the JSON text of [`dalsegno_protocol::ChannelOps`]; `None`: the state stays.
    pub ops: Option<Vec<u8>>,
    /// Whether `ops` is the full state.
    pub full: bool,
    /// Bytes that `ops` add to the state at most (`dalsegno_format::size::of_ops`).
    pub size: usize,
    /// A state, where the committer knows one: full operations may then be kept as a patch. If it is not the head's,
    /// they are kept plain; of the boundary that it names it must be the state, which nobody holds it to.
    pub base: Option<Base>,
    /// The events, each as it came.
    pub events: Vec<Box<RawValue>>,
    /// Calls that the turn will make.
    pub calls: Vec<PlannedCall>,
    /// Changes of records, applied with the boundary.
    pub records: Vec<RecordOp>,
    /// What the boundary spent.
    pub usage: Usage,
    /// Why it was committed.
    pub trigger: Option<String>,
    /// The run ends with it.
    pub finish: Option<NewFinish>,
}

/// The answer to a commit or a finish.
#[derive(Clone, Debug, PartialEq)]
pub enum Committed {
    /// Committed now.
    Ok(Standing),
    /// Committed before, with the same bytes.
    Duplicate(Standing),
    /// Not the next boundary, or there with other bytes.
    Conflict {
        /// The head it was judged by; `None`: nothing is committed yet.
        head: Option<(i32, Boundary)>,
    },
    /// The capability is not the current epoch's.
    Fenced {
        /// Whether this very commit stands on the live branch.
        committed: bool,
    },
    /// The run is over.
    Finished,
    /// Calls of an earlier attempt are unsettled.
    UnsettledCalls,
    /// The state would be larger than it may be ([`dalsegno_protocol::Limits::STATE_BYTES`]).
    TooLarge,
    /// With the planned calls the open ones would count more than they may
    /// ([`dalsegno_protocol::Limits::OPEN_CALLS_BYTES`]).
    CallsTooLarge,
    /// No run of this id.
    NotFound,
}

/// Where a run stands after a commit.
#[derive(Clone, Debug, PartialEq)]
pub struct Standing {
    /// The head; `None` only after a finish of a run that never committed.
    pub head: Option<dalsegno_protocol::Head>,
    /// Content hash of the boundary before the head; told only of a boundary that was committed now and has one.
    pub parent: Option<Digest>,
    /// What a person asks for.
    pub asked: Asked,
}

/// What a person asks of a worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// Reserved: always false.
    pub suspend: bool,
    /// Stop for good.
    pub cancel: bool,
    /// Length of the lease, in milliseconds.
    pub lease_ms: i64,
}

/// The answer to one heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beat {
    /// The lease is renewed.
    Ok(Asked),
    /// The run is over.
    Finished,
    /// The capability is not the current epoch's, or there is no such run.
    Fenced,
}

/// A finish without a boundary.
#[derive(Debug)]
pub struct FinishCall {
    /// Of which run.
    pub run: RunId,
    /// SHA-256 of the worker's instance.
    pub capability: Digest,
    /// The worker's id of it.
    pub commit_id: Uuid,
    /// SHA-256 of the body as it came.
    pub digest: Digest,
    /// How it ended.
    pub finish: NewFinish,
}

/// The answer to an acknowledged cancel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acknowledged {
    /// The run is cancelled; now, or before by this very worker.
    Cancelled,
    /// Nobody asked for it.
    NotRequested,
    /// The run had come to another end first.
    Finished,
    /// The capability is not the current epoch's, or there is no such run.
    Fenced,
}
