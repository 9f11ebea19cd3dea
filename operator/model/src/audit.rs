//! The words of the audit: who did what, and which rows are never pruned. `dalsegno_format::audit` says how rows are linked.

use crate::AuditRow;

/// Who did it, where it is not a person.
pub mod actor {
    /// The operator.
    pub const OPERATOR: &str = "operator";
    /// The worker of the current attempt.
    pub const WORKER: &str = "worker";
}

/// The kinds of rows.
pub mod kind {
    /// A run was taken up.
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
    /// Another process of the same attempt was refused.
    pub const SPENT: &str = "spent";
    /// An attempt was ended.
    pub const ENDED: &str = "ended";
    /// A person wants the run cancelled.
    pub const CANCEL_REQUESTED: &str = "cancel-requested";
    /// A worker acknowledged the cancel.
    pub const CANCELLED: &str = "cancelled";
    /// The run came to its end.
    pub const FINISHED: &str = "finished";
    /// A boundary planned calls.
    pub const PLANNED: &str = "planned";
    /// A call was claimed.
    pub const CLAIMED: &str = "claimed";
    /// A tool did what a call asks for.
    pub const COMPLETED: &str = "completed";
    /// A tool refused a call.
    pub const FAILED: &str = "failed";
    /// A tool refused the key of a call.
    pub const KEY_REFUSED: &str = "key-refused";
    /// Somebody said how a call had ended.
    pub const SETTLED: &str = "settled";
    /// A fresh recovery budget was granted.
    pub const RESET: &str = "reset";
    /// The run went back to an earlier boundary.
    pub const REWOUND: &str = "rewound";
    /// Another object of the same name took the run over.
    pub const ADOPTED: &str = "adopted";
    /// A later run of the same name was told to ignore it.
    pub const ABANDONED: &str = "abandoned";
    /// The AgentRun was deleted on purpose.
    pub const DELETED: &str = "deleted";
    /// What the run's worker wrote is being dropped: it is past its retention.
    pub const EXPIRED: &str = "expired";
    /// Payloads before the last boundaries that the run keeps were dropped.
    pub const DROPPED: &str = "dropped";
    /// The rows before, up to one that an anchor names, were pruned.
    pub const PRUNED: &str = "pruned";
    /// The run's namespace was re-created and taken over by hand.
    pub const NAMESPACE_ADOPTED: &str = "namespace-adopted";
}

/// Whether a row says of payloads that they were dropped or shredded.
pub fn tells_of_loss(row: &AuditRow) -> bool {
    [kind::EXPIRED, kind::SHREDDED, kind::DROPPED].contains(&&*row.kind)
}

/// Number of the first row that is never pruned: what it says of dropped or shredded payloads is said nowhere else. Of all
/// rows, or of those that [tell of it](tells_of_loss).
pub fn first_needed(rows: &[AuditRow]) -> i64 {
    let lost = rows.iter().find(|row| [kind::EXPIRED, kind::SHREDDED].contains(&&*row.kind));
    let dropped = rows.iter().rfind(|row| row.kind == kind::DROPPED);
    lost.into_iter().chain(dropped).map(|row| row.seq).min().unwrap_or(i64::MAX)
}
