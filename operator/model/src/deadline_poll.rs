//! The result of one query over all runs: expired deadlines, and runs that have changed.

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// If no gateway has sent a heartbeat for longer than this, it is an outage: every deadline pauses. In milliseconds.
pub const HEARTBEAT_GAP_MS: i64 = 3_000;

/// A worker sends so many heartbeats in one length of the lease.
pub const HEARTBEATS_PER_LEASE: i64 = 3;

/// How long after an outage of the gateways no deadline expires that is as long as this, so that workers can connect
/// again. After a shorter deadline's own length it may expire. In milliseconds.
pub const RECONNECT_MS: i64 = 30_000;

/// How long a worker that knows of a cancel has to acknowledge it. In milliseconds.
pub const CANCEL_REPORTED_MS: i64 = 30_000;

/// How long a cancel waits for a worker that does not know of it yet. In milliseconds.
pub const CANCEL_UNREPORTED_MS: i64 = 90_000;

/// What one query over all runs returned.
#[derive(Clone, Debug, PartialEq)]
pub struct DeadlinePoll {
    /// The store's clock. The next call uses it as `since`, less a margin for statements that are still running.
    pub now: Timestamp,
    /// The store's id.
    pub store_id: Uuid,
    /// Expired deadlines.
    pub expired: Vec<Expired>,
    /// Runs in which something changed.
    pub changed: Vec<Changed>,
    /// Live runs with an attached attempt.
    pub active: i64,
}

/// An expired deadline.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Expired {
    /// The AgentRun.
    pub object: ObjectKey,
    /// Number of the attempt.
    pub attempt: i32,
    /// Which deadline.
    pub deadline: Deadline,
    /// For [`Deadline::Wake`]: the time that has come. A run may have another one soon after.
    pub wake_at: Option<Timestamp>,
}

/// The deadlines of an attempt. If several have expired, the first of this list is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Deadline {
    /// A cancel was not acknowledged: [`CANCEL_REPORTED_MS`] after the worker was notified, or [`CANCEL_UNREPORTED_MS`]
    /// after the request.
    Cancel,
    /// A suspend was not acknowledged: [`crate::Deadlines::suspend_ms`] after the worker was notified, or twice that
    /// after the request.
    Suspend,
    /// The worker did not exit within [`crate::LIMIT_EXIT_MS`] after a limit of its run was reached.
    Limit,
    /// No heartbeat arrived, from an attempt that has sent one before.
    Lease,
    /// The pod was scheduled, and its worker has not attached.
    Start,
    /// The worker attached, and has committed no new boundary.
    Progress,
    /// A wait needs the store's clock. It is the only one that is reported while no gateway sends heartbeats.
    Wake,
}

/// How far a poll goes back behind the last one for transitions. A transition has the time at which its statement began,
/// and becomes visible when its commit is synced, on a synchronous standby too: longer than a statement may take. One
/// that takes even longer is found when the run is looked at again without a reason.
pub const TRANSITION_OVERLAP: SignedDuration = SignedDuration::from_secs(30);

/// How far a poll goes back behind the last one for moved heads. There are many, and one that is missed shows with the
/// next.
pub const HEAD_OVERLAP: SignedDuration = SignedDuration::from_secs(3);

/// Since when a poll lists changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PollSince {
    /// Transitions since this time.
    pub transitions: Timestamp,
    /// Moved heads since this time.
    pub heads: Timestamp,
}

impl PollSince {
    /// For the poll after one at this time of the store's clock.
    pub fn last_poll(at: Timestamp) -> Self {
        Self { transitions: at - TRANSITION_OVERLAP, heads: at - HEAD_OVERLAP }
    }
}

impl From<Timestamp> for PollSince {
    /// All changes since this time.
    fn from(at: Timestamp) -> Self {
        Self { transitions: at, heads: at }
    }
}

/// A run in which something changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changed {
    /// The AgentRun.
    pub object: ObjectKey,
    /// Its worker attached, was refused as spent, finished or acknowledged a cancel, or a call was settled: reconcile at
    /// once.
    pub transition: bool,
    /// Its head moved.
    pub head_moved: bool,
    /// When it last had a transition. Two polls overlap, so the same change may be reported twice.
    pub transition_at: Timestamp,
}

/// The identity of an AgentRun.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ObjectKey {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
}
