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
//! | a person's cancel is noted; a worker acknowledges it | `cancel-requested` (operator), with what is known of who asked and why ([`dalsegno_model::AskedBy`]); `cancelled` (worker) |
//! | a worker finishes, with or without a boundary | `finished` (worker) |
//! | a boundary plans calls | `planned` (worker), with each call that is new or of another turn before; before `finished` |
//! | a call is claimed, for the first time or by another attempt | `claimed` (worker) |
//! | a call is completed; its tool refuses it; its key | `completed`; `failed`; `key-refused` (worker) |
//! | a call is settled | `settled` (worker, or the person's name) |
//! | a budget is granted | `reset` (operator), with who asked and why |
//! | a run goes back | `ended` (operator) if its attempt had a pod; `rewound` (operator, or the person's name) with what is undone; then `reserved` (operator) |
//! | an AgentRun is deleted on purpose | `deleted` (operator), with why |
//! | the payloads of a run that is over are past their retention | `expired` (operator), before the first is dropped |
//! | a data key is deleted | `shredded` (the person's name) |
//! | payloads before the last boundaries that a run keeps are dropped | `dropped` (operator), with up to where, and the digest of the snapshot that stands for them |
//! | rows before one that an anchor names are pruned | `pruned` (the person's name), with why, the number and the hash of the last that went, and what they said of the run and of what was undone, and the number of the calls that no row is left to tell the beginning of, with a digest of their names |
//! | a namespace is adopted | `namespace-adopted` (the person's name), with why, for each row |
//!
//! Of the key, the arguments and the result of a call a row has digests, as [`CallDigests`](dalsegno_model::CallDigests) says: of the key and
//! the arguments that row with which the call is first there, of arguments also the claim that brings them later. So how each
//! call stands follows from the audit (`dalsegno_proof`).
//!
//! What changes nothing (a retry, a refusal other than `spent`) appends nothing.

pub use dalsegno_model::audit::{actor, first_needed, kind, tells_of_loss};
use dalsegno_model::{AuditRow, Digest, RunId};

use crate::fields::Framed;
use crate::header;

/// First field of every audit row's hash.
pub const TAG: &[u8] = b"dalsegno/audit/v1";

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

/// What a row `pruned` says of calls that no row is left to tell the beginning of. With `f(x)` as in [`crate::header`], of
/// their names in the order of their bytes: `SHA-256( f("dalsegno/call-names/v1") f(name, UTF-8) f(name, UTF-8) … )`.
pub fn names_digest<'a>(names: impl Iterator<Item = &'a str>) -> Digest {
    let mut hash = Framed::new(b"dalsegno/call-names/v1");
    names.for_each(|name| hash.field(name.as_bytes()));
    hash.finish()
}

/// Why nothing is pruned of a run whose calls are not those of its audit.
pub const OTHER_CALLS: &str =
    "of the calls that the audit tells of some are not there, or some are that nobody told of";

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
        let link = Link {
            parent_hash: &header::NO_PARENT,
            run: Uuid::nil(),
            seq: 1,
            at: 1_000,
            kind: kind::RESERVED,
            actor: actor::OPERATOR,
            detail: r#"{"attempt":1}"#,
        };
        assert_eq!(link.hash(), by_hand);
    }
}
