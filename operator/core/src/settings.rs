//! The value of each field: the run's, or else the definition's default, or else the built-in value.

use dalsegno_crds::{
    AgentRun, AgentRunSpec, OnCorruptCheckpoint, OnExhausted, OnMismatch, OnPriorRun, OnSameCheckpoint,
    RunDefaults,
};
use dalsegno_model::{Deadlines, OnPrior, Retention, RunLimits};
use jiff::SignedDuration;

use crate::observed::ObservedAgent;

/// No deadline: a hundred years, in milliseconds.
const NEVER_MS: i64 = 3_155_760_000_000;

/// The deadlines of a run whose worker never attaches.
const NO_DEADLINES: Deadlines =
    Deadlines { heartbeat_ms: NEVER_MS, start_ms: NEVER_MS, progress_ms: NEVER_MS, suspend_ms: NEVER_MS };

/// The resolved settings of a run. Square brackets show the built-in values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// `versionPolicy.onMismatch` \[`Pin`\].
    pub on_mismatch: OnMismatch,
    /// `recovery.maxRecoveryAttempts` \[20\]: number of crashes that are recovered. The next crash holds the run.
    pub max_recovery_attempts: i32,
    /// `recovery.maxAttemptsWithoutProgress` \[12\]: the run is held when the counter reaches this number.
    pub max_attempts_without_progress: i32,
    /// `recovery.maxDisruptionsWithoutProgress` \[10 in at least 10 minutes\]: the run is held when the counter reaches
    /// this number.
    pub max_disruptions_without_progress: Option<i32>,
    /// `recovery.maxDisruptions` \[unlimited\]: number of disruptions that are recovered. The next one holds the run.
    pub max_disruptions: Option<i32>,
    /// `recovery.backoff.initialSeconds` \[1\].
    pub backoff_initial_seconds: i32,
    /// `recovery.backoff.maxSeconds` \[300\].
    pub backoff_max_seconds: i32,
    /// `recovery.onExhausted` \[`Hold`\].
    pub on_exhausted: OnExhausted,
    /// `recovery.onCorruptCheckpoint` \[`Hold`\].
    pub on_corrupt_checkpoint: OnCorruptCheckpoint,
    /// `recovery.onSameCheckpoint` \[`Retry`\].
    pub on_same_checkpoint: OnSameCheckpoint,
    /// Lengths of the deadlines: `liveness.startDeadlineSeconds` \[600\], `heartbeatTimeoutSeconds` \[15\],
    /// `progressDeadlineSeconds` \[1800\], and `suspend.graceSeconds` \[300\].
    pub deadlines: Deadlines,
    /// `limits` \[none\]: each is the run's, or else the definition's.
    pub limits: RunLimits,
    /// `retention.keepPods` \[1\]: number of ended pods to keep for their logs.
    pub keep_pods: usize,
    /// `retention.ttlSecondsAfterFinished` \[never\]: the AgentRun is deleted this long after the run's end.
    pub ttl_after_finished: Option<SignedDuration>,
    /// `retention.retentionDays` \[30\]: days after the run's end until the store drops its payloads.
    /// `retention.keepLast` \[all\]: number of latest boundaries that keep their payloads until then.
    /// `checkpoints.snapshotEvery` \[the operator's setting, 10\]: boundaries after which a snapshot is due.
    pub retention: Retention,
    /// `fourEyes` \[false\]: whether approvals need four eyes.
    pub four_eyes: bool,
    /// `onPriorRun` \[`Hold`\].
    pub on_prior: OnPrior,
}

/// Whether the approvals of a run need four eyes: its spec or its definition demands them, or its definition did so when
/// the run was last looked at. The author of a definition cannot take them back from a run that has begun.
pub fn needs_four_eyes(run: &AgentRun, agent: &ObservedAgent) -> bool {
    let demanded_before = run.status.as_ref().and_then(|it| it.four_eyes);
    Settings::of(run, agent).four_eyes || demanded_before == Some(true)
}

