//! The outbox: notifications of people that wait to be sent.
//!
//! A notification is stored in the same step as the fact that it is about, and is deleted when it is delivered or given up.
//! So it is sent at least once, whatever process dies.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::string_enum::string_enum;
use crate::{LimitName, RunId};

string_enum! {
    /// What a notification is about.
    pub enum NotificationKind {
        /// A run asks a person for an approval.
        ApprovalRequested,
        /// A run is held: a person must act.
        RunHeld,
        /// A run has failed.
        RunFailed,
        /// At least 80 % of a limit of a run are used.
        LimitNear,
    }
}

/// What a notification says besides its run. Only ids and times: never a text of a person or of an agent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NotificationDetail {
    /// The attempt that was current.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempt: Option<i32>,
    /// The limit that is almost used up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<LimitName>,
    /// The wait that a person is asked to answer.
    #[serde(rename = "waitID", skip_serializing_if = "Option::is_none")]
    pub wait_id: Option<String>,
    /// Until when.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Timestamp>,
    /// The AgentRun, if the notification is not about a run of the store.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub object: Option<ObjectName>,
}

/// Which AgentRun.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectName {
    /// Name of its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
}

/// A notification that waits to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notification {
    /// Its own id. It is the same in every try.
    pub id: Uuid,
    /// The run. `None`: the store has none that the AgentRun may use.
    pub run: Option<RunId>,
    /// Name of its namespace.
    pub namespace: String,
    /// Name of its AgentRun. Empty if the run was purged.
    pub name: String,
    /// UID of its AgentRun.
    pub object_uid: String,
    /// What it is about.
    pub kind: NotificationKind,
    /// What it says.
    pub detail: NotificationDetail,
    /// When the fact was stored.
    pub created_at: Timestamp,
    /// How often it was sent without success.
    pub tries: i32,
}

/// The notifications whose next try is due, and what waits in all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DueNotifications {
    /// The store's id.
    pub store_id: Uuid,
    /// The store's clock.
    pub now: Timestamp,
    /// Due, the longest overdue first.
    pub due: Vec<Notification>,
    /// The number of all notifications that wait.
    pub waiting: i64,
    /// When the oldest of them was stored.
    pub oldest: Option<Timestamp>,
}

/// The result of a try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotificationResult {
    /// It was delivered, or is given up: it is deleted.
    Done,
    /// It is tried again after this many milliseconds.
    Retry {
        /// The pause.
        after_ms: i64,
    },
}

/// The fact that a run is held, for the outbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HoldNotice {
    /// Identifies the hold. The same hold of the same run is announced once.
    pub key: String,
    /// The attempt that waits.
    pub attempt: i32,
}

/// The fact that an AgentRun is held whose run in the store cannot be used: it is of another object, or the store is not
/// the run's. The AgentRun's status notes that it was announced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectHold {
    /// Which AgentRun.
    pub object: ObjectName,
    /// Identifies the hold. While its notification waits, the same hold of the same object is not added again.
    pub key: String,
}
