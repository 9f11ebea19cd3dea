//! The policies that an AgentDefinition's `defaults` and an AgentRun share. Every field is optional. The run's value
//! comes first, then the definition's, then the built-in value, which the description of the field states.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What happens if another agent version wrote the latest checkpoint than the one that would resume it. The operator
/// compares versions twice: the declared version before it creates a pod, and the pulled image's version when the
/// worker attaches.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VersionPolicy {
    /// `Pin` (built-in): resume with the template that wrote the checkpoint, and name its image by digest. Only
    /// resources and placement come from the current template. `Pin` does the same if the current template fails to
    /// start, or if its image has another name and a version that is not known yet. `Block`: hold the run until a person decides. `Allow`:
    /// resume with the current template despite the mismatch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_mismatch: Option<OnMismatch>,
}

string_enum! {
    /// What happens if the agent version does not match the checkpoint's.
    pub enum OnMismatch {
        /// Resume with the version that wrote the checkpoint.
        Pin,
        /// Hold the run.
        Block,
        /// Resume with the current version.
        Allow,
    }
}

/// Limits and delays of recovery. A crash is an end of an attempt that the agent caused. A disruption is an end that
/// the agent did not cause, such as an eviction. Progress is a new highest turn or a newly completed tool call.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Recovery {
    /// Number of crashes in the whole run that are recovered. The next crash exhausts recovery. With 0, the first crash
    /// does. Built-in: 20.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1_000_000))]
    pub max_recovery_attempts: Option<i32>,

    /// Number of consecutive crashes without progress that exhausts recovery. It detects recovery loops. Any progress
    /// resets the count to 0. Built-in: 12, which with the built-in backoff takes at least 14 minutes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub max_attempts_without_progress: Option<i32>,

    /// Number of consecutive disruptions without progress that exhausts recovery. From the second one on, the next
    /// attempt waits for the backoff, as after a crash. The run is then held for a pause that grows from 1 to 30 minutes,
    /// and tried again. Built-in: 10, and they must span at least 10 minutes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub max_disruptions_without_progress: Option<i32>,

    /// Number of disruptions in the whole run that are recovered. The next disruption exhausts recovery. Built-in:
    /// unlimited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1_000_000))]
    pub max_disruptions: Option<i32>,

    /// How long the next attempt waits after a crash.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backoff: Option<Backoff>,

    /// What happens when recovery is exhausted. `Hold` (built-in): the run is held and keeps all its data. It continues
    /// when a person raises `resetGeneration`. `Fail`: the run fails.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_exhausted: Option<OnExhausted>,

    /// What happens if the state at the latest checkpoint cannot be rebuilt from the store, because a hash or a payload
    /// differs from what was committed, or a row is missing. The run never resumes from such a checkpoint, and never
    /// starts again at turn 1. `Hold` (built-in): the run is held. `LastGood`: the run goes back to the last checkpoint
    /// that can be rebuilt, and repeats the turns after it. It is held nevertheless if a tool call of those turns may
    /// have changed something (any policy but `readOnly`), or if no checkpoint can be rebuilt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_corrupt_checkpoint: Option<OnCorruptCheckpoint>,

    /// What happens before the last try of a run whose attempts keep crashing at one checkpoint. `Retry` (built-in):
    /// the last try resumes from the same checkpoint. `Rewind`: the last try resumes one turn earlier. It does not if a
    /// tool call of the turns that would be undone may have changed something (any policy but `readOnly`), or if there
    /// is no earlier turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_same_checkpoint: Option<OnSameCheckpoint>,

    /// To grant one fresh budget, raise this number above `status.recovery.observedResetGeneration`. The consecutive
    /// counts become 0, the totals count from here, and a hold is lifted. If the cause of the hold persists, the run is
    /// held again. A lower number has no effect, and neither has the number that was set when the run was created. Not
    /// allowed in a definition's defaults. Built-in: 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 9_007_199_254_740_991_i64))]
    pub reset_generation: Option<i64>,
}

/// The delay before the next attempt. It doubles with each consecutive crash, with some jitter. Progress resets it.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new(
        "!has(self.initialSeconds) || !has(self.maxSeconds) || self.initialSeconds <= self.maxSeconds"
    )
        .message("initialSeconds must not be larger than maxSeconds")
        .field_path(".initialSeconds")
)]
pub struct Backoff {
    /// Delay after the first crash, in seconds. Built-in: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 86_400))]
    pub initial_seconds: Option<i32>,

    /// Longest delay, in seconds. Built-in: 300.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 86_400))]
    pub max_seconds: Option<i32>,
}

string_enum! {
    /// What happens when recovery is exhausted.
    pub enum OnExhausted {
        /// The run is held.
        Hold,
        /// The run fails.
        Fail,
    }
}

string_enum! {
    /// What happens if the latest checkpoint is corrupt.
    pub enum OnCorruptCheckpoint {
        /// The run is held.
        Hold,
        /// The run goes back to the last good checkpoint, if no call with an effect would be repeated.
        LastGood,
    }
}

