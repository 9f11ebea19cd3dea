//! The reasons of conditions: what each one means, and what a person can do about it.

/// Defines an enum of reasons. Each variant has a meaning and a remediation, which the documentation and the messages of
/// conditions show.
macro_rules! reasons {
    ($(#[$meta:meta])* $name:ident: $($variant:ident { $meaning:literal, $remediation:literal })+) => {
        string_enum! {
            $(#[$meta])*
            pub enum $name {
                $(
                    #[doc = $meaning]
                    #[doc = ""]
                    #[doc = concat!("Remediation: ", $remediation)]
                    $variant,
                )+
            }
        }

        impl $name {
            /// What the reason means, in one or more sentences.
            pub const fn meaning(self) -> &'static str {
                match self { $(Self::$variant => $meaning,)+ }
            }

            /// What a person can do about it, in one or more sentences. It also says if nothing needs to be done.
            pub const fn remediation(self) -> &'static str {
                match self { $(Self::$variant => $remediation,)+ }
            }
        }
    };
}

reasons! {
    /// Why a condition has its status. A reason has the same meaning in every condition.
    Reason:
    // Condition Held, and Stalled with it: the operator has stopped the run, and a person must act.
    RecoveryLoop {
        "Attempts crashed in a row without progress, and reached the limit recovery.maxAttemptsWithoutProgress.",
        "Read status.recovery.history and the log of the kept pod. Fix the agent or its dependencies, then raise \
         spec.recovery.resetGeneration."
    }
    RecoveryAttemptsExhausted {
        "The run crashed more often than recovery.maxRecoveryAttempts allows.",
        "Read status.recovery.history, fix the agent, then raise spec.recovery.maxRecoveryAttempts or \
         spec.recovery.resetGeneration."
    }
    DisruptionsExhausted {
        "The run was disrupted more often than recovery.maxDisruptions or recovery.maxDisruptionsWithoutProgress allows.",
        "Move the run to nodes with fewer disruptions (another node pool, a priority class), or raise the limit. If the \
         message names a next try, the operator then tries again by itself; to try at once, raise \
         spec.recovery.resetGeneration."
    }
    CannotStart {
        "Three attempts in a row did not attach within liveness.startDeadlineSeconds.",
        "Look at the events of the last pod. Check the image, its pull secret, the volumes, and the address of the \
         gateway. The operator tries again by itself, at the time that the message names. To try at once, correct the \
         template, or raise spec.recovery.resetGeneration."
    }
    EffectUnknown {
        "A tool call of an earlier attempt may or may not have taken effect, and the call's policy is `ask`.",
        "Find out in the tool's own records whether the call took effect, and settle the call. The run then continues \
         without further action."
    }
    KeyRefused {
        "A tool refused the idempotency key of a call, as HTTP APIs do with status 422: the key belongs to a different \
         earlier call. An effect may have happened twice, or not as intended.",
        "Find out in the tool's own records what happened, and settle the call. The run then continues without further \
         action."
    }
    LimitReached {
        "The run has used up one of its limits: turns, tokens, cost or active time.",
        "Raise the limit in spec.limits. The run then goes on at the turn after its checkpoint."
    }
    VersionBlocked {
        "Another agent version wrote the latest checkpoint, and the version policy does not allow the deployed version to \
         resume it.",
        "List the checkpoint's version in compatibleWith, deploy that version again, or set versionPolicy.onMismatch to \
         Pin or Allow. Then raise spec.recovery.resetGeneration."
    }
    PinnedImageUnavailable {
        "The run is pinned to the image that wrote its checkpoint, and that image cannot be pulled.",
        "Push the image again, list the checkpoint's version in compatibleWith, or set versionPolicy.onMismatch to Allow. \
         The operator tries again by itself, at the time that the message names; to try at once, raise \
         spec.recovery.resetGeneration."
    }
    InputTooLarge {
        "spec.input is larger than 32 KiB, or nested deeper than 64 levels.",
        "Create a new AgentRun that refers to a ConfigMap or a Secret in spec.inputFrom, or whose input is a reference to \
         the data."
    }
    CheckpointCorrupt {
        "The state at the latest checkpoint cannot be rebuilt, or a call that the next attempt continues cannot be read: a \
         row of the store was damaged, changed or lost.",
        "Restore the damaged rows from a copy of the store, then raise spec.recovery.resetGeneration. Or set \
         spec.recovery.onCorruptCheckpoint to LastGood, which goes back to the last good checkpoint if no call would take \
         effect again. Or delete the AgentRun and create it again."
    }
    PriorRunFound {
        "The store holds an earlier run of the same namespace and name that nobody deleted on purpose.",
        "Set spec.onPriorRun to Adopt to continue the earlier run, or to Ignore to start at turn 1, or choose another name."
    }
    StoreChanged {
        "The operator is connected to a different store than the one that holds the run.",
        "Connect the operator to the store named in status.storeID, or delete the AgentRun and create it again. A pod of an agent \
         with checkpointing: External stays until then, and a drain of its node waits."
    }
    StoreBehind {
        "The store does not hold the run, or holds fewer turns than this status or a pod shows. It was restored from an \
         older copy, or it lost data.",
        "Restore the newest copy of the store. To start at turn 1, delete the AgentRun and create it again. A pod of an agent \
         with checkpointing: External stays until then, and a drain of its node waits."
    }
    WorkerFatal {
        "The worker's termination message says that a further attempt will not help.",
        "Read the message, remove the cause that it names, then raise spec.recovery.resetGeneration."
    }
    AgentNotFound {
        "spec.agentRef refers to an AgentDefinition that does not exist.",
        "Create the AgentDefinition in the run's namespace. The run then starts without further action. To use another \
         AgentDefinition, create a new AgentRun."
    }
    Malformed {
        "This version of the operator cannot parse the AgentDefinition or the AgentRun, for example because it was stored \
         under an older schema.",
        "Correct the field that the message names, or apply the object again. The run then continues without further \
         action."
    }
    TemplateInvalid {
        "The API server rejects the template's pod as invalid.",
        "Correct the template, or the policy that rejects it, as the message says. The operator then tries again."
    }
    NameCollision {
        "The pod names of ten attempts in a row are taken by pods of other owners.",
        "Delete or rename those pods. The operator then tries again; to try at once, raise spec.recovery.resetGeneration. \
         Or choose another name for the run."
    }
    ForkRefused {
        "The run cannot begin as the fork that spec.resumeFrom asks for. The message says why.",
        "If tool calls are listed, find out whether the fork may make them again, and name them in \
         spec.resumeFrom.acceptEffects. If the turn or the run is not available, delete the AgentRun and create one that \
         names another. The operator looks again each minute."
    }
    WaitTimedOut {
        "Nobody answered a wait before its deadline, and the agent asked to be held, or to fail, then.",
        "Answer the wait: the run then continues without further action. Or cancel the run."
    }
    EndNotConfirmed {
        "The agent has checkpointing: External, and nobody confirms that its last worker has ended: its node is silent, or its \
         pod does not end. No other pod starts meanwhile, because both would run at once. If the worker still runs, it goes on.",
        "Bring the node back. If its machine is off for certain, delete the Node, or give it the taint \
         node.kubernetes.io/out-of-service=nodeshutdown:NoExecute: Kubernetes then ends the pod, and the run goes on without \
         further action."
    }
    NotSupported {
        "The run sets a field that an agent with checkpointing: External does not support, or its definition now has another \
         checkpointing than when the run began. The message names it. No further pod starts.",
        "Remove the field from the AgentRun or from the definition's defaults; the run then continues without further action. \
         A field that cannot change needs a new AgentRun."
    }

    // Condition Ready.
    UnderControl {
        "A worker is attached.",
        "Nothing needs to be done."
    }
    Starting {
        "The attempt's pod was created, and its worker has not attached yet. The message says what the pod waits for.",
        "Wait. If it takes long, look at the events of the pod."
    }

    // Condition Ready, from the end of an attempt until the worker of the next one has attached: what ended the
    // attempt.
    Crashed {
        "The agent caused the end of the last attempt. The next attempt starts within the run's limits.",
        "Read the message and the log of the kept pod. If the run keeps crashing without progress, the operator holds it."
    }
    OutOfMemory {
        "The worker of the last attempt exceeded its memory limit. The next attempt starts within the run's limits.",
        "Raise the memory limit in the template, which applies from the next attempt on, or let the agent use less memory."
    }
    WorkerSilent {
        "The worker of the last attempt stopped its heartbeats while its node was Ready. The next attempt starts within the \
         run's limits.",
        "Check that the agent sends heartbeats from a separate thread, or raise liveness.heartbeatTimeoutSeconds."
    }
    NoProgress {
        "The worker of the last attempt was alive and committed nothing for liveness.progressDeadlineSeconds. The next \
         attempt starts within the run's limits.",
        "Find out what the agent waited for, or raise liveness.progressDeadlineSeconds."
    }
    Disrupted {
        "Something that the agent did not cause ended the last attempt, such as an eviction or a drained node. The next \
         attempt starts within the run's limits.",
        "Nothing needs to be done. status.recovery.history shows the cause."
    }
    NodeLost {
        "The node of the last attempt is not Ready, was removed, or has lost the pod. The next attempt prefers another \
         node.",
        "Nothing needs to be done for the run. Repair or remove the node."
    }
    DidNotStart {
        "The worker of the last attempt did not attach within liveness.startDeadlineSeconds, or its image could not be \
         pulled. After three such attempts in a row the run is held.",
        "Look at the events of the last pod. Check the image, its pull secret, the volumes, and the address of the gateway."
    }
    VersionRefused {
        "The image of the last attempt is another version than the checkpoint's, and the version policy does not allow it \
         to resume the checkpoint. The next attempt starts within the run's limits.",
        "With onMismatch: Pin, nothing needs to be done. Otherwise list the checkpoint's version in compatibleWith."
    }
    NameTaken {
        "The name of the last attempt's pod is taken by a pod of another owner. The next attempt uses the next name.",
        "Nothing needs to be done, unless the run is held."
    }
    Recovering {
        "An attempt ended and nobody is to blame, for example because the run was adopted or the gateway was unavailable. \
         The next attempt starts within the run's limits.",
        "Nothing needs to be done. status.recovery.history shows the cause."
    }

    // Condition Ready, while the operator waits for something.
    Cancelling {
        "The run was cancelled, and its worker has not acknowledged it yet, or its pod has not ended yet.",
        "Wait. The operator stops a worker that does not acknowledge the cancellation."
    }
    Suspending {
        "A person suspended the run, and its worker has not parked yet, or its pod has not ended yet.",
        "Wait. The operator stops a worker that does not park within suspend.graceSeconds."
    }
    Suspended {
        "A person suspended the run. It has no pod.",
        "Remove spec.operatingMode, or set it to Running. The run then goes on at the turn after its checkpoint."
    }
    Approval {
        "The run waits for a person's decision. It has no pod.",
        "Decide. status.waiting names the wait."
    }
    Until {
        "The run waits for a time. It has no pod.",
        "Nothing needs to be done. The run goes on by itself."
    }
    Message {
        "The run waits for a message. It has no pod.",
        "Send the run a message. status.waiting names the wait."
    }
    RateLimit {
        "The run waits for the end of a provider's rate limit. It has no pod.",
        "Nothing needs to be done. The run goes on by itself."
    }
    StoreUnavailable {
        "The store does not respond, so the state of the run is not known. Nothing is charged and no pod is replaced.",
        "Make the store available again. The run then continues without further action."
    }
    NamespaceTerminating {
        "The namespace is being deleted, so no pod can be created.",
        "Nothing needs to be done. The run is deleted with its namespace."
    }
    Held {
        "The run is held. The condition Held says why.",
        "Follow the message of the condition Held."
    }
    Failed {
        "The run ended, and the agent did not reach its goal.",
        "Read status.result. To try again, create a new AgentRun."
    }
    Succeeded {
        "The agent reached its goal.",
        "Nothing needs to be done. status.result holds the result."
    }
    Cancelled {
        "A person cancelled the run.",
        "Nothing needs to be done. To start again, create a new AgentRun."
    }

    Forking {
        "The state and the records of another run are being copied. The run then starts.",
        "Wait. It takes about a second for each 20 MB."
    }

    // Condition Rewound.
    Rewound {
        "The run went back to the turn that spec.rewind names.",
        "Nothing needs to be done."
    }
    RewindRefused {
        "The rewind that spec.rewind asks for was refused. Nothing was undone, and the run goes on. The message says why.",
        "Do what the message says, and raise spec.rewind.generation."
    }
    TurnNotAvailable {
        "The run cannot go back to the turn that spec.rewind names: the turn has not ended, or retention has dropped its state. \
         Nothing was undone, and the run goes on.",
        "Choose a turn that the message names, and raise spec.rewind.generation."
    }

    // Condition WorkerReady.
    Attached {
        "A worker is attached and can commit.",
        "Nothing needs to be done."
    }
    Started {
        "The worker runs. It does not attach, because the agent has checkpointing: External.",
        "Nothing needs to be done."
    }
    BackingOff {
        "The next attempt waits for its backoff to end.",
        "Wait until status.recovery.nextAttemptTime. Progress resets the backoff."
    }
    Queued {
        "As many runs of the AgentDefinition run as its maxConcurrentRuns allows. The oldest waiting run starts first.",
        "Wait, or raise maxConcurrentRuns. status.queuePosition shows the run's position."
    }
    QuotaExceeded {
        "The pod would exceed the namespace's quota. The operator tries the same attempt again.",
        "Raise the quota or free some of it. The operator then creates the pod."
    }
    PodRefused {
        "The API server rejects the pod for a reason other than the quota, such as a policy, a missing ServiceAccount or a \
         failing webhook. The operator tries the same attempt again. After eight identical rejections the run is held until \
         a try succeeds.",
        "Do what the message says. The operator then creates the pod, at its next try."
    }
    Unschedulable {
        "No node can run the pod.",
        "Add a node, or change the template's resources or placement. The time without a node is not charged."
    }
    ImagePullFailed {
        "The kubelet cannot pull the worker's image.",
        "Check the image's name, its registry and imagePullSecrets. If you correct the template, the operator replaces the \
         pod at once."
    }
    NoWorker {
        "The run has no worker, and none is starting.",
        "Read the conditions Held, Suspended, Waiting and Finished."
    }

    // Condition CheckpointAvailable.
    Committed {
        "At least one turn is committed.",
        "Nothing needs to be done."
    }
    KeptByAgent {
        "The agent has checkpointing: External: its own engine keeps its checkpoints.",
        "Nothing needs to be done."
    }
    NothingCommitted {
        "No turn is committed yet. An attempt would start at turn 1.",
        "Nothing needs to be done."
    }

    // Condition VersionCompatible.
    Same {
        "The deployed agent is the version that wrote the latest checkpoint.",
        "Nothing needs to be done."
    }
    Compatible {
        "The deployed agent lists the checkpoint's version in compatibleWith.",
        "Nothing needs to be done."
    }
    Pinned {
        "Another version is deployed, and the run continues with the version that wrote its checkpoint.",
        "Nothing needs to be done. To move the run to the deployed version, list the checkpoint's version in \
         compatibleWith."
    }
    Allowed {
        "The deployed agent is another version than the checkpoint's, and the version policy allows it to resume.",
        "Nothing needs to be done. To be stricter, set versionPolicy.onMismatch to Pin or Block."
    }
    Mismatch {
        "The deployed agent is another version than the checkpoint's, and the version policy does not allow it to resume.",
        "List the checkpoint's version in compatibleWith, deploy that version again, or change \
         versionPolicy.onMismatch."
    }
    NotYetKnown {
        "The agent's version is known only after its image is pulled, or nothing is committed yet.",
        "Nothing needs to be done."
    }

    // Conditions Finished and Succeeded.
    Completed {
        "The agent finished the run and reached its goal.",
        "Nothing needs to be done. status.result holds the result."
    }
    AgentFailed {
        "The agent finished the run without reaching its goal.",
        "Read status.result. To try again, create a new AgentRun."
    }
    RecoveryFailed {
        "Recovery is exhausted, and recovery.onExhausted is Fail.",
        "Read status.recovery.history, fix the agent, and create a new AgentRun. With onExhausted: Hold a run can be \
         continued instead."
    }
    Running {
        "The run has not ended.",
        "Nothing needs to be done."
    }

    // Condition Held, while it is False.
    NotHeld {
        "The run is not held.",
        "Nothing needs to be done."
    }

    // Condition Ready of an AgentDefinition.
    Accepted {
        "The API server accepts the template's pod in a dry run.",
        "Nothing needs to be done."
    }
    NotChecked {
        "The API server could not be reached, or rejected the dry run for a reason outside the template, such as a quota.",
        "Wait, or do what the message says. The operator tries again."
    }
}

