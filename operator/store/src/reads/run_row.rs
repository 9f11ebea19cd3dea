//! A run's row.

use dalsegno_protocol::{Boundary, ParkMode, Policy, Usage};
use uuid::Uuid;

use super::table::table;
use super::{BoundaryColumn, EnumText, Hash};
use crate::db_error::{DbResult, timestamp};
use dalsegno_format::header;
use dalsegno_model::read_transaction::{HeadRef, RunHead};
use dalsegno_model::{
    AttemptState, BoundaryId, Counters, Digest, ForkState, Lifecycle, Retention, RunOutcome, Verdict,
    WorkerSignals,
};

table! {
    /// A run. Every write to a run is checked against this row.
    RunRow in "runs" {
        id: Uuid,
        tenant: String,
        namespace: String,
        name: String,
        object_uid: String,
        created_at: i64,
        lifecycle: EnumText<Lifecycle>,
        epoch: i64,
        capability: Option<Hash>,
        last_capability: Option<Hash>,
        attempt: i32,
        attempt_state: EnumText<AttemptState>,
        pod_uid: Option<String>,
        attempt_turn: i32,
        attempt_completed: i64,
        verdict: Option<EnumText<Verdict>>,
        remark: Option<String>,
        scheduled_at: Option<i64>,
        attached_at: Option<i64>,
        lease_renewed_at: Option<i64>,
        lease_ms: i64,
        spent: bool,
        head_turn: Option<i32>,
        head_boundary: Option<BoundaryColumn>,
        head_epoch: Option<i64>,
        head_attempt: Option<i32>,
        head_commit_id: Option<Uuid>,
        head_digest: Option<Hash>,
        head_hash: Option<Hash>,
        head_position: i64,
        head_at: Option<i64>,
        highest_turn: i32,
        completed_calls: i64,
        unsettled_retry_same_key: i64,
        unsettled_probe: i64,
        unsettled_ask: i64,
        unsettled_read_only: i64,
        keys_refused: i64,
        recovery_attempts: i32,
        recovery_attempts_base: i32,
        attempts_without_progress: i32,
        disruptions: i32,
        disruptions_base: i32,
        disruptions_without_progress: i32,
        observed_reset_generation: i64,
        reset_attempt: i32,
        stored_bytes: i64,
        tokens_in: i64,
        tokens_out: i64,
        tool_calls: i64,
        cost_micro_usd: i64,
        cancel_requested_at: Option<i64>,
        cancel_told_at: Option<i64>,
        suspend: bool,
        suspend_requested_at: Option<i64>,
        suspend_told_at: Option<i64>,
        heartbeat_ms: i64,
        start_ms: i64,
        progress_ms: i64,
        suspend_ms: i64,
        limit_turns: Option<i64>,
        limit_tokens: Option<i64>,
        limit_cost: Option<i64>,
        limit_active_ms: Option<i64>,
        limit_reached_at: Option<i64>,
        active_ms: i64,
        limits_near: i32,
        announced: Option<String>,
        finish_outcome: Option<EnumText<RunOutcome>>,
        finish_reason: Option<String>,
        finish_message: Option<String>,
        finish_output: Option<String>,
        finish_commit_id: Option<Uuid>,
        finish_digest: Option<Hash>,
        finish_at: Option<i64>,
        changed_at: i64,
        audit_seq: i64,
        audit_hash: Hash,
        records_digest: Option<Hash>,
        retention_days: i32,
        expired_at: Option<i64>,
        emptied: bool,
        keep_last: Option<i32>,
        snapshot_every: Option<i32>,
        dropped_turn: Option<i32>,
        dropped_boundary: Option<BoundaryColumn>,
        dropped_epoch: Option<i64>,
        over_at: Option<i64>,
        state_bytes: Option<i64>,
        state_hash: Option<Hash>,
        open_calls_bytes: Option<i64>,
        open_calls_turn: Option<i32>,
        own_open_calls: i64,
        rewinds: i32,
        park_id: Option<Uuid>,
        last_wait: i64,
        open_waits: i64,
        open_wait_bytes: i64,
        parked_on: Option<Vec<String>>,
        park_mode: Option<EnumText<ParkMode>>,
        parked_at: Option<i64>,
        parks_without_progress: i32,
        wake_at: Option<i64>,
        inbox: i64,
        unread: i64,
        unread_bytes: i64,
        observed_rewind_generation: i64,
        rewind_result: Option<String>,
        fork_state: Option<EnumText<ForkState>>,
        fork_parent: Option<Uuid>,
        fork_turn: Option<i32>,
        fork_epoch: Option<i64>,
        fork_hash: Option<Hash>,
        fork_space: Option<String>,
        fork_key: Option<String>,
        fork_seq: Option<i64>,
        external: bool,
    }
}

