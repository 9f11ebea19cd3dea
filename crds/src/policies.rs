//! The policies that a definition's `defaults` and a run share. Every field may be unset: run, then definition, then the
//! built-in value, which its description names.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What happens when the latest checkpoint was written by another version of the agent than the one that would resume
/// it. Versions are compared twice: the declared ones before a pod is made, and the pulled image's when its worker
/// attaches.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VersionPolicy {
    /// `Pin` (built-in): resume with the template that wrote the checkpoint, its image by digest; only resources and
    /// placement are taken from the current template. `Block`: hold the run until a person decides. `Allow`: resume with
    /// the current template all the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_mismatch: Option<OnMismatch>,
}

words! {
    /// What happens on another version of the agent.
    pub enum OnMismatch {
        /// Resume with the version that wrote the checkpoint.
        Pin,
        /// Hold the run.
        Block,
        /// Resume with the current version.
        Allow,
    }
}

/// How often and how patiently a run is recovered. A crash is a death that the agent caused, a disruption one that it
/// did not, such as an eviction. Progress is a new highest turn or a newly completed tool call.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Recovery {
    /// Crashes in the whole run that are recovered; the next one ends recovery. Built-in: 20. With 0, the first crash
    /// does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1_000_000))]
    pub max_recovery_attempts: Option<i32>,

    /// Crashes in a row without progress at which recovery ends: the detector of recovery loops. Any progress begins the
    /// count anew. Built-in: 3.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub max_attempts_without_progress: Option<i32>,

    /// Disruptions in a row without progress at which recovery ends. From the second on they wait as crashes do.
    /// Built-in: 10.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub max_disruptions_without_progress: Option<i32>,

    /// Disruptions in the whole run that are recovered; the next one ends recovery. Built-in: unlimited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1_000_000))]
    pub max_disruptions: Option<i32>,

    /// How long the next attempt waits after a crash.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backoff: Option<Backoff>,

    /// What happens when recovery has come to its end. `Hold` (built-in): the run is held, keeps all it has, and goes on
    /// once a person raises `resetGeneration`. `Fail`: the run ends as failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_exhausted: Option<OnExhausted>,

    /// What happens when the state at the latest checkpoint cannot be rebuilt from the store: a hash or a payload is not
    /// what was committed, or a row is missing. The run never resumes from it, and never begins anew. `Hold` (built-in):
    /// the run is held. `LastGood`: it goes back to the last checkpoint that can be rebuilt, and the turns after it are
    /// done again; it is held all the same where a tool call of those turns may have changed something (any policy but
    /// `readOnly`), or where nothing can be rebuilt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_corrupt_checkpoint: Option<OnCorruptCheckpoint>,

    /// Raise it above `status.recovery.observedResetGeneration` to grant one fresh budget: the counts in a row go to
    /// zero, the totals count from here, and a hold is lifted; a hold whose cause still stands comes back. A lower number
    /// does nothing, nor does the one that stood there when the run was created. Built-in: 0. Not allowed in a
    /// definition's defaults.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 9_007_199_254_740_991_i64))]
    pub reset_generation: Option<i64>,
}

/// How long the next attempt waits: it doubles with each crash in a row, with some jitter, and progress begins it anew.
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
    /// Wait after the first crash, in seconds. Built-in: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 86_400))]
    pub initial_seconds: Option<i32>,

    /// Longest wait, in seconds. Built-in: 300.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 86_400))]
    pub max_seconds: Option<i32>,
}

words! {
    /// What happens when recovery has come to its end.
    pub enum OnExhausted {
        /// The run is held.
        Hold,
        /// The run ends as failed.
        Fail,
    }
}

words! {
    /// What happens when the latest checkpoint is damaged.
    pub enum OnCorruptCheckpoint {
        /// The run is held.
        Hold,
        /// It goes back to the last one that is not, if no call with an effect lies between.
        LastGood,
    }
}

/// How long a worker may be silent or without a result before it is replaced. The clocks stand still while the store,
/// the gateway or the API server is away.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Liveness {
    /// Longest time from the scheduling of a pod to the attach of its worker, image pull included, in seconds. Then the
    /// pod is replaced, uncharged; after three in a row the run is held. Built-in: 600.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 5, max = 604_800))]
    pub start_deadline_seconds: Option<i32>,

    /// Silence after which a worker that sends heartbeats is replaced, in seconds. It binds an attempt from its first
    /// heartbeat on; a worker that never sends any is judged by its pod, its node and `progressDeadlineSeconds`. A shorter
    /// one binds from the next heartbeat on: a worker that is silent already keeps the time that it was promised.
    /// Built-in: 15. At least 10, so that a restart of the gateway that is too short to be noticed costs no lease.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 10, max = 86_400))]
    pub heartbeat_timeout_seconds: Option<i32>,

    /// Longest time without a commit while the worker is alive, in seconds; it must be longer than the longest turn.
    /// Then the worker is replaced, which counts as a crash. Built-in: 1800.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 5, max = 2_592_000))]
    pub progress_deadline_seconds: Option<i32>,
}

/// What is kept of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Retention {
    /// How many pods that have ended, whichever way, stay for `kubectl logs`, the latest ones; they hold no resources of a
    /// node. Built-in: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 10))]
    pub keep_pods: Option<i32>,

    /// The last so many boundaries keep their states and events; what is older is dropped while the run lives, once a
    /// snapshot stands for it. No run goes back further than that. Headers, calls, records and the audit stay. Built-in:
    /// all are kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub keep_last: Option<i32>,

    /// So many days after the run has ended, whichever way, the store drops what its worker wrote: states, events, results
    /// and records. Headers and the audit stay, so that what happened can still be proved. Nothing of a run that lives is
    /// dropped for its age. Built-in: 30.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 36_500))]
    pub retention_days: Option<i32>,

    /// The AgentRun is deleted this many seconds after the run has ended, whichever way; what the store holds of it
    /// stays for its `retentionDays`. Built-in: never. Where Git creates what is missing, leave it unset: the run would begin again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 315_360_000))]
    pub ttl_seconds_after_finished: Option<i32>,
}
