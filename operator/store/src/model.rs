//! What the store is asked and what it answers: plain data, no database in it.

use std::collections::BTreeMap;

use dalsegno_protocol::{Boundary, CallOutcome, FinishOutcome, Policy, RawValue, Usage};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// A run's own id (UUIDv7); stays when an object is adopted by another of the same name.
pub type RunId = Uuid;

/// SHA-256.
pub type Digest = [u8; 32];

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

/// The answer to [`crate::Store::create_run`].
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
    /// Whether its namespace had the same UID, so that it can be adopted.
    pub same_tenant: bool,
    /// Its latest turn.
    pub turn: i32,
}

/// The answer to [`crate::Store::look_up`]; the third answer, Unknown, is an [`crate::Error`].
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
    /// When the gateways beat.
    pub beat: BeatRow,
    /// When the run was taken up.
    #[serde(with = "millis")]
    pub created_at: Timestamp,
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
    /// Hash of the template that made its pod.
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
    /// The cause's name, as the status shows it.
    pub cause: String,
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
    /// The cause's name, as the status shows it.
    pub cause: String,
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

/// The end of a run.
#[derive(Clone, Debug)]
pub struct NewFinish {
    /// Which.
    pub outcome: RunOutcome,
    /// One CamelCase word.
    pub reason: String,
    /// For people.
    pub message: String,
    /// The result, as JSON text.
    pub output: Option<String>,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RunOutcome {
    /// The agent reached its goal.
    Succeeded,
    /// It did not.
    Failed,
    /// A person did not want it any more.
    Cancelled,
}

impl From<FinishOutcome> for RunOutcome {
    fn from(outcome: FinishOutcome) -> Self {
        match outcome {
            FinishOutcome::Succeeded => Self::Succeeded,
            FinishOutcome::Failed => Self::Failed,
        }
    }
}

/// How and when a run ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FinishRow {
    /// Which end.
    pub outcome: RunOutcome,
    /// One CamelCase word.
    pub reason: String,
    /// For people.
    pub message: String,
    /// The result, as JSON text.
    pub output: Option<String>,
    /// When.
    #[serde(with = "millis")]
    pub at: Timestamp,
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

/// Whether a fact about an attempt was recorded.
#[derive(Clone, Debug)]
pub enum Recorded {
    /// It is (now, or before and the same). The row after.
    Done(Box<RunRecord>),
    /// The attempt is not the current one, or has another pod. The row as it stands.
    Refused(Box<RunRecord>),
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
    /// Since when they have not been silent for more than [`BEAT_GAP_MS`].
    #[serde(with = "millis")]
    pub since: Timestamp,
    /// When the silence before that began.
    #[serde(with = "millis")]
    pub gap_from: Timestamp,
}

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
#[derive(Clone, Debug, PartialEq, Eq)]
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

/// The answer to an attach.
#[derive(Clone, Debug)]
pub enum Attached {
    /// The worker may write. The row after.
    Ok(Box<RunRecord>),
    /// No run of this id.
    NotFound,
    /// The attempt's pod is not recorded yet: ask again.
    NotRecorded,
    /// The image's verdict is not recorded yet: ask again.
    VersionPending,
    /// The run does not go on under this image; why.
    VersionIncompatible(String),
    /// Another process of this attempt attached before.
    Spent,
    /// Not the pod of the current attempt.
    Fenced,
    /// The run is over.
    Finished,
}

/// A boundary to commit.
#[derive(Debug)]
pub struct Commit {
    /// Of which run.
    pub run: RunId,
    /// SHA-256 of the worker's instance.
    pub capability: Digest,
    /// Number of the turn.
    pub turn: i32,
    /// Which boundary of it.
    pub boundary: Boundary,
    /// The worker's id of the commit.
    pub commit_id: Uuid,
    /// SHA-256 of the body as it came.
    pub digest: Digest,
    /// Channel operations, as the JSON text of [`dalsegno_protocol::ChannelOps`]; `None`: the state stays.
    pub ops: Option<Vec<u8>>,
    /// Whether `ops` is the full state.
    pub full: bool,
    /// The events, each as it came.
    pub events: Vec<Box<RawValue>>,
    /// Calls that the turn will make.
    pub calls: Vec<dalsegno_protocol::PlannedCall>,
    /// What the boundary spent.
    pub usage: Usage,
    /// Why it was committed.
    pub trigger: Option<String>,
    /// The run ends with it.
    pub finish: Option<NewFinish>,
}

/// The answer to a commit or a finish.
#[derive(Clone, Debug, PartialEq)]
pub enum Committed {
    /// Committed now.
    Ok(Standing),
    /// Committed before, with the same bytes.
    Duplicate(Standing),
    /// Not the next boundary, or there with other bytes.
    Conflict {
        /// The head it was judged by; `None`: nothing is committed yet.
        head: Option<(i32, Boundary)>,
    },
    /// The capability is not the current epoch's.
    Fenced {
        /// Whether this very commit stands on the live branch.
        committed: bool,
    },
    /// The run is over.
    Finished,
    /// Calls of an earlier attempt are unsettled.
    UnsettledCalls,
    /// No run of this id.
    NotFound,
}

/// Where a run stands after a commit.
#[derive(Clone, Debug, PartialEq)]
pub struct Standing {
    /// The head; `None` only after a finish of a run that never committed.
    pub head: Option<dalsegno_protocol::Head>,
    /// What a person asks for.
    pub asked: Asked,
}

/// What a person asks of a worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// Suspend at the next boundary.
    pub suspend: bool,
    /// Stop for good.
    pub cancel: bool,
    /// Length of the lease, in milliseconds.
    pub lease_ms: i64,
}

