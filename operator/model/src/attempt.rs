//! One pod's life: its row, how it ends, what is recorded of its pod.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{Cause, NewFinish, millis};

/// One pod's life.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Attempt {
    /// 1, 2, 3 …
    pub number: i32,
    /// Where it stands.
    pub state: AttemptState,
    /// The epoch it was reserved under.
    pub epoch: i64,
    /// UID of its pod, once recorded.
    pub pod_uid: Option<String>,
    /// Name of its pod, once recorded.
    pub pod_name: Option<String>,
    /// Its node, once scheduled.
    pub node: Option<String>,
    /// Hash of the template that made its pod, once recorded.
    pub revision: Option<String>,
    /// What its image turned out to be.
    pub identity: Option<Identity>,
    /// Another process of this attempt attached after the first.
    pub spent: bool,
    /// The head's turn when it was reserved (0: none).
    pub turn_at_start: i32,
    /// The head's turn when it ended.
    pub turn_at_end: Option<i32>,
    /// When it was reserved.
    #[serde(with = "millis")]
    pub reserved_at: Timestamp,
    /// When its pod was recorded.
    #[serde(with = "millis::option")]
    pub created_at: Option<Timestamp>,
    /// When its pod was seen to have a node.
    #[serde(with = "millis::option")]
    pub scheduled_at: Option<Timestamp>,
    /// When its worker attached.
    #[serde(with = "millis::option")]
    pub attached_at: Option<Timestamp>,
    /// When its lease was last renewed; `None` until its first heartbeat binds one.
    #[serde(with = "millis::option")]
    pub lease_renewed_at: Option<Timestamp>,
    /// When it ended.
    #[serde(with = "millis::option")]
    pub ended_at: Option<Timestamp>,
    /// How it ended.
    pub end: Option<AttemptEnd>,
}

/// Of the templates that were kept for the pod of a reserved attempt the last so many stay. The one of a pod whose making got
/// no answer, and that turns up later, is among them: each further one comes with a try to make a pod of the same name, which
/// finds it.
pub const CANDIDATES: usize = 8;

/// Where an attempt stands. Only ever moves down this list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AttemptState {
    /// It has a number and an epoch, and no pod that anybody recorded.
    Reserved,
    /// Its pod is recorded.
    Created,
    /// Its worker attached and may write.
    Attached,
    /// It is over; nothing it writes is accepted.
    Ended,
}

/// How an attempt ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AttemptEnd {
    /// What ended it.
    #[serde(deserialize_with = "Cause::deserialize_stored")]
    pub cause: Cause,
    /// What it was counted as: `CrashWithoutProgress` is resolved to `Crash` or `Disruption`.
    pub class: Class,
    /// Whether it was charged to the recovery budget.
    pub charged: bool,
    /// Whether it had made progress: a new highest turn, or a newly completed call.
    pub progress: bool,
    /// The worker's exit code, where one is known.
    pub exit_code: Option<i32>,
    /// For people.
    pub message: String,
}

/// What an end counts as.
///
/// | class | `recovery_attempts` | `attempts_without_progress` | `disruptions` | `disruptions_without_progress` |
/// |---|---|---|---|---|
/// | `Crash` | +1 | +1, or 0 on progress | | 0 on progress |
/// | `Disruption` | | 0 on progress | +1 | +1, or 0 on progress |
/// | `CrashWithoutProgress` | as `Disruption` with progress, as `Crash` without | | | |
/// | `Neutral` | | 0 on progress | | 0 on progress |
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Class {
    /// The agent caused it. Charged.
    Crash,
    /// The agent did not cause it.
    Disruption,
    /// The kubelet's own pressure: the agent caused it unless it had made progress.
    CrashWithoutProgress,
    /// Neither; never charged.
    Neutral,
}

/// An attempt to end.
#[derive(Clone, Debug, PartialEq)]
pub struct Ending {
    /// Its number.
    pub attempt: i32,
    /// What ended it.
    pub cause: Cause,
    /// What it counts as.
    pub class: Class,
    /// The worker's exit code, where one is known.
    pub exit_code: Option<i32>,
    /// For people; at most 512 bytes.
    pub message: String,
}

/// What follows the end of an attempt.
#[derive(Clone, Debug)]
pub enum Then {
    /// Reserve the next attempt.
    Reserve,
    /// Nothing: the attempt stays `ended`.
    Nothing,
    /// The run ends.
    Finish(NewFinish),
}

/// A pod that was created for an attempt.
#[derive(Clone, Debug)]
pub struct PodRecord {
    /// Its UID.
    pub uid: String,
    /// Its name.
    pub name: String,
    /// Hash of the template that made it, read from the pod itself.
    pub revision: String,
    /// Known at once where the image is named by digest.
    pub identity: Option<Identity>,
}

/// What the worker of an attempt is, and whether the run may go on under it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Identity {
    /// `sha256:…`, observed on the attempt's pod, or the digest by which the image is named.
    pub image_digest: String,
    /// The declared version, else the image digest.
    pub agent_version: String,
    /// Whether the run may go on under it.
    pub verdict: Verdict,
    /// Why, for the worker's log and for people; may be empty.
    pub remark: String,
}

/// Whether a run may go on under an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Same version, listed as compatible, or nothing to compare with.
    Accepted,
    /// Another version, and the policy allows it.
    Allowed,
    /// Another version, and the policy does not allow it.
    Refused,
}
