//! The store: what a run has committed, which attempt may write, and nothing that can be derived from these.
//!
//! One trait, [`Store`], with three faces: PostgreSQL, SQLite in a file, SQLite in memory. One conformance suite runs
//! on all of them.
//!
//! # Guarantees
//!
//! - Every method is atomic and, once it has answered, durable. Every method is one round trip to the database; a
//!   commit that finds its run locked, and a lookup that begins with a snapshot, are two; making a snapshot, and a commit
//!   for which the state must be counted ([`size`]), are a few.
//!   Commits of many runs that come at once share a round trip, and each is judged as if it came alone.
//! - A write of a worker is judged against the run's row under its lock, in the same statement that writes: a
//!   capability that is not the current epoch's is refused, whoever holds it and however late it comes.
//! - Every method may be sent again after an unknown outcome: it then changes nothing and tells what is there.
//!
//! # Assumptions
//!
//! - The database keeps what it has acknowledged (`fsync` on; refused otherwise at start).
//! - Times are the database's own; no caller's clock enters a decision here.
//!
//! # Caveats
//!
//! - An [`Error`] is an unknown outcome, never a "no". Only an answer is an answer.

// Without a database there are the words alone, which is what the decision needs.
#![cfg_attr(not(any(feature = "postgres", feature = "sqlite")), allow(unused))]

pub mod audit;
mod base;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod branch;
mod chain;
mod checkpoint;
pub mod codec;
mod error;
mod events;
mod fault;
pub mod fold;
pub mod header;
pub mod keys;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod lines;
pub mod manifest;
pub mod memory;
mod model;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod old;
mod open;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod packed;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod pages;
#[cfg(feature = "postgres")]
pub mod postgres;
pub mod proof;
pub mod reading;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod reads;
mod records;
pub mod seal;
pub mod size;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod snapshot;
#[cfg(feature = "sqlite")]
pub mod sqlite;
mod survey;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod transitions;
pub mod verify;

pub use base::LastState;
pub use chain::{Gone, Kept, Place};
pub use checkpoint::checkpoint;
pub use error::{Error, Result};
pub use model::*;
pub use open::{grant, migrate, open, open_beside, open_read_only};
pub use reading::Reading;
pub use survey::{Damage, Findings, Link, Sound, Survey};

use crate::proof::{Anchor, Unanchored};
use async_trait::async_trait;
use dalsegno_protocol::{Call, State};
use jiff::Timestamp;
use uuid::Uuid;

