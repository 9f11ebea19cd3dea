//! What is observed of the approvals of a run, and what may be done about them.

use std::collections::BTreeMap;

use dalsegno_crds::{AgentApproval, ApprovalReason, Verdict};
use dalsegno_model::{OpenWait, RunId, RunRecord, WaitAnswer};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;

use super::four_eyes::FourEyes;

/// What is observed of the approvals of a run.
#[derive(Clone, Debug)]
pub struct ObservedApprovals {
    /// Every AgentApproval that names the run by its UID, but those of `over`.
    pub objects: Vec<ObservedApproval>,
    /// What the cache keeps of AgentApprovals that are over.
    pub over: Vec<OverApproval>,
    /// Whether there are AgentApprovals at all. If not, as on a laptop, people decide in the store.
    pub are_objects: bool,
    /// Whether the admission policies are in place.
    pub policies: PolicyState,
    /// Whether the policies were looked at during this reconcile.
    pub policies_live: bool,
    /// Who must not decide alone, if it was read.
    pub four_eyes: Option<FourEyes>,
    /// The waits that were read from the store. `None`: the run never had it.
    pub waits: BTreeMap<WaitKey, Option<KnownWait>>,
    /// The API server's last error of this reconcile. Nothing more is tried in it.
    pub failed: Option<String>,
}

impl ObservedApprovals {
    /// What the caches know at the beginning of a reconcile.
    pub fn cached(objects: Vec<ObservedApproval>, policies: PolicyState) -> Self {
        let waits = BTreeMap::new();
        Self {
            objects,
            over: Vec::new(),
            are_objects: true,
            policies,
            policies_live: false,
            four_eyes: None,
            waits,
            failed: None,
        }
    }

    /// Where there are no AgentApprovals, as on a laptop.
    pub fn without_objects() -> Self {
        let policies = PolicyState::Missing("there is no API server".to_owned());
        Self { are_objects: false, ..Self::cached(Vec::new(), policies) }
    }

    /// Forgets what was read of waits that this row does not show as open: they may have been closed since.
    pub(crate) fn forget_closed(&mut self, row: &RunRecord) {
        self.waits.retain(|key, _| row.waits.iter().any(|it| WaitKey::of(it) == *key));
    }

    /// Replaces what is known of an object by what a request of this reconcile has returned. `at`: a time of the store's
    /// clock before the request.
    pub(crate) fn replace(&mut self, name: &str, object: Option<AgentApproval>, at: Option<Timestamp>) {
        self.objects.retain(|it| it.name() != name);
        self.over.retain(|it| it.name != name);
        let live = |object| ObservedApproval { live_at: at, ..ObservedApproval::cached(object) };
        self.objects.extend(object.map(live));
    }
}

/// An AgentApproval that is over: what is needed to delete it, once newer ones are over too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OverApproval {
    /// Name of the object.
    pub name: String,
    /// UID of the object.
    pub uid: String,
    /// When it was created, by the API server's clock.
    pub created: Option<Timestamp>,
    /// Whether it is being deleted.
    pub is_being_deleted: bool,
}

impl OverApproval {
    /// What is needed of this object.
    pub fn of(seen: &ObservedApproval) -> Self {
        let metadata = &seen.object.metadata;
        Self {
            name: seen.name().to_owned(),
            uid: seen.uid().to_owned(),
            created: metadata.creation_timestamp.as_ref().map(|it| it.0),
            is_being_deleted: metadata.deletion_timestamp.is_some(),
        }
    }
}

/// An AgentApproval as it was last seen.
#[derive(Clone, Debug)]
pub struct ObservedApproval {
    /// The object.
    pub object: AgentApproval,
    /// Since when nothing it shows can be older, by the store's clock: the object was read from the API server after that.
    /// `None`: it is from the cache, and may be older.
    pub live_at: Option<Timestamp>,
}

impl ObservedApproval {
    /// An object as the watch has shown it.
    pub fn cached(object: AgentApproval) -> Self {
        Self { object, live_at: None }
    }

    /// Name of the object.
    pub fn name(&self) -> &str {
        self.object.metadata.name.as_deref().unwrap_or_default()
    }

    /// UID of the object.
    pub fn uid(&self) -> &str {
        self.object.metadata.uid.as_deref().unwrap_or_default()
    }

