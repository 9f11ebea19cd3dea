//! The status of an `AgentRun`. It mirrors the store for people, and decisions are based on the store.
//!
//! The operator reads the status for two purposes only: to detect a store that knows less than the status, and to know
//! which changes people have seen already.

use dalsegno_model::{Cause, LimitName};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::conditions::{Class, RunOutcome, Summary, WaitKind};
use crate::reasons::Reason;
use crate::schema;

/// The state of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AgentRunStatus {
    /// The conditions of the run, each with its reason. `Finished`: the run has ended, and the reason says how.
    /// `Succeeded`: the agent reached its goal. `WorkerReady`: a worker is attached. `CheckpointAvailable`: there is a
    /// checkpoint to resume from. `VersionCompatible`: the deployed agent version may resume the checkpoint. `Held`: a
    /// person must act, and the message says how. `Suspended`: a person suspended the run, and it has no worker; absent
    /// while nobody has. `Waiting`: the run is parked on waits, and the reason says what it waits for; absent while it is
    /// not. `Ready`: the run is under control. `Reconciling` (no worker has
    /// attached yet) and `Stalled` (a person must act) are present only while they are True.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,

    /// The state of the run in one word, derived from the conditions. `kubectl get arun -A --field-selector
    /// status.summary=Held` lists the runs that need a person.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summary: Option<Summary>,

    /// Why the run is in this state: the reason of the most important condition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,

    /// Name of the AgentDefinition, or `<inline>`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub agent: Option<String>,

    /// Position of the run in the queue of its AgentDefinition, from 1, while it waits because of maxConcurrentRuns.
    /// Updated at least every ten minutes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub queue_position: Option<i32>,

    /// Who suspended the run, and since when. Absent while the run is not suspended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspend: Option<SuspendStatus>,

    /// What the run waits for. Absent while the run is not parked on waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting: Option<WaitingStatus>,

    /// What became of the last `spec.rewind`. Absent if there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rewind: Option<RewindStatus>,

    /// What this run was forked from. Absent if it is no fork.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fork: Option<ForkStatus>,

    /// Whether the approvals of the run need four eyes. Once True it stays, although `defaults.fourEyes` of the
    /// AgentDefinition is removed. Absent while False.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub four_eyes: Option<bool>,

    /// The current attempt, or the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<AttemptStatus>,

    /// The counters of recovery, and the time of the next attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recovery: Option<RecoveryStatus>,

    /// The latest checkpoint, from which the next attempt would resume. Updated when it has changed, every ten
    /// seconds with up to 200 active runs, and every N/20 seconds with N active runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<CheckpointStatus>,

    /// Tokens, tool calls and cost of the committed turns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<UsageStatus>,

    /// The limits of the run that are set, and how much of each is used. Active time is counted until the latest
    /// checkpoint or the end of the last attempt.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 4), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["limit"]))]
    pub limits: Vec<LimitStatus>,

    /// The result of the run, as the agent reported it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<ResultStatus>,

    /// When the first worker attached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::time")]
    pub start_time: Option<Time>,

    /// When the run ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::time")]
    pub completion_time: Option<Time>,

    /// Id of the store that holds the run. If the operator is connected to another store, it changes nothing.
    #[serde(default, rename = "storeID", skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub store_id: Option<String>,

    /// Generation of the spec that this status describes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub observed_generation: Option<i64>,
}

/// A suspend of the run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SuspendStatus {
    /// When the operator recorded the suspend, by the store's clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::time")]
    pub since: Option<Time>,

    /// The user who wrote `spec.operatingMode`, if a stamp proves it; or else the client, as the API server's managed fields
    /// name it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub by: Option<String>,

    /// Why, from the annotation `dalsegno.dev/reason`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub reason: Option<String>,
}

/// The last rewind that was requested.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RewindStatus {
    /// The last `spec.rewind.generation` that was obeyed or refused, or the one at creation. A higher number rewinds
    /// the run.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub observed_generation: i64,

    /// The turn that was requested. Absent for the number at creation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub to_turn: Option<i32>,

    /// Ids of the tool calls that `acceptEffects` did not name, if the rewind was refused for them: the first hundred.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 100), inner(length(max = 512)), extend("x-kubernetes-list-type" = "atomic"))]
    pub effects: Vec<String>,
}

/// What a run was forked from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ForkStatus {
    /// Id of the other run in the store. Absent before the fork was accepted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub run: Option<String>,

    /// The turn after which the fork begins. Absent before the fork was accepted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub turn: Option<i32>,

    /// Content hash of that turn's result. Absent before the fork was accepted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub content_hash: Option<String>,

    /// Ids of the tool calls that `acceptEffects` does not name, while the fork is held for them: the first hundred.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 100), inner(length(max = 512)), extend("x-kubernetes-list-type" = "atomic"))]
    pub effects: Vec<String>,
}

/// What a parked run waits for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WaitingStatus {
    /// When the run parked, by the store's clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::time")]
    pub since: Option<Time>,

    /// The first eight open waits that the run is parked on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), extend("x-kubernetes-list-type" = "atomic"))]
    pub waits: Vec<WaitStatus>,
}

