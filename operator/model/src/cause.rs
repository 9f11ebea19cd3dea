//! Why an attempt ended.

use serde::{Deserialize, Deserializer};

use crate::string_enum::string_enum;

string_enum! {
    /// Why an attempt ended.
    pub enum Cause {
        /// The worker exited with a code other than 0.
        ExitedWithError,
        /// The worker exited with 0 without finishing the run.
        ExitedWithoutFinish,
        /// The worker exited with 0 without ever attaching.
        NeverAttached,
        /// The worker ran out of memory.
        OOMKilled,
        /// Another process of the same attempt tried to attach.
        ProcessRestarted,
        /// The worker's termination message says that no further attempt can succeed.
        WorkerFatal,
        /// The worker ended after a tool rejected the key of one of its calls.
        KeyRefused,
        /// The worker's termination message names the class of the end.
        WorkerReported,
        /// The pod was evicted by the Eviction API, as `kubectl drain` does.
        Evicted,
        /// The pod was preempted by one with a higher priority.
        Preempted,
        /// A taint of the node evicted the pod.
        TaintEvicted,
        /// Somebody deleted the pod.
        Deleted,
        /// The node shut down gracefully.
        NodeShutdown,
        /// The kubelet evicted the pod because the node ran short of a resource.
        NodePressure,
        /// The pod exceeded its storage limit.
        StorageLimitExceeded,
        /// The node is not ready, is gone, or has lost the pod.
        NodeLost,
        /// The pod is gone, and its end was not observed.
        PodVanished,
        /// The worker's heartbeats stopped while its node was ready.
        Silent,
        /// The worker was alive, but committed nothing for `progressDeadlineSeconds`.
        ProgressDeadline,
        /// The worker did not attach within `startDeadlineSeconds`.
        StartDeadline,
        /// The worker did not attach within `startDeadlineSeconds`, because a volume could not be attached to the node.
        VolumeUnavailable,
        /// No other node than one that failed could run the pod.
        NoOtherNode,
        /// The image cannot be pulled.
        ImageUnavailable,
        /// The worker's container could not be started, for example because its command does not exist.
        StartFailed,
        /// The template changed before the worker attached.
        TemplateChanged,
        /// The pulled image has another version than the checkpoint, and the policy does not allow it.
        VersionIncompatible,
        /// An object of another owner has the pod's name.
        NameTaken,
        /// A pod of a deleted run of the same name still has the pod's name.
        NameInUse,
        /// The run was cancelled.
        Cancelled,
        /// The run was finished.
        Finished,
        /// The run was suspended.
        Suspended,
        /// The run waits, and holds no pod meanwhile.
        Parked,
        /// The run reached one of its limits.
        LimitReached,
        /// The run was adopted by another AgentRun.
        Adopted,
        /// The run was rewound to an earlier checkpoint.
        Rewound,
        /// A later run of the same name was created with the instruction to ignore this run.
        Abandoned,
        /// The AgentRun was deleted.
        RunDeleted,
        /// The pod failed in another way; the message contains its reason.
        PodFailed,
    }
}

impl Cause {
    /// Parses a stored cause. A cause that a later version wrote and this version does not know becomes
    /// [`Cause::PodFailed`], so that the run can still be read after a downgrade.
    pub fn stored(text: &str) -> Self {
        text.parse().unwrap_or(Self::PodFailed)
    }

    /// The same, from JSON.
    pub(crate) fn deserialize_stored<'de, D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Ok(Self::stored(&String::deserialize(from)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_stored_as_its_name() {
        for cause in Cause::ALL {
            assert_eq!(Cause::stored(cause.as_str()), *cause);
            assert_eq!(serde_json::to_string(cause).unwrap(), format!("\"{cause}\""));
        }
    }

    #[test]
    fn a_cause_of_a_later_version_is_read_as_another_failure_of_the_pod() {
        assert_eq!(Cause::stored("Unheard"), Cause::PodFailed);
        assert!(serde_json::from_str::<Cause>("\"Unheard\"").is_err());
    }
}
