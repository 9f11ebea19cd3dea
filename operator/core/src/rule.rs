//! The rules of a decision, by name. `decide` follows the first one that applies.

use std::fmt;

/// Defines the rules, each with what it says.
macro_rules! rules {
    ($($name:ident $sentence:literal)+) => {
        /// The rule that a decision follows.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Rule {
            $(
                #[doc = $sentence]
                $name,
            )+
        }

        impl Rule {
            /// Every rule, in the order in which `decide` looks at them. A rule of an attempt with a pod comes after those of a
            /// reserved attempt, although both never apply at once.
            pub const ALL: &'static [Self] = &[$(Self::$name),+];

            /// Its name.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$name => stringify!($name),)+ }
            }

            /// What it says.
            pub fn sentence(self) -> &'static str {
                match self { $(Self::$name => $sentence,)+ }
            }
        }
    };
}

rules! {
    ApprovalFirst "An AgentApproval of the run is created, updated, applied or refused before anything else."
    StoreUnavailable "The store does not respond. Nothing is changed, and no pod is replaced."
    RunCreated "The store does not have the run yet. It is created there."
    EndedElsewhere "The status says that the run has ended, and this store does not know of it. Nothing is changed."
    RetentionChanged "The spec has other retention settings than the store. The store takes them over."
    TimeToLiveOver "The run has ended, and its time to live is over. The AgentRun is deleted."
    RunEnded "The run has ended. An end is final."
    BudgetGranted "A person raised resetGeneration. The run gets a fresh recovery budget."
    DeadlinesChanged "The spec has other deadlines than the store. The store takes them over."
    LimitsChanged "The spec has other limits than the store. The store takes them over."
    ChargeTakenBack "The node of a charged attempt turned out to be lost. The charge is taken back."
    CancelRecorded "A person cancelled the run. The store records that, and the next answer tells its worker."
    SuspendRecorded "A person suspended the run. The store records that, and the next answer tells its worker."
    SuspendLifted "A person lifted the suspend. The store records that."
    RewindRequested "A person raised rewind.generation. The run goes back to that turn, or the refusal is recorded."
    TimeHasCome "The time of a wait has come, or its deadline has passed. The store settles that by its clock."
    PodFound "A pod of the reserved attempt exists. The store records it."
    CancelCompleted "The run is cancelled, and no worker has to acknowledge that any more. The run ends."
    RecoveryExhausted "The recovery budget is exhausted, and onExhausted is Fail. The run ends."
    TemplateRead "The next attempt may need the template that wrote the checkpoint. It is read first."
    ForkCopied "The run is a fork. State and records of the other run are copied before its first pod."
    Held "A person must act. The run gets no pod until then, or until the time that the hold names."
    Suspended "A person suspended the run. It gets no pod."
    Waiting "The run is parked on waits that are not answered. It gets no pod."
    BackingOff "The next attempt waits, so that a failure is not repeated at once."
    Queued "As many runs of the AgentDefinition run as its maxConcurrentRuns allows."
    SteppedBack "Attempts keep dying at one checkpoint. Before the last try the run goes back one turn."
    HeadVerified "Nobody has verified yet that the state at the checkpoint can be rebuilt. That is done first."
    HeadRewound "The state at the checkpoint cannot be rebuilt. The run goes back to the last good one."
    NameTaken "Another pod has the name of the attempt's pod. The next attempt takes the next name."
    PodCreated "Nothing holds the attempt back. Its pod is created."
    WaitUnattended "The worker has an open wait, and neither parks nor commits. The run is parked."
    AttemptEnded "The attempt has ended. It is fenced, and the next one is reserved."
    SuccessorReserved "The attempt has ended and was counted. The next one is reserved."
    NodeRecorded "The pod has a node. The store records it, and the deadline of the start begins."
    ImageRecorded "The image of the pod is known. The store records whether its version may resume the checkpoint."
    StartRecorded "The worker has started, of an agent that keeps its own checkpoints. The store records it."
    WorkerCompleted "The worker, whose agent keeps its own checkpoints, exited with 0. The run ends."
    WorkerStopped "The worker must stop, and its agent keeps its own checkpoints. Its pod is deleted; the attempt ends with it."
    Starting "The pod is on its way, and its worker has not attached."
    Running "A worker is attached, and nothing says that it has ended."
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}
