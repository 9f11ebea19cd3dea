//! What the operator asks of the store.

use async_trait::async_trait;
use jiff::Timestamp;

use crate::{
    AnchorRow, AskedBy, Created, Deadlines, Dropped, Ending, Held, Identity, LookUp, NewRun, PodRecord,
    Pulse, Recorded, Result, Retention, Rewind, Rewound, RunId, RunRecord, Then, Unanchored,
};

/// What the operator asks: each transition of a run, what is due in all runs, and what is past its retention.
#[async_trait]
pub trait Operator: Send + Sync + 'static {
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
    /// already, compute its progress from the head that is fenced by this very step, count it (see [`crate::Class`]), end it
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
    /// there. It stays while the attempt is reserved ([`crate::CANDIDATES`]) and, once the pod is recorded, while the run lives.
    ///
    /// Refused ([`Recorded::Refused`]) if the attempt is not the current one of a run that lives, or is not `reserved`.
    async fn put_revision(&self, run: RunId, attempt: i32, hash: &str, document: &str) -> Result<Recorded>;

    /// A template by its hash.
    async fn get_revision(&self, hash: &str) -> Result<Option<String>>;

    /// One query for all runs: deadlines that have run out by the store's clock, and what changed at or after `since`.
    ///
    /// A deadline is listed only while the gateways beat (the last beat is fresh), and only if it had its full length
    /// since the beats began: an outage of ours starts every clock anew.
    async fn pulse(&self, since: Timestamp) -> Result<Pulse>;

    /// Runs after this one ([`RunId::nil`]: from the first), in order, that are past their retention: some of them, none only
    /// after the last.
    async fn expired(&self, after: RunId) -> Result<Vec<RunId>>;

    /// One step of dropping what is past its retention: no more than so many rows, and none after those that hold 8 MiB, of
    /// a run that is finished, deleted or abandoned. The payloads of boundaries and calls, records, and snapshots go, and
    /// the data key with the last of them; headers stay, so that the chain still verifies, and so do the audit, which tells
    /// of it first, and the run's own row. A run that lives, or that somebody else is at, is not touched.
    async fn drop_expired(&self, run: RunId, rows: u32) -> Result<Dropped>;

    /// Runs after this one ([`RunId::nil`]: from the first), in order, that keep no more than their last boundaries and may
    /// have more: some of them, none only after the last.
    async fn keepers(&self, after: RunId) -> Result<Vec<RunId>>;

    /// One step of dropping what stands before the last boundaries that a run keeps ([`Retention::keep_last`]); while it
    /// lives, up to nine more keep theirs. First a snapshot of the state that the kept ones begin with is made, read back
    /// and held to the state that the boundaries make; only then the payloads of no more than so many boundaries of the
    /// live branch go, and what was undone beside them. Older snapshots go after that, one in a step. Headers, calls,
    /// records and the audit, which tells of each step, stay.
    ///
    /// [`crate::Error::Corrupt`]: the state cannot be rebuilt, and nothing was dropped.
    async fn drop_old(&self, run: RunId, rows: u32) -> Result<Dropped>;

    /// One step of dropping templates that no run needs: no more than so many, and none after those that hold 8 MiB. A run
    /// that lives needs those of all its attempts, since a rewind may go back to any of them, and those that the pod of its
    /// reserved attempt may be made of. Answers how many were dropped.
    async fn drop_revisions(&self, rows: u32) -> Result<u64>;

    /// Which namespaces hold most, and how much: of so many of them, in the order of their names; all others together
    /// have none. It reads the runs' own rows, and no payload.
    async fn capacity(&self, namespaces: u32) -> Result<Vec<Held>>;

    /// The last anchor, and runs that have moved since one named them: as many as one may name.
    async fn unanchored(&self) -> Result<Unanchored>;

    /// Keeps an anchor. False, and nothing is kept: another one has its number.
    async fn put_anchor(&self, anchor: &AnchorRow) -> Result<bool>;
}
