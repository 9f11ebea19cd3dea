//! What the gateway asks of the store on behalf of a worker.

use async_trait::async_trait;

use crate::{
    Acknowledged, Attached, Beat, Claim, Claimed, Commit, Committed, Complete, Completed, Digest, FinishCall,
    RecordBatch, Result, RunId, Settle, Snapshotted, Written,
};

/// What the gateway asks on behalf of a worker. Every write carries the worker's capability, and is refused unless that is
/// the current epoch's.
#[async_trait]
pub trait Worker: Send + Sync + 'static {
    /// A worker's process takes its attempt. Judged in this order: unknown run; not the recorded pod of the current
    /// attempt (`NotRecorded` while the attempt is `reserved`, else `Fenced`); finished; no verdict yet; a verdict
    /// against it; another instance attached before (`Spent`, which is recorded). The same instance again: `Ok`.
    async fn attach(&self, run: RunId, pod_uid: &str, instance: &Digest) -> Result<Attached>;

    /// Commits a boundary. Judged under the row's lock in this order: unknown run; fenced; duplicate (same id and
    /// digest as the head); finished; unsettled calls of an earlier attempt; conflict (not the next boundary, or
    /// another body for one that is there); too large (`dalsegno_format::size`): the state, then the open calls.
    ///
    /// In the same statement: the boundary's row with its content hash, planned calls, records, usage added, the head moved,
    /// a bound lease renewed, the finish.
    async fn commit(&self, commit: &Commit) -> Result<Committed>;

    /// Renews the leases of these workers, in one statement that need not be durable. One answer for each, in order.
    async fn heartbeats(&self, workers: &[(RunId, Digest)]) -> Result<Vec<Beat>>;

    /// Claims a call before its effect. See [`Claimed`] and `docs/reference/contract.md` for the verdicts.
    async fn claim(&self, claim: &Claim) -> Result<Claimed>;

    /// Stores a call's result. Idempotent for the same outcome and result.
    async fn complete(&self, complete: &Complete) -> Result<Completed>;

    /// Says how a call that was begun has ended: on the current worker's or a person's word ([`crate::SettledBy`]).
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

    /// Whether this capability is the current one (for reads).
    async fn is_current(&self, run: RunId, capability: &Digest) -> Result<bool>;

    /// Makes a snapshot of the state at the head, if one is due: [`crate::SNAPSHOT_DUE`] boundaries past what a lookup can
    /// begin with. Never touches the run's row; any number may try at once. What was made is read back and held to the
    /// state before this answers.
    async fn snapshot(&self, run: RunId) -> Result<Snapshotted>;

    /// A gateway says that it serves. The operator trusts no deadline unless somebody has said so lately. A longer silence
    /// is a gap, after which every clock starts anew; so is, in an embedded store, the start of its process, however short
    /// it was away: every worker has lost its connection, and may wait on a dead one for seconds.
    async fn beat(&self) -> Result<()>;
}