impl Settings {
    /// Resolves the settings of a run. Without a definition the built-in values replace its defaults.
    pub fn of(run: &AgentRun, agent: &ObservedAgent) -> Self {
        match agent {
            ObservedAgent::Found { agent, defaults } if agent.is_external() => {
                Self { deadlines: NO_DEADLINES, ..Self::resolve(&run.spec, defaults) }
            }
            ObservedAgent::Found { defaults, .. } => Self::resolve(&run.spec, defaults),
            ObservedAgent::NotFound | ObservedAgent::Malformed(_) => {
                Self::resolve(&run.spec, &RunDefaults::default())
            }
        }
    }

    /// Resolves a run's spec and a definition's defaults.
    pub fn resolve(spec: &AgentRunSpec, defaults: &RunDefaults) -> Self {
        // A field of the run, or else of the definition's defaults.
        macro_rules! first {
            ($($part:ident).+) => {
                first!(@get spec, $($part).+).or_else(|| first!(@get defaults, $($part).+))
            };
            (@get $of:ident, $field:ident) => { $of.$field };
            (@get $of:ident, $group:ident . $field:ident) => {
                $of.$group.as_ref().and_then(|group| group.$field)
            };
            (@get $of:ident, $group:ident . $inner:ident . $field:ident) => {
                $of.$group.as_ref().and_then(|group| group.$inner.as_ref()).and_then(|inner| inner.$field)
            };
        }
        let millis = |value: Option<i32>, built_in: i32| i64::from(value.unwrap_or(built_in)) * 1_000;
        Self {
            on_mismatch: first!(version_policy.on_mismatch).unwrap_or(OnMismatch::Pin),
            max_recovery_attempts: first!(recovery.max_recovery_attempts).unwrap_or(20),
            max_attempts_without_progress: first!(recovery.max_attempts_without_progress).unwrap_or(12),
            max_disruptions_without_progress: first!(recovery.max_disruptions_without_progress),
            max_disruptions: first!(recovery.max_disruptions),
            backoff_initial_seconds: first!(recovery.backoff.initial_seconds).unwrap_or(1),
            backoff_max_seconds: first!(recovery.backoff.max_seconds).unwrap_or(300),
            on_exhausted: first!(recovery.on_exhausted).unwrap_or(OnExhausted::Hold),
            on_corrupt_checkpoint: first!(recovery.on_corrupt_checkpoint)
                .unwrap_or(OnCorruptCheckpoint::Hold),
            on_same_checkpoint: first!(recovery.on_same_checkpoint).unwrap_or(OnSameCheckpoint::Retry),
            deadlines: Deadlines {
                start_ms: millis(first!(liveness.start_deadline_seconds), 600),
                heartbeat_ms: millis(first!(liveness.heartbeat_timeout_seconds), 15),
                progress_ms: millis(first!(liveness.progress_deadline_seconds), 1_800),
                suspend_ms: millis(first!(suspend.grace_seconds), 300),
            },
            limits: RunLimits {
                turns: first!(limits.turns),
                tokens: first!(limits.tokens),
                cost_micro_usd: first!(limits.cost_micro_usd),
                active_ms: first!(limits.active_seconds).map(|seconds| seconds.saturating_mul(1_000)),
            },
            keep_pods: usize::try_from(first!(retention.keep_pods).unwrap_or(1)).unwrap_or_default(),
            ttl_after_finished: first!(retention.ttl_seconds_after_finished)
                .map(|seconds| SignedDuration::from_secs(seconds.into())),
            retention: Retention {
                days: first!(retention.retention_days).unwrap_or(30),
                keep_last: first!(retention.keep_last),
                snapshot_every: first!(checkpoints.snapshot_every),
            },
            four_eyes: first!(four_eyes).unwrap_or(false),
            on_prior: match first!(on_prior_run).unwrap_or(OnPriorRun::Hold) {
                OnPriorRun::Hold => OnPrior::Hold,
                OnPriorRun::Adopt => OnPrior::Adopt,
                OnPriorRun::Ignore => OnPrior::Ignore,
            },
        }
    }
}