/// The answer to one heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beat {
    /// The lease is renewed.
    Ok(Asked),
    /// The run is over.
    Finished,
    /// The capability is not the current epoch's, or there is no such run.
    Fenced,
}

/// A call to claim.
#[derive(Debug)]
pub struct Claim {
    /// Of which run.
    pub run: RunId,
    /// SHA-256 of the worker's instance.
    pub capability: Digest,
    /// The call's name.
    pub id: String,
    /// The worker's id of the claim.
    pub claim_id: Uuid,
    /// What to do about an unknown outcome.
    pub policy: Policy,
    /// The idempotency key; needed unless the call was planned.
    pub key: Option<String>,
    /// What the tool is called with.
    pub arguments: Option<Box<RawValue>>,
}

/// The answer to a claim.
///
/// | the call is | verdict |
/// |---|---|
/// | new, or planned | `Go` (becomes started under this claim) |
/// | started, same claim | `Go` |
/// | started by this attempt, another claim | `Uncertain` |
/// | started by an earlier attempt, `retrySameKey` or `readOnly` | `Go` with the stored key (this attempt's from now on) |
/// | started by an earlier attempt, `probe` or `ask` | `Uncertain` |
/// | completed or failed | `Done` |
#[derive(Clone, Debug)]
pub enum Claimed {
    /// Call the tool, with the key in the call.
    Go(Box<dalsegno_protocol::Call>),
    /// It was done.
    Done(Box<dalsegno_protocol::Call>),
    /// Nobody knows.
    Uncertain(Box<dalsegno_protocol::Call>),
    /// The call is new and has no key, or another key or policy than it was planned or claimed with.
    Invalid(String),
    /// The capability is not the current epoch's.
    Fenced,
    /// The run is over.
    Finished,
    /// No run of this id.
    NotFound,
}

/// The result of a call.
#[derive(Debug)]
pub struct Complete {
    /// Of which run.
    pub run: RunId,
    /// SHA-256 of the worker's instance.
    pub capability: Digest,
    /// The call's name.
    pub id: String,
    /// The claim under which the tool was called.
    pub claim_id: Uuid,
    /// How it ended.
    pub outcome: CallOutcome,
    /// What the tool answered.
    pub result: Option<Box<RawValue>>,
}

/// Somebody's word on how a call ended.
#[derive(Debug)]
pub struct Settle {
    /// Of which run.
    pub run: RunId,
    /// Who says so.
    pub by: SettledBy,
    /// The call's name.
    pub id: String,
    /// How it ended.
    pub outcome: CallOutcome,
    /// What the tool had answered, if known.
    pub result: Option<Box<RawValue>>,
    /// How it was found out.
    pub reason: String,
}

/// Who settles a call.
#[derive(Clone, Debug)]
pub enum SettledBy {
    /// The current worker, by its capability; only where the policy is `probe`, `retrySameKey` or `readOnly`.
    Worker(Digest),
    /// A person, by name, for the audit; any policy.
    Person(String),
}