    /// Which wait of the run it is about.
    pub fn wait(&self) -> WaitKey {
        WaitKey { id: self.object.spec.wait_id.clone(), epoch: self.object.spec.epoch }
    }

    /// When the decision that counts was written, by the API server's clock.
    pub(super) fn decided_at(&self) -> Option<Timestamp> {
        let spec = &self.object.spec;
        let field = match (&spec.decision, &spec.second_decision) {
            (None, _) => return None,
            (Some(_), None) => "/f:spec/f:decision",
            (Some(_), Some(_)) => "/f:spec/f:secondDecision",
        };
        let owns = |it: &&ManagedFieldsEntry| {
            it.fields_v1.as_ref().is_some_and(|fields| fields.0.pointer(field).is_some())
        };
        let entries = self.object.metadata.managed_fields.as_deref().unwrap_or_default();
        entries.iter().filter(owns).filter_map(|it| it.time.as_ref()).map(|it| it.0).max()
    }
}

/// Whether the chart's admission policies are in place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PolicyState {
    /// They are as the chart has them, and have been since this time.
    InPlace {
        /// When the last of them was created or changed, by the API server's clock.
        since: Timestamp,
    },
    /// One is missing or was changed, or it is not known. Holds which one.
    Missing(String),
}

/// The key of a wait within its run.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct WaitKey {
    /// The worker's id of the wait.
    pub id: String,
    /// The epoch it was opened under.
    pub epoch: i64,
}

impl WaitKey {
    /// The key of an open wait.
    pub fn of(wait: &OpenWait) -> Self {
        Self { id: wait.id.clone(), epoch: wait.epoch }
    }
}

/// What the store knows of a wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownWait {
    /// What the agent calls its proposal, and what it says about it. `None`: they were deleted.
    pub words: Option<(String, String)>,
    /// How it ended. `None`: it is open.
    pub closed: Option<ClosedWait>,
}

/// How a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClosedWait {
    /// By a decision.
    Decided(Verdict),
    /// Nobody decided in time.
    TimedOut,
    /// The run does not wait any more.
    Withdrawn,
}

/// Which decision of an approval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhichDecision {
    /// The first one, and with it the second.
    First,
    /// The second one only.
    Second,
}

/// One change for an approval, or a read. It is safe to repeat.
#[derive(Clone, Debug)]
pub enum ApprovalEffect {
    /// Read a wait of the store, open or not. Changes nothing.
    ReadWait(RunId, WaitKey),
    /// Read an AgentApproval from the API server. Changes nothing.
    ReadApproval(String),
    /// Find out whether the admission policies are in place. Changes nothing.
    ReadPolicies,
    /// Find out who must not decide alone. Changes nothing.
    ReadFourEyes {
        /// Id of the run.
        run: RunId,
        /// Since when the stamps prove who made a change.
        since: Timestamp,
    },
    /// Create an AgentApproval.
    Create(Box<AgentApproval>),
    /// Delete an AgentApproval, if it still has this UID.
    Delete {
        /// Its name.
        name: String,
        /// Its UID.
        uid: String,
    },
    /// Write the status of an AgentApproval, if it has not changed since it was read.
    WriteStatus(Box<AgentApproval>),
    /// Remove a decision that does not count, if the AgentApproval has not changed since it was read.
    RefuseDecision {
        /// Id of the run.
        run: RunId,
        /// The AgentApproval.
        approval: Box<AgentApproval>,
        /// Which decision.
        which: WhichDecision,
        /// Why.
        reason: ApprovalReason,
    },
    /// Give the run the answer.
    AnswerWait(RunId, Box<WaitAnswer>),
    /// Do what the approval asks for, since nobody decided in time.
    TimeOutWait(RunId, WaitKey),
}

impl ApprovalEffect {
    /// Name of the effect for logs, metrics and crash tests.
    pub fn name(&self) -> &'static str {
        match self {
            Self::ReadWait(..) => "read-wait",
            Self::ReadApproval(_) => "read-approval",
            Self::ReadPolicies => "read-policies",
            Self::ReadFourEyes { .. } => "read-four-eyes",
            Self::Create(_) => "create-approval",
            Self::Delete { .. } => "delete-approval",
            Self::WriteStatus(_) => "approval-status",
            Self::RefuseDecision { .. } => "refuse-decision",
            Self::AnswerWait(..) => "answer-wait",
            Self::TimeOutWait(..) => "time-out-wait",
        }
    }
}