/// What the operator, the gateway and a person ask of the store.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// The store's own id, made by its first migration. A run that was begun in another store is not touched.
    async fn id(&self) -> Result<Uuid>;

    /// A gateway says that it serves. The operator trusts no deadline unless somebody has said so lately. A longer silence
    /// is a gap, after which every clock starts anew; so is, in an embedded store, the start of its process, however short
    /// it was away: every worker has lost its connection, and may wait on a dead one for seconds.
    async fn beat(&self) -> Result<()>;

    /// One query for all runs: deadlines that have run out by the store's clock, and what changed at or after `since`.
    ///
    /// A deadline is listed only while the gateways beat (the last beat is fresh), and only if it had its full length
    /// since the beats began: an outage of ours starts every clock anew.
    async fn pulse(&self, since: Timestamp) -> Result<Pulse>;

    /// Which namespaces hold most, and how much: of so many of them, in the order of their names; all others together
    /// have none. It reads the runs' own rows, and no payload.
    async fn capacity(&self, namespaces: u32) -> Result<Vec<Held>>;

    // --- the operator -----------------------------------------------------------------------------------------------

    /// Takes a run up: creates its row with attempt 1 `reserved`, or returns the row that this object already has.
    ///
    /// A live, finished or held row of the same namespace and name that belongs to another object and was not deleted
    /// or abandoned is a *prior run*; [`NewRun::on_prior`] says what becomes of it. An adopted row gets the new object
    /// UID and a new epoch, its attempt ends as `Adopted` (neutral), and the next one is reserved; unless it is
    /// finished, which it stays. Adoption needs the same tenant (namespace UID).
    async fn create_run(&self, new: &NewRun) -> Result<Created>;

    /// Everything about the run of this object, by its UID.
    async fn look_up(&self, object_uid: &str) -> Result<LookUp>;

    /// Ends an attempt, and with it the right of its worker to write.
    ///
    /// In one step: if `ending.attempt` is not the current attempt, change nothing. Else, unless it is `ended`
    /// already, compute its progress from the head that is fenced by this very step, count it (see [`Class`]), end it
    /// and move the epoch. Then do what `then` says. Returns the row as it stands after.
    ///
    /// A finished run is never changed.
    async fn end_attempt(&self, run: RunId, ending: &Ending, then: &Then) -> Result<RunRecord>;

    /// `reserved → created`: this pod, and no other, is the attempt's. With the identity and its verdict where the
    /// image is named by digest, so that they need no second call.
    ///
    /// The same pod again is fine. Refused ([`Recorded::Refused`]) if the attempt is not the current one, or is not
    /// `reserved` and has another pod.
    async fn record_pod(&self, run: RunId, attempt: i32, pod: &PodRecord) -> Result<Recorded>;

    /// The pod has a node: the start deadline begins to run. Only the first call counts.
    async fn record_scheduled(&self, run: RunId, attempt: i32, node: &str) -> Result<Recorded>;

    /// What the worker's image turned out to be, and whether the run may go on under it. Only the first call counts.
    async fn record_identity(&self, run: RunId, attempt: i32, identity: &Identity) -> Result<Recorded>;

    /// A person wants the run cancelled: workers hear of it with their next call. Only the first call counts.
    async fn request_cancel(&self, run: RunId, asked: &AskedBy) -> Result<RunRecord>;

    /// Grants one fresh budget: if the row's `observed_reset_generation` is still `observed`, it becomes `to`, the
    /// in-a-row counters become 0, the totals become the new base, and attempts that have ended count no more as
    /// evidence for a hold (`reset_attempt`).
    async fn reset_budget(&self, run: RunId, observed: i64, to: i64, asked: &AskedBy) -> Result<RunRecord>;

    /// The lengths of the deadlines, obeyed at once; but a lease that is made shorter is so from its next renewal on.
    async fn set_deadlines(&self, run: RunId, deadlines: &Deadlines) -> Result<RunRecord>;

    /// What is kept of the run; obeyed at once, also by a run that has ended.
    async fn set_retention(&self, run: RunId, retention: &Retention) -> Result<RunRecord>;

    /// Runs after this one ([`RunId::nil`]: from the first), in order, that are past their retention: some of them, none only
    /// after the last.
    async fn expired(&self, after: RunId) -> Result<Vec<RunId>>;

    /// One step of dropping what is past its retention: no more than so many rows, and none after those that hold 8 MiB, of
    /// a run that is finished, deleted or abandoned. The payloads of boundaries and calls, records, and snapshots go, and
    /// the data key with the last of them; headers stay, so that the chain still verifies, and so do the audit, which tells
    /// of it first, and the run's own row. A run that lives, or that somebody else is at, is not touched.
    async fn drop_expired(&self, run: RunId, rows: u32) -> Result<Dropped>;

    /// One step of dropping templates that no run needs: no more than so many, and none after those that hold 8 MiB. A run
    /// that lives needs those of all its attempts, since a rewind may go back to any of them, and those that the pod of its
    /// reserved attempt may be made of. Answers how many were dropped.
    async fn drop_revisions(&self, rows: u32) -> Result<u64>;

    /// Runs after this one ([`RunId::nil`]: from the first), in order, that keep no more than their last boundaries and may
    /// have more: some of them, none only after the last.
    async fn keepers(&self, after: RunId) -> Result<Vec<RunId>>;

    /// One step of dropping what stands before the last boundaries that a run keeps ([`Retention::keep_last`]); while it
    /// lives, up to nine more keep theirs. First a snapshot of the state that the kept ones begin with is made, read back
    /// and held to the state that the boundaries make; only then the payloads of no more than so many boundaries of the
    /// live branch go, and what was undone beside them. Older snapshots go after that, one in a step. Headers, calls,
    /// records and the audit, which tells of each step, stay.
    ///
    /// [`Error::Corrupt`]: the state cannot be rebuilt, and nothing was dropped.
    async fn drop_old(&self, run: RunId, rows: u32) -> Result<Dropped>;

    /// Goes back to an earlier boundary of the live branch, in one step: moves the epoch, marks the boundaries after it as
    /// undone and hides the records written after it, makes it the head. Event positions go on from the highest ever; calls
    /// keep their keys and results. A reserved attempt stays reserved under the new epoch, one with a pod ends as
    /// `Rewound` (neutral) and the next is reserved, an ended one stays ended.
    ///
    /// Refused ([`Rewound::Refused`]) where nothing can be gone back to, and where the epoch is not
    /// [`Rewind::epoch`] any more: the same rewind again changes nothing. Nothing is gone back to before
    /// [`RunRecord::dropped_to`].
    async fn rewind(&self, run: RunId, rewind: &Rewind) -> Result<Rewound>;

    /// The AgentRun is being deleted on purpose: fences the row and closes it for good. Idempotent; a run that the
    /// store does not know is fine.
    async fn mark_deleted(&self, object_uid: &str, asked: &AskedBy) -> Result<()>;

    /// Keeps the template that the pod of a reserved attempt is about to be made of, by the hash of its bytes, unless it is
    /// there. It stays while the attempt is reserved ([`CANDIDATES`]) and, once the pod is recorded, while the run lives.
    ///
    /// Refused ([`Recorded::Refused`]) if the attempt is not the current one of a run that lives, or is not `reserved`.
    async fn put_revision(&self, run: RunId, attempt: i32, hash: &str, document: &str) -> Result<Recorded>;

    /// A template by its hash.
    async fn get_revision(&self, hash: &str) -> Result<Option<String>>;

    /// Makes runs of a namespace that was re-created under another UID adoptable: moves every row of tenant `old` to
    /// `new`, audited with `actor` and `reason`. Returns how many.
    async fn adopt_namespace(&self, old: &str, new: &str, actor: &str, reason: &str) -> Result<u64>;

    // --- the gateway ------------------------------------------------------------------------------------------------

    /// A worker's process takes its attempt. Judged in this order: unknown run; not the recorded pod of the current
    /// attempt (`NotRecorded` while the attempt is `reserved`, else `Fenced`); finished; no verdict yet; a verdict
    /// against it; another instance attached before (`Spent`, which is recorded). The same instance again: `Ok`.
    async fn attach(&self, run: RunId, pod_uid: &str, instance: &Digest) -> Result<Attached>;

    /// Commits a boundary. Judged under the row's lock in this order: unknown run; fenced; duplicate (same id and
    /// digest as the head); finished; unsettled calls of an earlier attempt; conflict (not the next boundary, or
    /// another body for one that is there); too large ([`size`]): the state, then the open calls.
    ///
    /// In the same statement: the boundary's row with its content hash, planned calls, records, usage added, the head moved,
    /// a bound lease renewed, the finish.
    async fn commit(&self, commit: &Commit) -> Result<Committed>;

    /// Renews the leases of these workers, in one statement that need not be durable. One answer for each, in order.
    async fn heartbeats(&self, workers: &[(RunId, Digest)]) -> Result<Vec<Beat>>;

    /// Claims a call before its effect. See [`Claimed`] and `docs/worker-contract.md` for the verdicts.
    async fn claim(&self, claim: &Claim) -> Result<Claimed>;

    /// Stores a call's result. Idempotent for the same outcome and result.
    async fn complete(&self, complete: &Complete) -> Result<Completed>;

    /// Says how a call that was begun has ended: on the current worker's or a person's word ([`SettledBy`]).
    async fn settle(&self, settle: &Settle) -> Result<Completed>;

    /// Applies a batch of changes of records, all of them or none. Judged like a commit: unknown run; fenced; duplicate
    /// (same id and digest as a batch of the live branch); finished; unsettled calls of an earlier attempt; conflict
    /// (same id, other digest). The changes enter the hash of the next boundary.
    async fn write_records(&self, batch: &RecordBatch) -> Result<Written>;

    /// Closes the run where there is no new state. The epoch does not move.
    async fn finish(&self, finish: &FinishCall) -> Result<Committed>;

    /// The worker has heard of the cancel and stops: moves the epoch and finishes the run as `Cancelled`. The same
    /// worker's retry gets the same answer.
    async fn acknowledge_cancel(&self, run: RunId, capability: &Digest) -> Result<Acknowledged>;

    /// Everything about the run with this id.
    async fn get_run(&self, run: RunId) -> Result<Option<RunRecord>>;

    /// The state after turn `turn` of the live branch (its latest boundary), or after the head. `None` where nothing
    /// is committed or the live branch has no such turn. [`Error::Gone`]: it was dropped or shredded.
    async fn state(&self, run: RunId, turn: Option<i32>) -> Result<Option<State>>;

    /// A turn of the live branch (its latest boundary), without its payloads, and the state after it, of one moment. Like
    /// [`Self::state`].
    async fn boundary(&self, run: RunId, turn: i32) -> Result<Option<(BoundaryRow, State)>>;

    /// How much a lookup of the head reads, without reading it.
    async fn sizes(&self, run: RunId) -> Result<Sizes>;

    /// Makes a snapshot of the state at the head, if one is due: [`SNAPSHOT_DUE`] boundaries past what a lookup can
    /// begin with. Never touches the run's row; any number may try at once. What was made is read back and held to the
    /// state before this answers.
    async fn snapshot(&self, run: RunId) -> Result<Snapshotted>;

    /// Calls of a run in the order in which they were first seen.
    async fn calls(&self, run: RunId, which: CallFilter) -> Result<Vec<Call>>;

    /// Entries of a space of the run's records, in order. None for an unknown run.
    async fn read_records(&self, run: RunId, query: &RecordQuery) -> Result<RecordPage>;

    /// Events of the live branch in order, as they came, each boundary's held to its digest. Those that were dropped are
    /// left out: the first has a higher position then.
    async fn events(&self, run: RunId, query: EventQuery) -> Result<EventPage>;

    /// The position at which the events of this turn of the live branch begin, whether it has any or not. `None`: the live
    /// branch has no such turn.
    async fn first_event(&self, run: RunId, turn: i32) -> Result<Option<i64>>;

    /// Whether this capability is the current one (for reads).
    async fn is_current(&self, run: RunId, capability: &Digest) -> Result<bool>;

    // --- people -----------------------------------------------------------------------------------------------------

    /// Every row that ever had this namespace and name, the newest first.
    async fn find(&self, namespace: &str, name: &str) -> Result<Vec<RunRecord>>;

    /// One attempt of a run, however long ago; of the current one the lease stands in the run's own record.
    async fn attempt(&self, run: RunId, number: i32) -> Result<Option<Attempt>>;

    /// Boundaries of the live branch with a turn in `from..=to`, in order, payloads decoded; those that were dropped
    /// without them.
    async fn boundaries(&self, run: RunId, from: i32, to: i32) -> Result<Vec<BoundaryRow>>;

    /// The boundaries after this place, undone ones too, in the order of [`Place`], each judged by itself: some of them,
    /// none only after the last. Their payloads are read and not returned. See [`verify`].
    async fn links(&self, run: RunId, after: Option<Place>) -> Result<Vec<Link>>;

    /// Ids of runs after this one ([`RunId::nil`]: from the first), in order: some of them, none only after the last.
    async fn run_ids(&self, after: RunId) -> Result<Vec<RunId>>;

    /// The audit chain of a run, in order; it begins after what was pruned.
    async fn audit(&self, run: RunId) -> Result<Vec<AuditRow>>;

    /// Drops the start of a run's audit, up to and with the row that is named, and says so in the next one. How many rows
    /// went; 0: the run has no such row. Nothing goes of a run whose calls are not those that its rows tell of
    /// ([`Error::Corrupt`]). PostgreSQL: only the role that owns the tables may ([`Error::Unfit`]). Whether an
    /// anchor names that row, and whether nobody needs those before ([`audit::first_needed`]), is the caller's to know.
    async fn prune_audit(&self, prune: &Prune) -> Result<u64>;

    /// The store's own signing key, a PKCS#8 document: `fresh`, if it has none yet. Whoever can read the whole database
    /// can read it; a key in a file keeps it apart.
    async fn signing_key(&self, fresh: &[u8]) -> Result<Vec<u8>>;

    /// The last anchor, and runs that have moved since one named them: as many as one may name.
    async fn unanchored(&self) -> Result<Unanchored>;

    /// Keeps an anchor. False, and nothing is kept: another one has its number.
    async fn put_anchor(&self, anchor: &Anchor) -> Result<bool>;

    /// Wraps by the current key every data key that another one wraps; no payload is touched.
    async fn rewrap_keys(&self) -> Result<keys::Rewrapped>;

    /// Deletes the data key of a run that is over: nobody can read its sealed payloads any more, and the audit says so. Of
    /// those that are plain it touches none. Idempotent. A process that has looked the key up may read for another minute.
    async fn shred(&self, run: RunId, reason: &str, actor: &str) -> Result<Shredded>;

    /// How many payloads of a run are plain: boundaries, calls, values of records and snapshots that stand there from before
    /// it had a data key, or that has none.
    async fn unsealed(&self, run: RunId) -> Result<u64>;

    /// The whole store as it stands at this moment, to be read row by row. It holds a connection until it is dropped.
    async fn reading(&self) -> Result<Box<dyn Reading>>;
}
