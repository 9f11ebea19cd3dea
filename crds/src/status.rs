//! The status of an `AgentRun`: a mirror of the store for people, never the truth that decisions rest on.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{Cause, Class, Reason, RunOutcome, Summary, schema};

/// Where a run stands.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AgentRunStatus {
    /// What is so and what is not, each with its reason. `Finished`: the run has reached an end, and the reason says
    /// which. `Succeeded`: the agent reached its goal. `WorkerReady`: a worker is attached. `CheckpointAvailable`: there
    /// is something to resume from. `VersionCompatible`: the agent fits the checkpoint. `Held`: a person is needed, and
    /// the message says for what. `Ready`: the run is under control. `Reconciling` and `Stalled` are there only while they
    /// are True: the first worker is still to attach, and a person is needed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,

    /// Where the run stands, in one word derived from the conditions. `kubectl get arun -A --field-selector
    /// status.summary=Held` lists the runs that need a person.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summary: Option<Summary>,

    /// Why, in one word: the reason of the condition that matters most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,

    /// Name of the AgentDefinition, or `<inline>`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub agent: Option<String>,

    /// The current attempt, or the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<AttemptStatus>,

    /// What recovery has cost so far, and what comes next.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recovery: Option<RecoveryStatus>,

    /// The latest checkpoint, from which the next attempt would resume. It is mirrored every few seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<CheckpointStatus>,

    /// What the committed turns have spent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<UsageStatus>,

    /// How the run ended, in the agent's words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<ResultStatus>,

    /// When the first worker attached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::time")]
    pub start_time: Option<Time>,

    /// When the run reached its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::time")]
    pub completion_time: Option<Time>,

    /// Id of the store that holds the run. If the operator finds another store than this one, it touches nothing.
    #[serde(default, rename = "storeID", skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub store_id: Option<String>,

    /// Generation of the spec that this status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub observed_generation: Option<i64>,
}

/// One pod's life.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AttemptStatus {
    /// Its number, from 1.
    #[schemars(range(min = 1))]
    pub number: i32,

    /// Name of its pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub pod_name: Option<String>,

    /// UID of its pod.
    #[serde(default, rename = "podUID", skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub pod_uid: Option<String>,

    /// Node of its pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub node_name: Option<String>,

    /// Digest of the worker's image as it was pulled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub image_digest: Option<String>,

    /// Version of the agent: the declared one, else the image's digest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub agent_version: Option<String>,

    /// Hash of the template that made the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub revision: Option<String>,

    /// Turn of the checkpoint that it resumes from; 0 at the beginning.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub resumed_from_turn: Option<i32>,

    /// When it was started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::time")]
    pub start_time: Option<Time>,
}

/// What recovery has cost so far.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RecoveryStatus {
    /// Charged crashes in the whole run.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub recovery_attempts: i32,

    /// Charged crashes in a row without progress.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub attempts_without_progress: i32,

    /// Disruptions in the whole run.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub disruptions: i32,

    /// Disruptions in a row without progress.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub disruptions_without_progress: i32,

    /// When the next attempt starts, while the run backs off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::time")]
    pub next_attempt_time: Option<Time>,

    /// The `spec.recovery.resetGeneration` that was granted last; a higher one grants a fresh budget.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub observed_reset_generation: Option<i64>,

    /// How the last ten attempts ended, the latest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 10), extend("x-kubernetes-list-type" = "atomic"))]
    pub history: Vec<AttemptEnd>,
}

/// How one attempt ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AttemptEnd {
    /// Number of the attempt.
    #[schemars(range(min = 1))]
    pub attempt: i32,

    /// What ended it.
    #[schemars(schema_with = "schema::cause")]
    pub cause: Cause,

    /// Whose doing it was: `Crash` the agent's, `Disruption` not the agent's, `Neutral` nobody's.
    pub class: Class,

    /// Whether it counts against the recovery budget.
    pub charged: bool,

    /// Exit code of the worker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,

    /// What is known of it: the worker's termination message or last lines of its log, or what the pod's status says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub message: Option<String>,

    /// Turn that it resumed from.
    #[schemars(range(min = 0))]
    pub turn_at_start: i32,

    /// Turn that it had committed at its end.
    #[schemars(range(min = 0))]
    pub turn_at_end: i32,

    /// Node of its pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub node_name: Option<String>,

    /// When it was started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::time")]
    pub start_time: Option<Time>,

    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::time")]
    pub end_time: Option<Time>,
}

/// The latest checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CheckpointStatus {
    /// Its turn.
    #[schemars(range(min = 0))]
    pub turn: i32,

    /// Events committed up to it.
    #[schemars(range(min = 0))]
    pub event_position: i64,

    /// Version of the agent that wrote it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub agent_version: Option<String>,

    /// Its hash, which covers all turns before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub content_hash: Option<String>,

    /// When it was committed, by the store's clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::time")]
    pub created_time: Option<Time>,
}

/// What the committed turns have spent, as their workers told.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UsageStatus {
    /// Tokens sent to models.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub tokens_in: i64,

    /// Tokens received from models.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub tokens_out: i64,

    /// Tool calls.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub tool_calls: i64,

    /// Cost in millionths of a US dollar.
    #[serde(default, rename = "costMicroUSD")]
    #[schemars(range(min = 0))]
    pub cost_micro_usd: i64,
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ResultStatus {
    /// Which end it was.
    pub outcome: RunOutcome,

    /// Why, in one word of the agent's or the operator's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub reason: Option<String>,

    /// Why, in a sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub message: Option<String>,

    /// The result: any JSON of at most 4 KiB and 64 levels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::any_json")]
    pub output: Option<Value>,
}
