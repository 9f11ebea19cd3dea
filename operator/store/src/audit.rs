//! The audit chain of a run: one row for each transition, each linked to the one before by its hash.
//!
//! Boundaries are not in it: a boundary's row is its own audit row ([`crate::header`]).
//!
//! # Format, version 1
//!
//! With `f(x)` as in [`crate::header`]:
//!
//! ```text
//! hash = SHA-256( f("dalsegno/audit/v1") f(parent hash, 32 bytes) f(run id, 16 bytes) f(seq, i64) f(at, i64)
//!                 f(kind, UTF-8) f(actor, UTF-8) f(detail, UTF-8, as stored) )
//! ```
//!
//! # What is appended, in this order
//!
//! | transition | rows (actor) |
//! |---|---|
//! | a run is taken up anew | `created` (operator), `reserved` (operator) |
//! | … and a prior run is ignored | in the prior run's chain: `abandoned` (operator) |
//! | a prior run is adopted | `adopted` (operator); then, unless it is finished, `ended` (operator) if its attempt was not, and `reserved` (operator) |
//! | an attempt is ended | `ended` (operator), then by what follows: `reserved` (operator), nothing, `finished` (operator) |
//! | a pod, an identity is recorded | `pod` (operator), `identity` (operator); both where they come together |
//! | a worker attaches; another instance is refused | `attached` (worker); `spent` (worker), once |
//! | a person's cancel is noted; a worker acknowledges it | `cancel-requested` (operator), with what is known of who asked and why ([`crate::AskedBy`]); `cancelled` (worker) |
//! | a worker finishes, with or without a boundary | `finished` (worker) |
//! | a tool refuses the key of a call | `key-refused` (worker) |
//! | a call is settled | `settled` (worker, or the person's name) |
//! | a budget is granted | `reset` (operator), with who asked and why |
//! | a run goes back | `ended` (operator) if its attempt had a pod; `rewound` (operator, or the person's name) with what is undone; then `reserved` (operator) |
//! | an AgentRun is deleted on purpose | `deleted` (operator), with why |
//! | the payloads of a run that is over are past their retention | `expired` (operator), before the first is dropped |
//! | a data key is deleted | `shredded` (the person's name) |
//! | payloads before the last boundaries that a run keeps are dropped | `dropped` (operator), with up to where, and the digest of the snapshot that stands for them |
//! | rows before one that an anchor names are pruned | `pruned` (the person's name), with why, the number and the hash of the last that went, and what they said of the run and of what was undone |
//! | a namespace is adopted | `namespace-adopted` (the person's name), with why, for each row |
//!
//! What changes nothing (a retry, a refusal other than `spent`) appends nothing.

use crate::header::{self, Framed};
use crate::{AuditRow, Digest, RunId};

/// First field of every audit row's hash.
pub const TAG: &[u8] = b"dalsegno/audit/v1";

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

/// What is hashed of an audit row.
#[derive(Clone, Copy, Debug)]
pub struct Link<'a> {
    /// Hash of the row before; [`crate::header::NO_PARENT`] for the first.
    pub parent_hash: &'a Digest,
    /// The run.
    pub run: RunId,
    /// 1, 2, 3 …
    pub seq: i64,
    /// When, in milliseconds since 1970.
    pub at: i64,
    /// What: one of [`kind`].
    pub kind: &'a str,
    /// Who.
    pub actor: &'a str,
    /// Details, as JSON text.
    pub detail: &'a str,
}

impl Link<'_> {
    /// The row's hash.
    pub fn hash(&self) -> Digest {
        let mut hash = Framed::new(TAG);
        hash.field(self.parent_hash);
        hash.field(self.run.as_bytes());
        hash.field(&self.seq.to_be_bytes());
        hash.field(&self.at.to_be_bytes());
        hash.field(self.kind.as_bytes());
        hash.field(self.actor.as_bytes());
        hash.field(self.detail.as_bytes());
        hash.finish()
    }
}

