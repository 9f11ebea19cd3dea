//! What ends an attempt.

use crate::string_enum::string_enum;

string_enum! {
    /// What ended an attempt.
    pub enum Cause {
        /// The worker exited with another code than 0.
        ExitedWithError,
        /// The worker exited with 0 and had not finished the run.
        ExitedWithoutFinish,
        /// The worker exited with 0 and had never attached.
        NeverAttached,
        /// The worker ran out of memory.
        OOMKilled,
        /// Another process of the same attempt tried to attach.
        ProcessRestarted,
        /// The worker's termination message says that no further attempt would help.
        WorkerFatal,
        /// The worker ended after a tool had refused the key of one of its calls.
        KeyRefused,
        /// The worker's termination message says which class it was.
        WorkerReported,
        /// The pod was evicted by the Eviction API, as `kubectl drain` does.
        Evicted,
        /// The pod made room for one of a higher priority.
        Preempted,
        /// A taint of the node evicted the pod.
        TaintEvicted,
        /// Somebody deleted the pod.
        Deleted,
        /// The node was shut down in order.
        NodeShutdown,
        /// The kubelet evicted the pod because the node ran short of something.
        NodePressure,
        /// The pod used more storage than its limit.
        StorageLimitExceeded,
        /// The node is not ready or gone.
        NodeLost,
        /// The pod is gone and nobody saw its end.
        PodVanished,
        /// The worker's heartbeats stopped while its node was ready.
        Silent,
        /// The worker lived and committed nothing for `progressDeadlineSeconds`.
        ProgressDeadline,
        /// The worker did not attach within `startDeadlineSeconds`.
        StartDeadline,
        /// The image cannot be pulled.
        ImageUnavailable,
        /// The pulled image is another version than the checkpoint's, and the policy does not allow it.
        VersionIncompatible,
        /// An object of somebody else has the pod's name.
        NameTaken,
        /// The run was cancelled.
        Cancelled,
        /// The run was finished.
        Finished,
        /// The run was adopted by another AgentRun.
        Adopted,
        /// The run went back to an earlier checkpoint.
        Rewound,
        /// A later run of the same name was told to ignore the run.
        Abandoned,
        /// The AgentRun was deleted.
        RunDeleted,
        /// The pod failed in another way; the message has its reason.
        PodFailed,
    }
}