/// One wait.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WaitStatus {
    /// The agent's id of the wait.
    #[schemars(length(min = 1, max = 128))]
    pub id: String,

    /// What answers it.
    pub kind: WaitKind,

    /// When the agent opened it, by the store's clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::time")]
    pub since: Option<Time>,

    /// Its deadline, by the store's clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::time")]
    pub deadline: Option<Time>,
}

/// One attempt: the life of one pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AttemptStatus {
    /// Number of the attempt, from 1.
    #[schemars(range(min = 1))]
    pub number: i32,

    /// Name of the attempt's pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub pod_name: Option<String>,

    /// UID of the attempt's pod.
    #[serde(default, rename = "podUID", skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub pod_uid: Option<String>,

    /// Node of the attempt's pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub node_name: Option<String>,

    /// Digest of the worker's pulled image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub image_digest: Option<String>,

    /// Agent version: the declared version, or else the image's digest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub agent_version: Option<String>,

    /// Hash of the template that the pod was created from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub revision: Option<String>,

    /// Turn of the checkpoint that the attempt resumes from. 0 without a checkpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub resumed_from_turn: Option<i32>,

    /// When the attempt started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::time")]
    pub start_time: Option<Time>,
}

fn is_zero(number: &i32) -> bool {
    *number == 0
}

/// The counters of recovery.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RecoveryStatus {
    /// Number of charged crashes in the whole run.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub recovery_attempts: i32,

    /// Number of consecutive charged crashes without progress.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub attempts_without_progress: i32,

    /// Number of disruptions in the whole run.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub disruptions: i32,

    /// Number of consecutive disruptions without progress.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub disruptions_without_progress: i32,

    /// Number of consecutive parks on waits without progress. From the third on the next pod waits.
    #[serde(default, skip_serializing_if = "is_zero")]
    #[schemars(range(min = 0))]
    pub parks_without_progress: i32,

    /// When the next attempt starts. Set only while the run is backing off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::time")]
    pub next_attempt_time: Option<Time>,

    /// The last `spec.recovery.resetGeneration` that was granted. A higher number grants a fresh budget.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub observed_reset_generation: Option<i64>,

    /// The ends of the last ten attempts, the latest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 10), extend("x-kubernetes-list-type" = "atomic"))]
    pub history: Vec<AttemptEnd>,
}

/// The end of one attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AttemptEnd {
    /// Number of the attempt.
    #[schemars(range(min = 1))]
    pub attempt: i32,

    /// What ended the attempt.
    #[schemars(schema_with = "schema::cause")]
    pub cause: Cause,

    /// Who caused the end. `Crash`: the agent. `Disruption`: something else. `Neutral`: nobody.
    pub class: Class,

    /// Whether the end is charged to the recovery budget.
    pub charged: bool,

    /// Exit code of the worker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,

    /// Details: the worker's termination message, the last lines of its log, or the message of the pod's status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub message: Option<String>,

    /// Turn that the attempt resumed from.
    #[schemars(range(min = 0))]
    pub turn_at_start: i32,

    /// Last committed turn at the end of the attempt.
    #[schemars(range(min = 0))]
    pub turn_at_end: i32,

    /// Node of the attempt's pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub node_name: Option<String>,

    /// When the attempt started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::time")]
    pub start_time: Option<Time>,

    /// When the attempt ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::time")]
    pub end_time: Option<Time>,
}

/// The latest checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CheckpointStatus {
    /// Turn of the checkpoint.
    #[schemars(range(min = 0))]
    pub turn: i32,

    /// Number of events committed up to the checkpoint.
    #[schemars(range(min = 0))]
    pub event_position: i64,

    /// Agent version that wrote the checkpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub agent_version: Option<String>,

    /// Hash of the checkpoint. It covers all earlier turns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub content_hash: Option<String>,

    /// When the checkpoint was committed, by the store's clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::time")]
    pub created_time: Option<Time>,
}

/// Tokens, tool calls and cost of the committed turns, as the workers reported them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UsageStatus {
    /// Number of tokens sent to models.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub tokens_in: i64,

    /// Number of tokens received from models.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub tokens_out: i64,

    /// Number of tool calls.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub tool_calls: i64,

    /// Cost in millionths of a US dollar.
    #[serde(default, rename = "costMicroUSD")]
    #[schemars(range(min = 0))]
    pub cost_micro_usd: i64,
}

/// One limit of the run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LimitStatus {
    /// Name of the field in `spec.limits`.
    #[schemars(schema_with = "schema::limit")]
    pub limit: LimitName,

    /// How much is used.
    #[schemars(range(min = 0))]
    pub used: i64,

    /// The limit.
    #[schemars(range(min = 0))]
    pub max: i64,
}

/// The result of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ResultStatus {
    /// How the run ended.
    pub outcome: RunOutcome,

    /// Why the run ended, in one word of the agent or the operator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub reason: Option<String>,

    /// Why the run ended, in a sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub message: Option<String>,

    /// The agent's output: any JSON value of at most 4 KiB and 64 nesting levels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::any_json")]
    pub output: Option<Value>,
}
