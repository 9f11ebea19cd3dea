//! A run: how it is created, and everything that its row holds.

use std::collections::BTreeMap;

use dalsegno_protocol::{Boundary, Policy, Usage};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{
    Attempt, BoundaryId, FinishRow, ForkRow, Identity, InboxRow, OpenWait, ParkedOn, Retention, RewindResult,
    RunId, RunLimits, millis,
};

/// A request to create a run.
#[derive(Clone, Debug)]
pub struct NewRun {
    /// The id of the row, if one is created.
    pub id: RunId,
    /// UID of the namespace.
    pub tenant: String,
    /// Name of the namespace.
    pub namespace: String,
    /// Name of the AgentRun.
    pub name: String,
    /// UID of the AgentRun.
    pub object_uid: String,
    /// `recovery.resetGeneration` at creation. This value grants no budget.
    pub reset_generation: i64,
    /// `rewind.generation` at creation. This value rewinds nothing.
    pub rewind_generation: i64,
    /// Whether the run begins as a fork of another run ([`crate::Operator::fork`]).
    pub is_fork: bool,
    /// Whether the agent's own engine keeps the checkpoints, so that no worker attaches.
    pub is_external: bool,
    /// Lengths of the deadlines.
    pub deadlines: Deadlines,
    /// What to do about a prior run.
    pub on_prior: OnPrior,
}

/// What to do about a prior run of the same namespace and name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnPrior {
    /// Change nothing, and report the prior run.
    Hold,
    /// Adopt its row.
    Adopt,
    /// Mark its row as abandoned (this fences it), and create a new run.
    Ignore,
}

/// The answer to [`crate::Operator::create_run`].
#[derive(Clone, Debug)]
pub enum Created {
    /// The run's row: new, its own, or adopted.
    Run(Box<RunRecord>),
    /// A run of another object has the same namespace and name.
    Prior(PriorRun),
}

/// A run with the same namespace and name, but of another object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PriorRun {
    /// Its own id.
    pub id: RunId,
    /// UID of the object it belonged to.
    pub object_uid: String,
    /// UID of the namespace it belongs to.
    pub tenant: String,
    /// UID of the current namespace. If it differs from `tenant`, the run cannot be adopted.
    pub asked_by: String,
    /// Its latest turn.
    pub turn: i32,
}

/// The answer to [`crate::Operator::look_up`]. If the answer is unknown, an [`crate::Error`] is returned instead.
#[derive(Clone, Debug)]
pub enum LookUp {
    /// The run's row.
    Found(Box<RunRecord>),
    /// This store has no such run.
    NotFound {
        /// The store's id.
        store_id: Uuid,
        /// The store's clock.
        now: Timestamp,
    },
}

/// Everything about one run except its payloads. PostgreSQL's `run_record` function and SQLite return the same.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunRecord {
    /// The run's own id.
    pub id: RunId,
    /// The store's id.
    pub store_id: Uuid,
    /// The store's clock when this was read.
    #[serde(with = "millis")]
    pub now: Timestamp,
    /// UID of the namespace.
    pub tenant: String,
    /// Name of the namespace.
    pub namespace: String,
    /// Name of the AgentRun.
    pub name: String,
    /// UID of the AgentRun.
    pub object_uid: String,
    /// The lifecycle state.
    pub lifecycle: Lifecycle,
    /// The fencing number.
    pub epoch: i64,
    /// The current attempt: the one with the highest number.
    pub attempt: Attempt,
    /// Up to eleven earlier attempts, the latest first.
    pub past: Vec<Attempt>,
    /// The latest boundary.
    pub head: Option<HeadRow>,
    /// The highest turn that was ever committed. After a rewind it is above the head's turn.
    pub highest_turn: i32,
    /// How often the run was rewound.
    #[serde(default)]
    pub rewinds: i32,
    /// The last requested rewind that was made or refused, or the value at creation.
    #[serde(default)]
    pub observed_rewind_generation: i64,
    /// What became of that request; `None`: there was none.
    #[serde(default)]
    pub rewind: Option<RewindResult>,
    /// The run as a fork; `None`: it is not one.
    #[serde(default)]
    pub fork: Option<ForkRow>,
    /// Whether the agent's own engine keeps the checkpoints. Its worker never attaches, and nothing fences it.
    #[serde(default)]
    pub is_external: bool,
    /// The counters of recovery.
    pub counters: Counters,
    /// The last `resetGeneration` that was granted, or the value at creation.
    pub observed_reset_generation: i64,
    /// Attempts up to this number are forgiven: they are no evidence for a hold.
    pub reset_attempt: i32,
    /// Counts of the run's calls.
    pub calls: CallCounts,
    /// Sum over all committed boundaries.
    pub usage: Usage,
    /// The limits of the run, over all its attempts.
    #[serde(default)]
    pub limits: RunLimits,
    /// Since when a limit of turns, tokens or cost is reached. `None`: none of them is reached.
    #[serde(default, with = "millis::option")]
    pub limit_reached_at: Option<Timestamp>,
    /// Active time of the attempts that have ended, in milliseconds: from the attach to the end of each.
    #[serde(default)]
    pub active_ms: i64,
    /// The key of the last hold that was announced ([`crate::HoldNotice::key`]).
    #[serde(default)]
    pub announced: Option<String>,
    /// When a cancel was requested, and when the worker was notified.
    pub cancel: Option<SignalRow>,
    /// When a person suspended the run, and when the worker was notified. `None`: the run is not suspended.
    #[serde(default)]
    pub suspend: Option<SignalRow>,
    /// The messages to the run.
    #[serde(default)]
    pub inbox: InboxRow,
    /// How it ended.
    pub finish: Option<FinishRow>,
    /// Lengths of the deadlines.
    pub deadlines: Deadlines,
    /// The length of the lease in milliseconds, as of its last renewal; 0 before. Only a heartbeat makes it shorter:
    /// until the worker has received the answer to one, the worker may not know of a shorter lease.
    pub lease_ms: i64,
    /// When the gateways sent their heartbeats.
    pub beat: GatewayHeartbeat,
    /// The heartbeats of the gateway that last renewed the lease for a worker's heartbeat.
    pub lease_gateway: Option<GatewayHeartbeat>,
    /// The outages of the gateways since the run was created. They do not overlap.
    pub outages: Vec<Outage>,
    /// When the run was created.
    #[serde(with = "millis")]
    pub created_at: Timestamp,
    /// How long its data is kept.
    pub retention: Retention,
    /// The last boundary of the live branch whose payloads were dropped while later ones are kept. A snapshot
    /// replaces it and all boundaries before it.
    pub dropped_to: Option<BoundaryId>,
    /// The open waits of the live branch, in the order of their opening.
    #[serde(default)]
    pub waits: Vec<OpenWait>,
    /// What the run is parked on. `None`: it is not parked on waits.
    #[serde(default)]
    pub park: Option<ParkedOn>,
    /// Consecutive parks on waits without progress.
    #[serde(default)]
    pub parks_without_progress: i32,
    /// When a wait needs the store's clock next.
    #[serde(default, with = "millis::option")]
    pub wake_at: Option<Timestamp>,
}