/// The latest boundary, from the columns of the run's row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HeadPoint {
    pub turn: i32,
    pub boundary: Boundary,
    pub epoch: i64,
    pub attempt: i32,
    pub commit_id: Uuid,
    pub digest: Digest,
    pub hash: Digest,
    pub at: i64,
}

impl RunRow {
    /// The latest boundary, if anything is committed.
    pub fn head(&self) -> Option<HeadPoint> {
        Some(HeadPoint {
            turn: self.head_turn?,
            boundary: self.head_boundary?.0,
            epoch: self.head_epoch?,
            attempt: self.head_attempt?,
            commit_id: self.head_commit_id?,
            digest: self.head_digest?.0,
            hash: self.head_hash?.0,
            at: self.head_at?,
        })
    }

    /// The last boundary of the live branch whose payloads were dropped by compaction.
    pub fn dropped_to(&self) -> Option<BoundaryId> {
        Some(BoundaryId {
            turn: self.dropped_turn?,
            boundary: self.dropped_boundary?.0,
            epoch: self.dropped_epoch?,
        })
    }

    /// How much of the run is kept, and for how long.
    pub fn retention(&self) -> Retention {
        let Self { keep_last, snapshot_every, .. } = *self;
        Retention { days: self.retention_days, keep_last, snapshot_every }
    }

    /// Sets how much of the run is kept, and for how long.
    pub fn set_retention(&mut self, Retention { days, keep_last, snapshot_every }: Retention) {
        (self.retention_days, self.keep_last) = (days, keep_last);
        self.snapshot_every = snapshot_every;
    }

    /// An upper limit of the size of the state at the head, in bytes. `None` if the head has moved since it was
    /// measured.
    pub fn known_state_bytes(&self) -> Option<i64> {
        self.state_bytes.filter(|_| self.state_hash == self.head_hash)
    }

    /// Moves the head.
    pub fn set_head(&mut self, head: HeadPoint, position: i64) {
        let HeadPoint { turn, boundary, epoch, attempt, commit_id, digest, hash, at } = head;
        self.head_turn = Some(turn);
        self.head_boundary = Some(BoundaryColumn(boundary));
        self.head_epoch = Some(epoch);
        self.head_attempt = Some(attempt);
        self.head_commit_id = Some(commit_id);
        self.head_digest = Some(Hash(digest));
        self.head_hash = Some(Hash(hash));
        self.head_at = Some(at);
        self.head_position = position;
    }

    /// The run for checks of the store and exports of a run.
    pub fn run_head(self) -> DbResult<RunHead> {
        let head = self.head().map(|head| HeadRef {
            boundary: BoundaryId { turn: head.turn, boundary: head.boundary, epoch: head.epoch },
            content_hash: head.hash,
            position: self.head_position,
        });
        Ok(RunHead {
            id: self.id,
            head,
            created_at: timestamp(self.created_at)?,
            lifecycle: self.lifecycle.0,
            outcome: self.finish_outcome.map(|outcome| outcome.0),
            epoch: self.epoch,
            audit_seq: self.audit_seq,
            audit_hash: self.audit_hash.0,
            records_digest: self.records_digest.map(|hash| hash.0),
            tenant: self.tenant,
            namespace: self.namespace,
            name: self.name,
            object_uid: self.object_uid,
        })
    }

