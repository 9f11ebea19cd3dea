//! The reasons of conditions: what each means, and the way out.

/// Defines [`Reason`]: each variant with its meaning and its way out, which stand in its documentation and in messages.
macro_rules! reasons {
    ($($variant:ident { $meaning:literal, $way_out:literal })+) => {
        words! {
            /// Why a condition is as it is. One word means the same wherever it stands.
            pub enum Reason {
                $(
                    #[doc = $meaning]
                    #[doc = ""]
                    #[doc = concat!("Way out: ", $way_out)]
                    $variant,
                )+
            }
        }

        impl Reason {
            /// What the reason means, in a sentence.
            pub const fn meaning(self) -> &'static str {
                match self { $(Self::$variant => $meaning,)+ }
            }

            /// What a person can do about it, in a sentence; also where nothing needs to be done.
            pub const fn way_out(self) -> &'static str {
                match self { $(Self::$variant => $way_out,)+ }
            }
        }
    };
}

reasons! {
    // Held, and Stalled with it: the operator has stopped the run, and a person is needed.
    RecoveryLoop {
        "Attempts crashed in a row without progress, up to recovery.maxAttemptsWithoutProgress.",
        "Read status.recovery.history and the log of the kept pod, fix the agent or what it depends on, then raise \
         spec.recovery.resetGeneration."
    }
    RecoveryAttemptsExhausted {
        "The run crashed more often than recovery.maxRecoveryAttempts allows.",
        "Read status.recovery.history, fix the agent, then raise spec.recovery.maxRecoveryAttempts or \
         spec.recovery.resetGeneration."
    }
    DisruptionsExhausted {
        "The run was disrupted more often than recovery.maxDisruptions or recovery.maxDisruptionsWithoutProgress allows.",
        "Give the run a calmer place (another node pool, a priority class), or raise the limit, then raise \
         spec.recovery.resetGeneration."
    }
    CannotStart {
        "Three attempts in a row did not attach within liveness.startDeadlineSeconds.",
        "Look at the events of the last pod: the image, its pull secret, the volumes, or the address of the gateway; then \
         raise spec.recovery.resetGeneration."
    }
    EffectUnknown {
        "A tool call of an earlier attempt may or may not have taken effect, and its policy is to ask.",
        "Find out in the tool's own records, then say so by `dalsegno settle NAMESPACE/RUN CALL --outcome \
         completed|failed --reason TEXT`."
    }
    KeyRefused {
        "A tool refused the idempotency key of a call (as HTTP APIs do with 422): it knows the key from a call that was \
         another, so an effect may have happened twice, or not as it was meant.",
        "See which call by `dalsegno show NAMESPACE/RUN --calls`, find out in the tool's own records, then say so by \
         `dalsegno settle NAMESPACE/RUN CALL --outcome completed|failed --reason TEXT`."
    }
    VersionBlocked {
        "The latest checkpoint was written by another version of the agent, and the version policy does not let this one \
         resume it.",
        "List the checkpoint's version in compatibleWith, deploy that version again, or set versionPolicy.onMismatch to \
         Pin or Allow; then raise spec.recovery.resetGeneration."
    }
    PinnedImageUnavailable {
        "The run is pinned to the image that wrote its checkpoint, and that image cannot be pulled.",
        "Push the image again, or list the checkpoint's version in compatibleWith, or set versionPolicy.onMismatch to \
         Allow; then raise spec.recovery.resetGeneration."
    }
    InputTooLarge {
        "spec.input is larger than 32 KiB, or nested deeper than 64 levels.",
        "Create a new AgentRun that names a ConfigMap or a Secret in spec.inputFrom, or that passes a reference."
    }
    CheckpointCorrupt {
        "The state at the latest checkpoint cannot be rebuilt, or a call that the next attempt goes on with cannot be read: a \
         row of the store was damaged, changed or lost.",
        "Restore the damaged rows from a copy of the store, then raise spec.recovery.resetGeneration; or set \
         spec.recovery.onCorruptCheckpoint to LastGood, which goes back to the last good checkpoint where no call would \
         take effect again; or delete the AgentRun and create it again."
    }
    PriorRunFound {
        "The store holds an earlier run of the same namespace and name that was not deleted on purpose.",
        "Set spec.onPriorRun to Adopt to go on with it, or to Ignore to begin anew; or choose another name."
    }
    StoreChanged {
        "The store is another one than the run was recorded in.",
        "Connect the operator to the store named in status.storeID, or delete the AgentRun and create it again."
    }
    StoreBehind {
        "The store has no such run, or knows fewer turns than this status or a pod does: it was restored from an older \
         copy, or it lost data.",
        "Restore the newest copy of the store; to begin anew, delete the AgentRun and create it again."
    }
    WorkerFatal {
        "The worker said in its termination message that a further attempt would not help.",
        "Read the message, remove what it names, then raise spec.recovery.resetGeneration."
    }
    AgentNotFound {
        "spec.agentRef names an AgentDefinition that is not there.",
        "Create the AgentDefinition in the run's namespace; the run then starts by itself. To name another one, create a \
         new AgentRun."
    }
    Malformed {
        "The AgentDefinition, or the AgentRun, is not what this version of the operator reads, as when it was stored under an \
         older schema.",
        "Correct the field that the message names, or apply the object again; the run then goes on by itself."
    }
    TemplateInvalid {
        "The API server refuses the template's pod as invalid.",
        "Correct the template, or the policy that refuses it, as the message says; then it is tried again by itself."
    }
    NameCollision {
        "Objects of somebody else have the names of ten attempts' pods in a row.",
        "Delete or rename those pods, then raise spec.recovery.resetGeneration; or choose another name for the run."
    }

    // Ready.
    UnderControl {
        "A worker is attached, and nothing is amiss.",
        "Nothing needs to be done."
    }
    Starting {
        "The pod of the attempt was made, and its worker has not attached; the message says what the pod waits for.",
        "Wait, or look at the pod's events if it takes long."
    }

    // Ready, from the end of an attempt until the next one's worker has attached: what ended it.
    Crashed {
        "The agent's last attempt failed by its own doing, and the next one is on its way within the run's limits.",
        "Read the message and the log of the kept pod; a run that keeps crashing without progress is held by itself."
    }
    OutOfMemory {
        "The worker of the last attempt used more memory than its limit, and the next one is on its way.",
        "Raise the memory limit in the template, which reaches the run with its next attempt, or let the agent keep less."
    }
    WorkerSilent {
        "The worker of the last attempt stopped its heartbeats while its node was ready, and the next one is on its way.",
        "See that the agent sends heartbeats from a thread of their own, or raise liveness.heartbeatTimeoutSeconds."
    }
    NoProgress {
        "The worker of the last attempt lived and committed nothing for liveness.progressDeadlineSeconds, and the next one \
         is on its way.",
        "Find out what the agent waited for, or raise liveness.progressDeadlineSeconds."
    }
    Disrupted {
        "The last attempt was ended by something that the agent did not cause, such as an eviction or a drained node, and \
         the next one is on its way.",
        "Nothing needs to be done; status.recovery.history says what it was."
    }
    NodeLost {
        "The node of the last attempt is not ready or gone, and the next attempt is on its way elsewhere.",
        "Nothing needs to be done for the run; the node needs somebody."
    }
    DidNotStart {
        "The worker of the last attempt did not attach within liveness.startDeadlineSeconds, or its image could not be \
         pulled, and the next attempt is on its way; after three in a row the run is held.",
        "Look at the events of the last pod: the image, its pull secret, the volumes, or the address of the gateway."
    }
    VersionRefused {
        "The image of the last attempt turned out to be another version than the checkpoint's, which the version policy does \
         not let resume it; the next attempt is on its way.",
        "Nothing needs to be done under Pin; else list the checkpoint's version in compatibleWith."
    }
    NameTaken {
        "An object of somebody else has the name of the last attempt's pod, and the next attempt takes the next name.",
        "Nothing needs to be done, unless the run is held."
    }
    Recovering {
        "An attempt ended and nobody is to blame, as when the run was adopted or the operator itself was away; the next one \
         is on its way.",
        "Nothing needs to be done; status.recovery.history says what happened."
    }

    // Ready, while something is awaited.
    Cancelling {
        "The run was cancelled, and its worker has not acknowledged it.",
        "Wait: a worker that does not acknowledge is stopped."
    }
    StoreUnavailable {
        "The store does not answer, so that nothing is known for certain; nothing is charged and nothing replaced.",
        "Bring the store back; the run goes on by itself."
    }
    NamespaceTerminating {
        "The namespace is being deleted, so that no pod can be made.",
        "Nothing needs to be done; the run goes with its namespace."
    }
    Held {
        "The run is held; the condition Held says why.",
        "Follow the message of the condition Held."
    }
    Failed {
        "The run ended without reaching its goal.",
        "Read status.result; create a new AgentRun to try again."
    }
    Succeeded {
        "The agent reached its goal.",
        "Nothing needs to be done; status.result holds the result."
    }
    Cancelled {
        "A person cancelled the run.",
        "Nothing needs to be done; create a new AgentRun to begin again."
    }

    // WorkerReady.
    Attached {
        "A worker is attached and can commit.",
        "Nothing needs to be done."
    }
    BackingOff {
        "The next attempt waits for its time.",
        "Wait until status.recovery.nextAttemptTime; progress makes the waits short again."
    }
    QuotaExceeded {
        "The namespace's quota has no room for the pod; the same attempt is tried again.",
        "Raise the quota or free some of it; the pod is then made by itself."
    }
    PodRefused {
        "The API server does not make the pod for another reason than its quota, such as a policy, a missing ServiceAccount \
         or a webhook that fails; the same attempt is tried again.",
        "Do what the message says; the pod is then made by itself."
    }
    Unschedulable {
        "No node has room for the pod.",
        "Add a node, or change the template's resources or placement; waiting for a node is not charged."
    }
    ImagePullFailed {
        "The kubelet cannot pull the worker's image.",
        "Check the image's name, its registry and imagePullSecrets; a change of the template is taken up with the next \
         attempt."
    }
    NoWorker {
        "There is no worker, and none is on its way.",
        "The conditions Held and Finished say why."
    }

    // CheckpointAvailable.
    Committed {
        "At least one turn is committed.",
        "Nothing needs to be done."
    }
    NothingCommitted {
        "No turn was committed yet; an attempt would begin at turn 1.",
        "Nothing needs to be done."
    }

    // VersionCompatible.
    Same {
        "The agent is the version that wrote the latest checkpoint.",
        "Nothing needs to be done."
    }
    Compatible {
        "The agent lists the checkpoint's version in compatibleWith.",
        "Nothing needs to be done."
    }
    Pinned {
        "Another version is deployed; the run goes on with the one that wrote its checkpoint.",
        "Nothing needs to be done; to move the run to the deployed version, list the checkpoint's version in \
         compatibleWith."
    }
    Allowed {
        "The agent is another version than the checkpoint's, and the version policy allows it.",
        "Nothing needs to be done; set versionPolicy.onMismatch to Pin or Block to be stricter."
    }
    Mismatch {
        "The agent is another version than the checkpoint's, and the version policy does not allow it.",
        "List the checkpoint's version in compatibleWith, deploy that version again, or change \
         versionPolicy.onMismatch."
    }
    NotYetKnown {
        "The version of the agent is known only once its image is pulled, or nothing was committed yet.",
        "Nothing needs to be done."
    }

    // Finished and Succeeded.
    Completed {
        "The agent finished the run and reached its goal.",
        "Nothing needs to be done; status.result holds the result."
    }
    AgentFailed {
        "The agent finished the run without reaching its goal.",
        "Read status.result; create a new AgentRun to try again."
    }
    RecoveryFailed {
        "Recovery came to its end, and recovery.onExhausted is Fail.",
        "Read status.recovery.history, fix the agent, and create a new AgentRun; with onExhausted: Hold a run can be \
         taken up again."
    }
    Running {
        "The run has not reached an end.",
        "Nothing needs to be done."
    }

    // Held, while it is False.
    NotHeld {
        "Nothing holds the run.",
        "Nothing needs to be done."
    }

    // Ready of an AgentDefinition.
    Accepted {
        "The API server accepts the template's pod, as a dry run showed.",
        "Nothing needs to be done."
    }
    NotChecked {
        "The API server could not be asked, or refused the dry run for a reason that is not the template's, such as a \
         quota.",
        "Wait, or do what the message says; it is tried again by itself."
    }
}
