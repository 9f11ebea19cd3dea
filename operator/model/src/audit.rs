//! Constants of the audit: its actors, its kinds of rows, and which rows are never pruned. `dalsegno_format::audit`
//! defines how rows are linked.

use crate::AuditRow;

/// Actors that are not people.
pub mod actor {
    /// The operator.
    pub const OPERATOR: &str = "operator";
    /// The worker of the current attempt.
    pub const WORKER: &str = "worker";
}

/// Kinds of audit rows.
pub mod kind {
    /// A run was created.
    pub const CREATED: &str = "created";
    /// An attempt was reserved.
    pub const RESERVED: &str = "reserved";
    /// An attempt's pod was recorded.
    pub const POD: &str = "pod";
    /// The identity of an attempt's image, and the verdict on it, were recorded.
    pub const IDENTITY: &str = "identity";
    /// The data key of a run was deleted.
    pub const SHREDDED: &str = "shredded";
    /// A worker attached.
    pub const ATTACHED: &str = "attached";
    /// The worker of an agent with checkpoints of its own started.
    pub const STARTED: &str = "started";
    /// Another process of the same attempt was refused.
    pub const SPENT: &str = "spent";
    /// An attempt was ended.
    pub const ENDED: &str = "ended";
    /// The charge of an attempt that had ended was taken back.
    pub const FORGIVEN: &str = "forgiven";
    /// A person requested that the run be cancelled.
    pub const CANCEL_REQUESTED: &str = "cancel-requested";
    /// A worker acknowledged the cancel.
    pub const CANCELLED: &str = "cancelled";
    /// A person suspended the run.
    pub const SUSPENDED: &str = "suspended";
    /// A person lifted the suspend.
    pub const RESUMED: &str = "resumed";
    /// A worker opened a wait.
    pub const WAIT_OPENED: &str = "waitOpened";
    /// A run parked on waits.
    pub const PARKED: &str = "parked";
    /// A wait was answered.
    pub const WAIT_ANSWERED: &str = "waitAnswered";
    /// A decision on an approval did not count.
    pub const DECISION_REFUSED: &str = "decisionRefused";
    /// A call used an approval.
    pub const APPROVAL_USED: &str = "approvalUsed";
    /// A claim named an approval that does not allow its call.
    pub const APPROVAL_REFUSED: &str = "approvalRefused";
    /// Open waits were withdrawn, because the run ended.
    pub const WAIT_WITHDRAWN: &str = "waitWithdrawn";
    /// The deadline of a wait passed.
    pub const WAIT_TIMED_OUT: &str = "waitTimedOut";
    /// The run ended.
    pub const FINISHED: &str = "finished";
    /// A boundary planned calls.
    pub const PLANNED: &str = "planned";
    /// A call was claimed.
    pub const CLAIMED: &str = "claimed";
    /// The tool of a call succeeded.
    pub const COMPLETED: &str = "completed";
    /// The tool of a call failed and changed nothing.
    pub const FAILED: &str = "failed";
    /// The tool of a call rejected its idempotency key.
    pub const KEY_REFUSED: &str = "key-refused";
    /// The outcome of a call was settled by hand or by the worker's probe.
    pub const SETTLED: &str = "settled";
    /// A person sent a message to the run.
    pub const MESSAGE_SENT: &str = "message-sent";
    /// A boundary took messages.
    pub const MESSAGES_TAKEN: &str = "messages-taken";
    /// A fresh recovery budget was granted.
    pub const RESET: &str = "reset";
    /// The run was rewound to an earlier boundary.
    pub const REWOUND: &str = "rewound";
    /// A requested rewind was refused.
    pub const REWIND_REFUSED: &str = "rewind-refused";
    /// The run began as a fork of another run.
    pub const FORKED: &str = "forked";
    /// Another object of the same name adopted the run.
    pub const ADOPTED: &str = "adopted";
    /// A later run of the same name was created with the instruction to ignore this run.
    pub const ABANDONED: &str = "abandoned";
    /// The AgentRun was deleted on purpose.
    pub const DELETED: &str = "deleted";
    /// The run is past its retention, and the payloads that its worker wrote are being deleted.
    pub const EXPIRED: &str = "expired";
    /// Payloads of older boundaries, before the last ones that the run keeps, were deleted.
    pub const DROPPED: &str = "dropped";
    /// Earlier rows were pruned, up to one that an anchor names.
    pub const PRUNED: &str = "pruned";
    /// The run is being deleted from the store.
    pub const PURGED: &str = "purged";
    /// The run's namespace was re-created, and the run was adopted by hand.
    pub const NAMESPACE_ADOPTED: &str = "namespace-adopted";
}

/// A request to give the runs of a namespace that was deleted to the namespace that replaced it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceAdoption {
    /// UID of the namespace that the runs belong to now.
    pub from: String,
    /// UID of the namespace that they will belong to.
    pub to: String,
    /// Who requested it, for the audit.
    pub actor: String,
    /// Why, for the audit.
    pub reason: String,
}

/// A request for a fresh recovery budget, a compare-and-set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BudgetReset {
    /// The generation that the caller has observed. If the run has another one, nothing is reset.
    pub observed: i64,
    /// The generation that was requested.
    pub to: i64,
    /// Who requested it, for the audit.
    pub requested_by: RequestedBy,
}

/// Who requested a transition that the operator carries out, and why, as far as it is known. It is stored in the
/// detail of the audit row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestedBy {
    /// The field manager of the client that wrote the request.
    pub manager: Option<String>,
    /// The user who wrote the request, if a stamp proves it.
    pub user: Option<String>,
    /// The reason that was written with the request.
    pub reason: Option<String>,
}

impl RequestedBy {
    /// Adds what is known to the detail of an audit row.
    pub fn in_detail(self, mut detail: serde_json::Value) -> serde_json::Value {
        if self.manager.is_some() && self.user.is_none() {
            detail["proven"] = false.into();
        }
        for (name, known) in [("manager", self.manager), ("user", self.user), ("reason", self.reason)] {
            if let Some(known) = known {
                detail[name] = known.into();
            }
        }
        detail
    }
}

/// Whether a row records that payloads were dropped or shredded.
pub fn records_payload_loss(row: &AuditRow) -> bool {
    [kind::EXPIRED, kind::SHREDDED, kind::DROPPED].contains(&&*row.kind)
}

/// Number of the first row that must never be pruned, because no other row records which payloads were dropped or
/// shredded. `rows` may be all rows, or only those that [record a loss](tells_of_loss).
pub fn first_needed(rows: &[AuditRow]) -> i64 {
    let lost = rows.iter().find(|row| [kind::EXPIRED, kind::SHREDDED].contains(&&*row.kind));
    let dropped = rows.iter().rfind(|row| row.kind == kind::DROPPED);
    lost.into_iter().chain(dropped).map(|row| row.seq).min().unwrap_or(i64::MAX)
}
