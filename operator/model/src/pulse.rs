//! What one query says of all runs: deadlines that have run out, heads that moved.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// A silence of the gateways longer than this starts every clock anew.
pub const BEAT_GAP_MS: i64 = 3_000;

/// How long a worker that was told of a cancel has to acknowledge it.
pub const CANCEL_TOLD_MS: i64 = 30_000;

/// How long a cancel waits for a worker that was not told.
pub const CANCEL_UNTOLD_MS: i64 = 90_000;

/// What one query for all runs found.
#[derive(Clone, Debug, PartialEq)]
pub struct Pulse {
    /// The store's clock; the next call's `since`, less a margin for statements under way.
    pub now: Timestamp,
    /// The store's id.
    pub store_id: Uuid,
    /// Deadlines that have run out.
    pub expired: Vec<Expired>,
    /// Runs in which something changed.
    pub changed: Vec<Changed>,
    /// Live runs with an attached attempt.
    pub active: i64,
}

/// A deadline that has run out.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Expired {
    /// Whose.
    pub object: ObjectKey,
    /// Of which attempt.
    pub attempt: i32,
    /// Which.
    pub deadline: Deadline,
}

/// The deadlines of an attempt. Where several have run out the first of this list is named.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Deadline {
    /// A cancel was not acknowledged: [`CANCEL_TOLD_MS`] after the worker was told, [`CANCEL_UNTOLD_MS`] after the flag.
    Cancel,
    /// No heartbeat, of an attempt that has sent one.
    Lease,
    /// Scheduled, and never attached.
    Start,
    /// Attached, and no new boundary.
    Progress,
}

/// A run in which something changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changed {
    /// Which.
    pub object: ObjectKey,
    /// Its worker attached, was refused as spent, finished, acknowledged a cancel, or a call was settled: look at once.
    /// False: only its head moved.
    pub transition: bool,
    /// When it last had a transition: the same change may be told twice, since two answers overlap.
    pub transition_at: Timestamp,
}

/// Which AgentRun.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ObjectKey {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
}
