//! An attempt: the life of one pod. Its row, its end, and what is recorded about its pod.

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::{Cause, NewFinish, millis};

/// An attempt: the life of one pod.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Attempt {
    /// 1, 2, 3 …
    pub number: i32,
    /// Its lifecycle state.
    pub state: AttemptState,
    /// The epoch it was reserved under.
    pub epoch: i64,
    /// UID of its pod, once recorded.
    pub pod_uid: Option<String>,
    /// Name of its pod, once recorded.
    pub pod_name: Option<String>,
    /// Its node, once scheduled.
    pub node: Option<String>,
    /// Hash of the pod template that created its pod, once recorded.
    pub revision: Option<String>,
    /// Random text that only the operator knows before it creates the attempt's pod, and that the pod carries as an
    /// annotation. Empty until then. `None`: the attempt was reserved by a program that knew no nonce. It is not
    /// exported.
    #[serde(skip)]
    pub pod_nonce: Option<String>,
    /// The identity of its image, once observed.
    pub identity: Option<Identity>,
    /// Whether a second process of this attempt tried to attach.
    pub spent: bool,
    /// The head's turn when the attempt was reserved; 0 if there was no head.
    pub turn_at_start: i32,
    /// The head's turn when the attempt ended.
    pub turn_at_end: Option<i32>,
    /// When it was reserved.
    #[serde(with = "millis")]
    pub reserved_at: Timestamp,
    /// When its pod was recorded.
    #[serde(with = "millis::option")]
    pub created_at: Option<Timestamp>,
    /// When its pod was observed on a node.
    #[serde(with = "millis::option")]
    pub scheduled_at: Option<Timestamp>,
    /// When its worker attached.
    #[serde(with = "millis::option")]
    pub attached_at: Option<Timestamp>,
    /// When its lease was last renewed; `None` until its first heartbeat starts the lease.
    #[serde(with = "millis::option")]
    pub lease_renewed_at: Option<Timestamp>,
    /// When it ended.
    #[serde(with = "millis::option")]
    pub ended_at: Option<Timestamp>,
    /// How it ended.
    pub end: Option<AttemptEnd>,
}

impl Attempt {
    /// Whether a pod that carries this nonce may be the attempt's. Everybody who may create pods can choose a pod's name
    /// and owner, so these prove nothing.
    pub fn may_own_pod_with(&self, nonce: Option<&str>) -> bool {
        self.pod_nonce.as_deref().is_none_or(|ours| !ours.is_empty() && nonce == Some(ours))
    }
}

/// The number of pod templates that are kept for a reserved attempt; older ones are deleted. A pod whose creation got
/// no response may appear later, and its template is still among these: each further template comes with a new try to
/// create a pod of the same name, and that try finds the pod.
pub const CANDIDATES: usize = 8;

/// The lifecycle state of an attempt. It only moves down this list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AttemptState {
    /// It has a number and an epoch, and no recorded pod.
    Reserved,
    /// Its pod is recorded.
    Created,
    /// Its worker attached and may write.
    Attached,
    /// It is over. Its writes are rejected.
    Ended,
}

/// How an attempt ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AttemptEnd {
    /// Why it ended.
    #[serde(deserialize_with = "Cause::deserialize_stored")]
    pub cause: Cause,
    /// What the end counted as. `CrashWithoutProgress` is already resolved to `Crash` or `Disruption`.
    pub class: Class,
    /// Whether it was charged to the recovery budget.
    pub charged: bool,
    /// Whether the attempt made progress: a new highest turn, or a newly completed call.
    pub progress: bool,
    /// The worker's exit code, if known.
    pub exit_code: Option<i32>,
    /// A message for people.
    pub message: String,
}

/// What the end of an attempt counts as.
///
/// | class | `recovery_attempts` | `attempts_without_progress` | `disruptions` | `disruptions_without_progress` |
/// |---|---|---|---|---|
/// | `Crash` | +1 | +1, or 0 on progress | | 0 on progress |
/// | `Disruption` | | 0 on progress | +1 | +1, or 0 on progress |
/// | `CrashWithoutProgress` | as `Disruption` with progress, as `Crash` without | | | |
/// | `Neutral` | | 0 on progress | | 0 on progress |
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Class {
    /// The agent caused the end. It is charged.
    Crash,
    /// The agent did not cause the end.
    Disruption,
    /// The kubelet ended the pod under resource pressure. It counts as the agent's fault unless the attempt made
    /// progress.
    CrashWithoutProgress,
    /// Neither a crash nor a disruption. Never charged.
    Neutral,
}

/// A request to end an attempt.
#[derive(Clone, Debug, PartialEq)]
pub struct Ending {
    /// Number of the attempt.
    pub attempt: i32,
    /// What ended it.
    pub cause: Cause,
    /// What it counts as.
    pub class: Class,
    /// The worker's exit code, if known.
    pub exit_code: Option<i32>,
    /// A message for people; at most 512 bytes.
    pub message: String,
    /// How long the worker ran, as its pod says. It counts only if the agent keeps its own checkpoints. `None`: the times
    /// count at which its start and its end were recorded.
    pub ran: Option<SignedDuration>,
}

/// A request to take back the charge of an attempt that has ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Forgiveness {
    /// Number of the attempt.
    pub attempt: i32,
    /// What ended it, as is known now.
    pub cause: Cause,
    /// A message for people; at most 512 bytes.
    pub message: String,
}

/// What happens after an attempt has ended.
#[derive(Clone, Debug)]
pub enum NextStep {
    /// Reserve the next attempt.
    Reserve,
    /// Nothing: the attempt stays `ended`.
    Nothing,
    /// The run ends.
    Finish(NewFinish),
}

/// The pod that was created for an attempt.
#[derive(Clone, Debug)]
pub struct PodRecord {
    /// Its UID.
    pub uid: String,
    /// Its name.
    pub name: String,
    /// Hash of the pod template, read from the pod itself.
    pub revision: String,
    /// The image's identity, if the image is named by digest and therefore known at once.
    pub identity: Option<Identity>,
}

/// The image of an attempt's worker, and whether the run may continue with it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Identity {
    /// `sha256:…`: observed on the attempt's pod, or the digest by which the image is named.
    pub image_digest: String,
    /// Whether a registry knows the image by this digest: the pod or the kubelet names it as `repository@sha256:…`. The
    /// digest alone may be that of an image's configuration, which no registry can be asked for. `None`: a program
    /// recorded it that did not look. It is not exported.
    #[serde(skip)]
    pub in_registry: Option<bool>,
    /// The declared version, or the image digest if no version is declared.
    pub agent_version: String,
    /// Whether the run may continue with this image.
    pub verdict: Verdict,
    /// The reason for the verdict, for people and for the worker's log; may be empty.
    pub remark: String,
}

/// Whether a run may continue with an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// The same version, a version listed as compatible, or nothing to compare with.
    Accepted,
    /// A different version, allowed by the policy.
    Allowed,
    /// A different version, not allowed by the policy.
    Refused,
}

/// A pod template, and the hash of its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    /// The hash.
    pub hash: String,
    /// The template.
    pub document: String,
}
