//! A run as it is taken up, and all that its row says.

use std::collections::BTreeMap;

use dalsegno_protocol::{Boundary, Policy, Usage};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{Attempt, FinishRow, Identity, Place, Retention, RunId, millis};

/// A run to take up.
#[derive(Clone, Debug)]
pub struct NewRun {
    /// The id that the row gets if it is created.
    pub id: RunId,
    /// UID of the namespace.
    pub tenant: String,
    /// Name of the namespace.
    pub namespace: String,
    /// Name of the AgentRun.
    pub name: String,
    /// UID of the AgentRun.
    pub object_uid: String,
    /// `recovery.resetGeneration` at creation; it grants nothing.
    pub reset_generation: i64,
    /// Lengths of the deadlines.
    pub deadlines: Deadlines,
    /// What becomes of a prior run.
    pub on_prior: OnPrior,
}

/// What becomes of a prior run of the same namespace and name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnPrior {
    /// Touch nothing and say so.
    Hold,
    /// Take its row over.
    Adopt,
    /// Mark its row abandoned (fenced) and begin anew.
    Ignore,
}

/// The answer to [`crate::Operator::create_run`].
#[derive(Clone, Debug)]
pub enum Created {
    /// The run's row: new, its own, or adopted.
    Run(Box<RunRecord>),
    /// Another object's run stands in the way.
    Prior(PriorRun),
}

/// A run of the same namespace and name that is not this object's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PriorRun {
    /// Its own id.
    pub id: RunId,
    /// UID of the object it belonged to.
    pub object_uid: String,
    /// UID of the namespace it belongs to.
    pub tenant: String,
    /// UID of the namespace as it is now: if it is another, the run cannot be adopted.
    pub asked_by: String,
    /// Its latest turn.
    pub turn: i32,
}

/// The answer to [`crate::Operator::look_up`]; the third answer, Unknown, is an [`crate::Error`].
#[derive(Clone, Debug)]
pub enum LookUp {
    /// The run's row.
    Found(Box<RunRecord>),
    /// The store with this id has no such run.
    NotFound {
        /// The store's id.
        store_id: Uuid,
        /// The store's clock.
        now: Timestamp,
    },
}

/// Everything about one run but its payloads. What PostgreSQL's `run_record` function and SQLite answer alike.
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
    /// Whether it still runs.
    pub lifecycle: Lifecycle,
    /// The fencing number.
    pub epoch: i64,
    /// The current attempt: the one with the highest number.
    pub attempt: Attempt,
    /// Up to eleven attempts before it, the latest first.
    pub past: Vec<Attempt>,
    /// The latest boundary.
    pub head: Option<HeadRow>,
    /// The highest turn that was ever committed; above the head's once the run was rewound.
    pub highest_turn: i32,
    /// The counters of recovery.
    pub counters: Counters,
    /// The last `resetGeneration` that was granted, or stood there at creation.
    pub observed_reset_generation: i64,
    /// Attempts up to this number were forgiven: they are no evidence for a hold.
    pub reset_attempt: i32,
    /// How the calls stand.
    pub calls: CallCounts,
    /// Sum over all committed boundaries.
    pub usage: Usage,
    /// When a cancel was asked for, and when the worker was told.
    pub cancel: Option<CancelRow>,
    /// How it ended.
    pub finish: Option<FinishRow>,
    /// Lengths of the deadlines.
    pub deadlines: Deadlines,
    /// Milliseconds that the lease has, as it was last renewed; 0 before. Only a heartbeat makes it shorter: until its worker
    /// has one answered, it may have heard of nothing shorter.
    pub lease_ms: i64,
    /// When the gateways beat.
    pub beat: BeatRow,
    /// When the run was taken up.
    #[serde(with = "millis")]
    pub created_at: Timestamp,
    /// What is kept of it.
    pub retention: Retention,
    /// The last boundary of the live branch whose payloads were dropped while later ones stay; a snapshot stands for it
    /// and all before it.
    pub dropped_to: Option<Place>,
}

/// Whether a run still runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Lifecycle {
    /// It does.
    Live,
    /// It reached an end.
    Finished,
    /// Its AgentRun was deleted on purpose.
    Deleted,
    /// A later run of the same name was told to ignore it.
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
    /// Events committed so far.
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

/// The counters of recovery. Totals never shrink; a reset moves their bases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Counters {
    /// Charged crashes in the whole run.
    pub recovery_attempts: i32,
    /// Of these, how many a reset has forgiven.
    pub recovery_attempts_base: i32,
    /// Crashes in a row that gained nothing.
    pub attempts_without_progress: i32,
    /// Disruptions in the whole run.
    pub disruptions: i32,
    /// Of these, how many a reset has forgiven.
    pub disruptions_base: i32,
    /// Disruptions in a row that gained nothing.
    pub disruptions_without_progress: i32,
}

/// How a run's calls stand.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CallCounts {
    /// Completed or failed: their outcome is known.
    pub completed: i64,
    /// Started, and their key was refused: a person must tell how they ended.
    pub keys_refused: i64,
    /// Started under an earlier attempt than the current one and not settled, by policy.
    pub unsettled: BTreeMap<Policy, i64>,
}

/// A cancel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CancelRow {
    /// When it was asked for.
    #[serde(with = "millis")]
    pub requested_at: Timestamp,
    /// When a worker was first told.
    #[serde(with = "millis::option")]
    pub told_at: Option<Timestamp>,
}

/// Lengths of a run's deadlines, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deadlines {
    /// From the last heartbeat, once one was sent.
    pub heartbeat_ms: i64,
    /// From the pod's being scheduled to its worker's attach.
    pub start_ms: i64,
    /// From attach, or the last boundary, to the next boundary.
    pub progress_ms: i64,
}

/// When the gateways beat.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BeatRow {
    /// The last beat.
    #[serde(with = "millis")]
    pub last: Timestamp,
    /// Since when they have not been silent for more than [`crate::BEAT_GAP_MS`].
    #[serde(with = "millis")]
    pub since: Timestamp,
    /// When the silence before that began.
    #[serde(with = "millis")]
    pub gap_from: Timestamp,
}

/// Whether a fact about an attempt was recorded.
#[derive(Clone, Debug)]
pub enum Recorded {
    /// It is (now, or before and the same). The row after.
    Done(Box<RunRecord>),
    /// The attempt is not the current one, or has another pod. The row as it stands.
    Refused(Box<RunRecord>),
}