/// Up to which row a row says that those before it were pruned, and that row's hash.
pub fn pruned_to(row: &AuditRow) -> Option<(i64, Digest)> {
    #[derive(serde::Deserialize)]
    struct Detail {
        to: i64,
        hash: String,
    }
    if row.kind != kind::PRUNED {
        return None;
    }
    let Detail { to, hash } = serde_json::from_str(&row.detail).ok()?;
    Some((to, header::parse(&hash)?))
}

/// Number of the first row that is never pruned: what it says of dropped or shredded payloads is said nowhere else.
pub fn first_needed(rows: &[AuditRow]) -> i64 {
    let lost = rows.iter().find(|row| [kind::EXPIRED, kind::SHREDDED].contains(&&*row.kind));
    let dropped = rows.iter().rfind(|row| row.kind == kind::DROPPED);
    lost.into_iter().chain(dropped).map(|row| row.seq).min().unwrap_or(i64::MAX)
}

/// The first row of a run's chain that does not follow from the one before, if any. Rows before the first may be missing if
/// a row says that they were pruned.
pub fn first_break(run: RunId, rows: &[AuditRow]) -> Option<i64> {
    let before = rows.first().map(|row| (row.seq.saturating_sub(1), row.parent_hash));
    let pruned = before.filter(|before| rows.iter().any(|row| pruned_to(row) == Some(*before)));
    let (start, mut parent) = pruned.unwrap_or((0, header::NO_PARENT));
    for (row, seq) in rows.iter().zip(start + 1..) {
        let link = Link {
            parent_hash: &parent,
            run,
            seq,
            at: row.at.as_millisecond(),
            kind: &row.kind,
            actor: &row.actor,
            detail: &row.detail,
        };
        if row.seq != seq || row.parent_hash != parent || row.hash != link.hash() {
            return Some(seq);
        }
        parent = row.hash;
    }
    None
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use sha2::{Digest as _, Sha256};
    use uuid::Uuid;

    use super::*;

    fn chain() -> Vec<AuditRow> {
        let mut parent_hash = crate::header::NO_PARENT;
        (1..=3)
            .map(|seq| {
                let row = AuditRow {
                    seq,
                    at: Timestamp::from_millisecond(1_000 * seq).unwrap(),
                    kind: kind::RESERVED.into(),
                    actor: actor::OPERATOR.into(),
                    detail: format!(r#"{{"attempt":{seq}}}"#),
                    parent_hash,
                    hash: Link {
                        parent_hash: &parent_hash,
                        run: Uuid::nil(),
                        seq,
                        at: 1_000 * seq,
                        kind: kind::RESERVED,
                        actor: actor::OPERATOR,
                        detail: &format!(r#"{{"attempt":{seq}}}"#),
                    }
                    .hash(),
                };
                parent_hash = row.hash;
                row
            })
            .collect()
    }

    #[test]
    fn audit_hash_is_sha256_over_the_documented_bytes() {
        let mut bytes = Vec::new();
        for field in [
            b"dalsegno/audit/v1".as_slice(),
            &[0; 32],
            &[0; 16],
            &[0, 0, 0, 0, 0, 0, 0, 1],
            &1_000_i64.to_be_bytes(),
            b"reserved",
            b"operator",
            br#"{"attempt":1}"#,
        ] {
            bytes.extend((field.len() as u32).to_be_bytes());
            bytes.extend(field);
        }
        let by_hand: Digest = Sha256::digest(&bytes).into();
        assert_eq!(chain()[0].hash, by_hand);
    }

    #[test]
    fn an_edited_deleted_or_reordered_row_breaks_the_chain() {
        assert_eq!(first_break(Uuid::nil(), &chain()), None);
        let mut edited = chain();
        edited[1].detail = "{}".into();
        assert_eq!(first_break(Uuid::nil(), &edited), Some(2));
        let mut deleted = chain();
        deleted.remove(1);
        assert_eq!(first_break(Uuid::nil(), &deleted), Some(2));
        let mut reordered = chain();
        reordered.swap(0, 1);
        assert_eq!(first_break(Uuid::nil(), &reordered), Some(1));
        assert_eq!(first_break(Uuid::max(), &chain()), Some(1), "another run's chain");
    }
}