    /// The head for workers.
    pub fn public_head(&self) -> Option<dalsegno_protocol::Head> {
        self.head().map(|head| dalsegno_protocol::Head {
            turn: head.turn,
            boundary: head.boundary,
            position: self.head_position,
            content_hash: header::render(&head.hash),
        })
    }

    /// The open turn: the head's if its boundary is `plan`, otherwise the next one.
    pub fn open_turn(&self) -> i32 {
        match self.head() {
            None => 1,
            Some(HeadPoint { turn, boundary: Boundary::Plan, .. }) => turn,
            Some(HeadPoint { turn, boundary: Boundary::Result, .. }) => turn + 1,
        }
    }

    /// The boundary that is committed next, unless the open turn has no plan: then its result is. What is stored before
    /// it is undone by a rewind to an earlier boundary.
    pub fn next_boundary(&self) -> Boundary {
        match self.head() {
            Some(HeadPoint { boundary: Boundary::Plan, .. }) => Boundary::Result,
            Some(HeadPoint { boundary: Boundary::Result, .. }) | None => Boundary::Plan,
        }
    }

    /// The run is not parked on waits.
    pub fn unpark(&mut self) {
        (self.parked_on, self.park_mode, self.parked_at) = (None, None, None);
    }

    /// The run has no open waits.
    pub fn clear_waits(&mut self) {
        (self.open_waits, self.open_wait_bytes, self.wake_at) = (0, 0, None);
        self.unpark();
    }

    /// Tokens, tool calls and cost of all boundaries.
    pub fn usage(&self) -> Usage {
        Usage {
            tokens_in: self.tokens_in,
            tokens_out: self.tokens_out,
            tool_calls: self.tool_calls,
            cost_micro_usd: self.cost_micro_usd,
        }
    }

    /// What the worker must know: whether to suspend, to cancel or to exit, its latest message, and the length of its
    /// lease.
    pub fn worker_signals(&self, now: i64) -> WorkerSignals {
        WorkerSignals {
            suspend: self.suspend,
            cancel: self.cancel_requested_at.is_some(),
            limit: self.is_limit_reached(now),
            inbox: self.inbox,
            lease_ms: self.heartbeat_ms,
        }
    }

    /// The counters of recovery.
    pub fn counters(&self) -> Counters {
        Counters {
            recovery_attempts: self.recovery_attempts,
            recovery_attempts_base: self.recovery_attempts_base,
            attempts_without_progress: self.attempts_without_progress,
            disruptions: self.disruptions,
            disruptions_base: self.disruptions_base,
            disruptions_without_progress: self.disruptions_without_progress,
        }
    }

    pub fn set_counters(&mut self, counters: Counters) {
        let Counters {
            recovery_attempts,
            recovery_attempts_base,
            attempts_without_progress,
            disruptions,
            disruptions_base,
            disruptions_without_progress,
        } = counters;
        self.recovery_attempts = recovery_attempts;
        self.recovery_attempts_base = recovery_attempts_base;
        self.attempts_without_progress = attempts_without_progress;
        self.disruptions = disruptions;
        self.disruptions_base = disruptions_base;
        self.disruptions_without_progress = disruptions_without_progress;
    }

    /// The number of calls with this policy that an earlier attempt started and nobody settled.
    pub fn unsettled(&mut self, policy: Policy) -> &mut i64 {
        match policy {
            Policy::RetrySameKey => &mut self.unsettled_retry_same_key,
            Policy::Probe => &mut self.unsettled_probe,
            Policy::Ask => &mut self.unsettled_ask,
            Policy::ReadOnly => &mut self.unsettled_read_only,
        }
    }

    /// Adds the usage of a boundary.
    pub fn spend(&mut self, usage: &Usage) {
        let Usage { tokens_in, tokens_out, tool_calls, cost_micro_usd } = *usage;
        self.tokens_in = self.tokens_in.saturating_add(tokens_in);
        self.tokens_out = self.tokens_out.saturating_add(tokens_out);
        self.tool_calls = self.tool_calls.saturating_add(tool_calls);
        self.cost_micro_usd = self.cost_micro_usd.saturating_add(cost_micro_usd);
    }
}