/// The lifecycle state of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Lifecycle {
    /// It is running.
    Live,
    /// It reached an end.
    Finished,
    /// Its AgentRun was deleted on purpose.
    Deleted,
    /// A later run of the same name was created with the instruction to ignore this run.
    Abandoned,
}

/// The latest boundary, with the identity of the attempt that committed it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HeadRow {
    /// Number of the turn, from 1.
    pub turn: i32,
    /// Which boundary of it.
    pub boundary: Boundary,
    /// The epoch it was committed under.
    pub epoch: i64,
    /// The attempt that committed it.
    pub attempt: i32,
    /// Total number of events so far.
    pub position: i64,
    /// `sha256:…`.
    pub content_hash: String,
    /// When.
    #[serde(with = "millis")]
    pub at: Timestamp,
    /// Hash of the template of the attempt that committed it.
    pub revision: Option<String>,
    /// The identity of the attempt that committed it.
    pub identity: Option<Identity>,
}

/// Counters for recovery. Totals never decrease; a reset raises their bases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Counters {
    /// Charged crashes in the whole run.
    pub recovery_attempts: i32,
    /// The part of these that resets have forgiven.
    pub recovery_attempts_base: i32,
    /// Consecutive crashes without progress.
    pub attempts_without_progress: i32,
    /// Disruptions in the whole run.
    pub disruptions: i32,
    /// The part of these that resets have forgiven.
    pub disruptions_base: i32,
    /// Consecutive disruptions without progress.
    pub disruptions_without_progress: i32,
}

/// Counts of a run's calls.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CallCounts {
    /// Completed or failed: the outcome is known.
    pub completed: i64,
    /// Started, and the key was refused: a person must settle them.
    pub keys_refused: i64,
    /// Started in an earlier attempt than the current one, and not settled; by policy.
    pub unsettled: BTreeMap<Policy, i64>,
}

/// What a person requests of the worker: a cancel, or a suspend.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignalRow {
    /// When it was requested.
    #[serde(with = "millis")]
    pub requested_at: Timestamp,
    /// When a worker was first notified.
    #[serde(with = "millis::option")]
    pub told_at: Option<Timestamp>,
}

/// Deadlines of a run, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deadlines {
    /// From the last heartbeat, once one was received.
    pub heartbeat_ms: i64,
    /// From the scheduling of the pod to the worker's attach.
    pub start_ms: i64,
    /// From the attach, or the last boundary, to the next boundary.
    pub progress_ms: i64,
    /// How long a worker that knows of a suspend has to park. A worker that does not know of it yet has twice as long.
    #[serde(default)]
    pub suspend_ms: i64,
}

/// The heartbeats of all gateways together, or of one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GatewayHeartbeat {
    /// The last heartbeat.
    #[serde(with = "millis")]
    pub last: Timestamp,
    /// The start of the current period without a gap of more than [`crate::BEAT_GAP_MS`].
    #[serde(with = "millis")]
    pub since: Timestamp,
    /// When the gap before that period began.
    #[serde(with = "millis")]
    pub gap_from: Timestamp,
}

/// A period in which no gateway sent its heartbeat, or in which the embedded process did not serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outage {
    /// The last heartbeat before it.
    #[serde(with = "millis")]
    pub from: Timestamp,
    /// The first heartbeat after it.
    #[serde(with = "millis")]
    pub to: Timestamp,
}

/// The answer when a fact about an attempt is recorded.
#[derive(Clone, Debug)]
pub enum Recorded {
    /// It is recorded, now or before with the same value. The row afterwards.
    Done(Box<RunRecord>),
    /// The attempt is not the current one, or has another pod. The unchanged row.
    Refused(Box<RunRecord>),
}
