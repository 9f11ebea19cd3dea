//! The audit chain of a run: one row per transition, linked to the row before by a hash.
//!
//! Boundaries have no rows here, because a boundary's own row serves as its audit row ([`crate::header`]).
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
//! # Rows of each transition, in this order
//!
//! The actor is the operator, unless another one is named.
//!
//! - A run is created: `created`, `reserved`. If a prior run is ignored, that run's chain gets `abandoned`.
//! - A prior run is adopted: `adopted`. Unless the run is finished: `ended` if its attempt was not ended, and
//!   `reserved`.
//! - An attempt ends: `ended`; then, depending on what follows, `reserved`, nothing, or `finished`.
//! - A pod or an identity is recorded: `pod` or `identity`; both if they are recorded together.
//! - A worker attaches: `attached` (worker). Another instance is refused: `spent` (worker), once.
//! - A cancel is requested: `cancel-requested`, with what is known about who requested it and why
//!   ([`dalsegno_model::RequestedBy`]). A worker acknowledges it: `cancelled` (worker).
//! - A worker finishes the run, with or without a boundary: `finished` (worker).
//! - A boundary plans calls: `planned` (worker), with each call that is new or was of another turn before; it comes
//!   before `finished`.
//! - A call is claimed for the first time, or by another attempt: `claimed` (worker).
//! - A call is completed: `completed` (worker). Its tool fails: `failed` (worker). Its tool rejects the key:
//!   `key-refused` (worker).
//! - A call is settled: `settled` (worker, or the person's name).
//! - A message is sent: `message-sent` (its author), with its position and its digest ([`crate::messages`]). A boundary
//!   takes messages: `messages-taken` (worker), with their positions, after the boundary's other rows.
//! - A budget is granted: `reset`, with who requested it and why.
//! - A run is rewound: `ended` if its attempt had a pod; `rewound` (operator, or the person's name) with what is
//!   undone; then `reserved`.
//! - An AgentRun is deleted on purpose: `deleted`, with the reason.
//! - Payloads of a run that is over are past their retention: `expired`, before the first payload is deleted.
//! - A data key is deleted: `shredded` (the person's name).
//! - Payloads before the last boundaries that a run keeps are dropped: `dropped`, with the last dropped boundary, and
//!   the digest of the snapshot that replaces the payloads.
//! - Rows before one that an anchor names are pruned: `pruned` (the person's name), with the reason, the number and
//!   hash of the last pruned row, and what the pruned rows said about the run and about undone boundaries. For calls
//!   whose beginning is in no remaining row, it has their number and a digest of their ids.
//! - A run is being deleted from the store: `purged` (operator, or the person's name), with the reason and what the run
//!   was. It is the last row of the run, and is kept when all others are deleted.
//! - A namespace is adopted: `namespace-adopted` (the person's name), with the reason; one row per run.
//!
//! Rows contain digests of a call's key, arguments and result, as defined by
//! [`CallDigests`](dalsegno_model::CallDigests). The row in which the call first appears has those of the key and the
//! arguments; a claim that brings the arguments later has theirs. So the state of each call follows from the audit
//! (`dalsegno_proof`).
//!
//! A request that changes nothing (a retry, or a refusal other than `spent`) appends no row.

pub use dalsegno_model::audit::{actor, first_needed, kind, records_payload_loss};
use dalsegno_model::{AuditRow, Digest, RunId};

use crate::fields::FramedHasher;
use crate::header;

/// First field of every audit row's hash.
pub const TAG: &[u8] = b"dalsegno/audit/v1";

/// The hashed fields of an audit row.
#[derive(Clone, Copy, Debug)]
pub struct AuditHeader<'a> {
    /// Hash of the row before; [`crate::header::NO_PARENT`] for the first.
    pub parent_hash: &'a Digest,
    /// The run.
    pub run: RunId,
    /// 1, 2, 3 …
    pub seq: i64,
    /// When, in milliseconds since 1970.
    pub at: i64,
    /// The kind of transition: one of [`kind`].
    pub kind: &'a str,
    /// The actor.
    pub actor: &'a str,
    /// Details, as JSON text.
    pub detail: &'a str,
}

impl AuditHeader<'_> {
    /// The row's hash.
    pub fn hash(&self) -> Digest {
        let mut hash = FramedHasher::new(TAG);
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

/// Number and hash of the last pruned row, if this row records a prune.
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

/// The digest of call ids that a row `pruned` contains, for calls whose beginning is in no remaining row. With `f(x)`
/// as in [`crate::header`], over the ids in byte order:
///
/// ```text
/// SHA-256( f("dalsegno/call-names/v1") f(id, UTF-8) f(id, UTF-8) … )
/// ```
pub fn names_digest<'a>(names: impl Iterator<Item = &'a str>) -> Digest {
    let mut hash = FramedHasher::new(b"dalsegno/call-names/v1");
    names.for_each(|name| hash.field(name.as_bytes()));
    hash.finish()
}

/// Why a run is not pruned if its calls are not those of its audit.
pub const CALLS_MISMATCH: &str = "calls of the audit are missing, or there are calls that no row records";

#[cfg(test)]
mod tests {
    use sha2::{Digest as _, Sha256};
    use uuid::Uuid;

    use super::*;

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
        let header = AuditHeader {
            parent_hash: &header::NO_PARENT,
            run: Uuid::nil(),
            seq: 1,
            at: 1_000,
            kind: kind::RESERVED,
            actor: actor::OPERATOR,
            detail: r#"{"attempt":1}"#,
        };
        assert_eq!(header.hash(), by_hand);
    }
}
