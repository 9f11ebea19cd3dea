//! The gateway's calls to the store on behalf of a worker.

use async_trait::async_trait;

use crate::{
    Acknowledged, Attached, Claim, Claimed, Commit, Committed, Complete, Completed, Digest, FinishCall,
    HeartbeatAnswer, OpenWaitRequest, Park, Parked, RecordBatch, Result, RunId, Settle, Snapshotted,
    WaitOpened, WaitPolled, Written,
};

/// The gateway's calls on behalf of a worker. Every write carries the worker's capability, and is rejected unless the
/// capability is the current epoch's.
#[async_trait]
pub trait Worker: Send + Sync + 'static {
    /// Attaches a worker's process to its attempt. Checks in this order: unknown run; not the recorded pod of the
    /// current attempt (`NotRecorded` while the attempt is `reserved`, otherwise `Fenced`); finished; no verdict yet;
    /// verdict refused; another instance attached before (`Spent`, which is recorded). The same instance again: `Ok`.
    async fn attach(&self, run: RunId, pod_uid: &str, instance: &Digest) -> Result<Attached>;

    /// Commits a boundary. Checks under the row's lock, in this order: unknown run; fenced; duplicate (same id and
    /// digest as the head); finished; unsettled calls of an earlier attempt; conflict (not the next boundary, or a
    /// boundary with another body is there); too large (`dalsegno_format::size`), first the state, then the open
    /// calls; a message that is not unread.
    ///
    /// The same statement writes the boundary's row with its content hash, planned calls, records and the finish,
    /// adds the usage, moves the head, and renews the lease if there is one. The same transaction takes the messages.
    async fn commit(&self, commit: &Commit) -> Result<Committed>;

    /// Renews the leases of these workers in one statement, which need not be durable. Returns one answer per worker,
    /// in order.
    async fn heartbeats(&self, workers: &[(RunId, Digest)]) -> Result<Vec<HeartbeatAnswer>>;

    /// Claims a call before its effect. [`Claimed`] and `docs/reference/contract.md` list the verdicts.
    async fn claim(&self, claim: &Claim) -> Result<Claimed>;

    /// Stores a call's result. Idempotent for the same outcome and result.
    async fn complete(&self, complete: &Complete) -> Result<Completed>;

    /// Settles a call that was started, as reported by the current worker or a person ([`crate::SettledBy`]).
    async fn settle(&self, settle: &Settle) -> Result<Completed>;

    /// Applies a batch of changes of records: all of them or none. Checks as for a commit: unknown run; fenced;
    /// duplicate (same id and digest as a batch of the live branch); finished; unsettled calls of an earlier attempt;
    /// conflict (same id, other digest). The changes are included in the hash of the next boundary.
    async fn write_records(&self, batch: &RecordBatch) -> Result<Written>;

    /// Finishes the run without a new state. The epoch does not move.
    async fn finish(&self, finish: &FinishCall) -> Result<Committed>;

    /// The worker acknowledges the cancel and stops: moves the epoch, and finishes the run as `Cancelled`. A retry by
    /// the same worker gets the same answer.
    async fn acknowledge_cancel(&self, run: RunId, capability: &Digest) -> Result<Acknowledged>;

    /// The worker parks: its attempt ends, and the next one is reserved. Acknowledges a suspend, or a cancel. A retry by
    /// the same worker with the same id gets the same answer. If the park names waits, the run goes on once they are
    /// answered; [`Parked::Ready`] if they are already.
    async fn park(&self, park: &Park) -> Result<Parked>;

    /// Opens a wait. The same bytes give the wait again, in later attempts too. Checks under the row's lock, in this
    /// order: unknown run; fenced; finished; opened before; too many; too large.
    async fn open_wait(&self, request: &OpenWaitRequest) -> Result<WaitOpened>;

    /// The states of waits, for workers that wait for their answers: one query for all of them. Returns one answer for
    /// each, in order.
    async fn wait_states(&self, waits: &[(RunId, Digest, String)]) -> Result<Vec<WaitPolled>>;

    /// Whether this capability is the current one. Used for reads.
    async fn is_current(&self, run: RunId, capability: &Digest) -> Result<bool>;

    /// Makes a snapshot of the state at the head if one is due, that is [`crate::Snapshotted::due`] boundaries after the
    /// nearest starting point of a lookup. Never changes the run's row; several callers may try at once. Before this
    /// returns, the snapshot is read back and compared with the state.
    async fn snapshot(&self, run: RunId) -> Result<Snapshotted>;

    /// Records that a gateway is serving. The operator trusts no deadline without a recent heartbeat of a gateway. A
    /// longer silence is an outage, during which every deadline pauses. In an embedded store the start of its process
    /// ends an outage too, however short it was: every worker has lost its connection, and may wait for seconds on a
    /// dead one.
    ///
    /// Returns the lowest version of the contract among the gateways that serve ([`dalsegno_protocol::CONTRACT`]).
    async fn record_gateway_heartbeat(&self) -> Result<i32>;
}