string_enum! {
    /// What happens before the last try at one checkpoint.
    pub enum OnSameCheckpoint {
        /// The last try resumes from the same checkpoint.
        Retry,
        /// The last try resumes one turn earlier, if no call with an effect would be repeated.
        Rewind,
    }
}

/// How long a worker may send no heartbeat or commit nothing before it is replaced. The deadlines do not run while the
/// store, the gateway or the API server is unavailable.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Liveness {
    /// Longest time from the scheduling of a pod to the attach of its worker, in seconds. It includes the image pull.
    /// When it expires, the pod is replaced and the run is not charged. After three times in a row the run is held.
    /// Built-in: 600.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 5, max = 604_800))]
    pub start_deadline_seconds: Option<i32>,

    /// Longest time between two heartbeats, in seconds. When it expires, the worker is replaced. It applies from the
    /// attempt's first heartbeat on. A worker that never sends one is judged by its pod, its node and
    /// `progressDeadlineSeconds`. A shorter timeout applies from the next heartbeat on, so that a worker keeps the
    /// timeout that its last heartbeat was answered with. At least 10, so that no lease expires during a restart of the
    /// gateway that is too short to count as an outage. Built-in: 15.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 10, max = 86_400))]
    pub heartbeat_timeout_seconds: Option<i32>,

    /// Longest time without a commit while the worker is alive, in seconds. It must be longer than the longest turn.
    /// When it expires, the worker is replaced, which counts as a crash. Built-in: 1800.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 5, max = 2_592_000))]
    pub progress_deadline_seconds: Option<i32>,
}

/// How a suspend stops the worker.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Suspend {
    /// Longest time from when a worker was told of the suspend until it parks, in seconds. When it expires, the worker
    /// is stopped; its open turn is lost, and the run is not charged. A worker that could not be told is stopped after
    /// twice this time. Built-in: 300.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 604_800))]
    pub grace_seconds: Option<i32>,
}

/// Limits of a run over all its attempts. A run that reaches one is held, and goes on when the limit is raised. The
/// operator judges them before each pod, and the store at each boundary: the boundary that reaches a limit is accepted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RunLimits {
    /// Number of ended turns. Turns that a rewind has undone do not count. 0: none. Built-in: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 2_147_483_647))]
    pub turns: Option<i64>,

    /// Number of tokens, to and from models together, as the worker reports them. 0: none. Built-in: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 9_007_199_254_740_991_i64))]
    pub tokens: Option<i64>,

    /// Cost in millionths of a US dollar, as the worker reports it. 0: none. Built-in: no limit.
    #[serde(default, rename = "costMicroUSD", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 9_007_199_254_740_991_i64))]
    pub cost_micro_usd: Option<i64>,

    /// Number of seconds with a worker: from the attach to the end of each attempt. The time in which the run is
    /// suspended, waits, is held or backs off does not count. The worker is stopped 30 s after it. 0: none. Built-in: no
    /// limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 315_360_000))]
    pub active_seconds: Option<i64>,
}

/// How a run's checkpoints are stored.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Checkpoints {
    /// Number of boundaries after which the state is stored as a whole again, as a snapshot. In between only changes are
    /// stored, and reading the state applies at most about this many of them. A small number makes a resume from a large
    /// state cheaper, and snapshots more frequent. Built-in: the operator's setting, which is 10.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 50))]
    pub snapshot_every: Option<i32>,
}

/// How long the pods, the payloads and the AgentRun of a run are kept.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Retention {
    /// Number of ended pods to keep for `kubectl logs`. The latest pods are kept, however they ended. They use no
    /// resources of a node. Built-in: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 10))]
    pub keep_pods: Option<i32>,

    /// Number of latest boundaries that keep their states and events. Older ones are dropped while the run is live, as
    /// soon as a snapshot replaces them. The run cannot be rewound further than that. Headers, calls, records and the
    /// audit are kept. Built-in: all boundaries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub keep_last: Option<i32>,

    /// Number of days after the end of the run, however it ended, until the store drops what its worker wrote: states,
    /// events, results and records. Headers and the audit are kept, so that the history can still be proved. Nothing of
    /// a live run is dropped because of its age. Built-in: 30.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 36_500))]
    pub retention_days: Option<i32>,

    /// Number of seconds after the end of the run, however it ended, until the AgentRun is deleted. The store keeps the
    /// run's data for `retentionDays`. If Git creates missing objects again, leave this field unset; otherwise the run
    /// would start again. Built-in: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 315_360_000))]
    pub ttl_seconds_after_finished: Option<i32>,
}

string_enum! {
    /// What happens if the store holds an earlier run of the same namespace and name.
    pub enum OnPriorRun {
        /// The run is held, and the store is not changed.
        Hold,
        /// The earlier run is fenced, and this object continues it.
        Adopt,
        /// The earlier run is marked as abandoned, and this run starts at turn 1.
        Ignore,
    }
}