/// The answer to `complete` and `settle`.
#[derive(Clone, Debug)]
pub enum Completed {
    /// Stored now.
    Ok,
    /// Stored before, with the same outcome and result.
    Duplicate,
    /// It ended otherwise, was not claimed so, or is not this party's to settle; why.
    Conflict(String),
    /// The run has no such call.
    NoSuchCall,
    /// The capability is not the current epoch's.
    Fenced,
    /// The run is over.
    Finished,
    /// No run of this id.
    NotFound,
}

/// A finish without a boundary.
#[derive(Debug)]
pub struct FinishCall {
    /// Of which run.
    pub run: RunId,
    /// SHA-256 of the worker's instance.
    pub capability: Digest,
    /// The worker's id of it.
    pub commit_id: Uuid,
    /// SHA-256 of the body as it came.
    pub digest: Digest,
    /// How it ended.
    pub finish: NewFinish,
}

/// The answer to an acknowledged cancel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acknowledged {
    /// The run is cancelled; now, or before by this very worker.
    Cancelled,
    /// Nobody asked for it.
    NotRequested,
    /// The run had come to another end first.
    Finished,
    /// The capability is not the current epoch's, or there is no such run.
    Fenced,
}

/// Which calls of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallFilter {
    /// All.
    All,
    /// Started under an earlier attempt than the current one and not settled.
    Unsettled,
    /// Completed or failed in the turn that is open (the one after the last `result` boundary).
    OpenTurn,
}

/// One boundary, payloads decoded.
#[derive(Clone, Debug)]
pub struct BoundaryRow {
    /// Number of the turn.
    pub turn: i32,
    /// Which boundary of it.
    pub boundary: Boundary,
    /// The epoch it was committed under.
    pub epoch: i64,
    /// The attempt that committed it.
    pub attempt: i32,
    /// Events committed up to and with it.
    pub position: i64,
    /// The worker's id of the commit.
    pub commit_id: Uuid,
    /// SHA-256 of the body as it came.
    pub digest: Digest,
    /// Hash of the boundary before; zeroes for the first.
    pub parent_hash: Digest,
    /// Hash of this one: [`crate::header`].
    pub content_hash: Digest,
    /// When.
    pub at: Timestamp,
    /// Channel operations as JSON text; `None`: the state stayed.
    pub ops: Option<String>,
    /// Whether they are the full state.
    pub full: bool,
    /// The events, each as it came.
    pub events: Vec<Box<RawValue>>,
    /// What it spent.
    pub usage: Usage,
    /// Why it was committed.
    pub trigger: Option<String>,
}

/// One transition of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct AuditRow {
    /// 1, 2, 3 …
    pub seq: i64,
    /// When.
    pub at: Timestamp,
    /// What: `created`, `reserved`, `pod`, `identity`, `attached`, `spent`, `ended`, `cancel-requested`, `cancelled`,
    /// `finished`, `settled`, `reset`, `adopted`, `abandoned`, `deleted`, `namespace-adopted`.
    pub kind: String,
    /// Who: `operator`, `worker`, or a person's name.
    pub actor: String,
    /// Details, as JSON text.
    pub detail: String,
    /// Hash of the row before; zeroes for the first.
    pub parent_hash: Digest,
    /// Hash of this one: [`crate::audit`].
    pub hash: Digest,
}

/// Times as milliseconds since 1970, as both databases keep them.
pub mod millis {
    use jiff::Timestamp;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    /// Writes milliseconds.
    pub fn serialize<S: Serializer>(at: &Timestamp, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_i64(at.as_millisecond())
    }

    /// Reads milliseconds.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Timestamp, D::Error> {
        Timestamp::from_millisecond(i64::deserialize(from)?).map_err(D::Error::custom)
    }

    /// The same where there may be none.
    pub mod option {
        use jiff::Timestamp;
        use serde::{Deserialize, Deserializer, Serializer, de::Error};

        /// Writes milliseconds or null.
        pub fn serialize<S: Serializer>(at: &Option<Timestamp>, to: S) -> Result<S::Ok, S::Error> {
            match at {
                Some(at) => to.serialize_i64(at.as_millisecond()),
                None => to.serialize_none(),
            }
        }

        /// Reads milliseconds or null.
        pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Timestamp>, D::Error> {
            Option::<i64>::deserialize(from)?
                .map(|ms| Timestamp::from_millisecond(ms).map_err(D::Error::custom))
                .transpose()
        }
    }
}