reasons! {
    /// Why a condition of an AgentApproval has its status.
    ApprovalReason:
    // Condition Pending.
    AwaitingDecision {
        "Nobody has decided yet.",
        "Read the proposal, then write spec.decision."
    }
    AwaitingSecondDecision {
        "The approval needs four eyes, and the creator of the run or the author of its agent is a ServiceAccount or not \
         proven. One person has decided, and a second one is needed.",
        "Let another person read the proposal and write spec.secondDecision."
    }
    Overdue {
        "The deadline has passed, and a decision still counts.",
        "Read the proposal, then write spec.decision."
    }
    PolicyMissing {
        "An admission policy of the chart is missing, was changed, or cannot be read, so nobody can tell who made a decision.",
        "Install the chart again with its policies. The message names the policy. A decision that was made before must be \
         made again."
    }
    DecidedWithoutPolicy {
        "The decision was made before the admission policies of the chart were last installed or changed, so nobody can tell \
         who made it. The decision was removed.",
        "Decide again."
    }
    OtherProposal {
        "The decision names another proposal. The decision was removed.",
        "Read the proposal, then write spec.decision with the proposalHash of this approval."
    }
    FourEyesViolated {
        "The decision was made by a person who created the run, wrote its agent or sent it a message, or both decisions were \
         made by one person. The decision was removed.",
        "Let another person decide."
    }
    FourEyesUnknown {
        "It could not be found out who created the run, wrote its agent or sent it messages. The decision was removed.",
        "Do what the message says, then decide again."
    }
    ChangesTooLarge {
        "The changes of the decision are larger than 16 KiB, or nested too deeply. The decision was removed.",
        "Decide again with smaller changes."
    }

    // Condition Decided, and Pending once it is False.
    Approved {
        "A person approved the proposal.",
        "Nothing needs to be done."
    }
    Denied {
        "A person denied the proposal.",
        "Nothing needs to be done."
    }
    Changed {
        "A person approved the proposal with changes.",
        "Nothing needs to be done."
    }

    // Condition Applied.
    Answered {
        "The run has the answer, and goes on.",
        "Nothing needs to be done."
    }
    NotApplied {
        "The run has no answer from this approval.",
        "Read the condition Pending."
    }

    // Conditions Expired and Withdrawn.
    DeadlinePassed {
        "Nobody decided before the deadline. A later decision is refused.",
        "Nothing needs to be done. spec.onTimeout says what the run does now."
    }
    WaitWithdrawn {
        "The run does not wait any more: it was rewound, it was cancelled, it has ended, or it was deleted.",
        "Nothing needs to be done."
    }
}
