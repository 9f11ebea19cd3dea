//! The header of a boundary and its hash. The hash links a run's boundaries into a tamper-evident chain.
//!
//! # Format, version 1
//!
//! With `f(x)` = length of `x` as a big-endian u32, then `x`, and all integers big-endian:
//!
//! ```text
//! content_hash = SHA-256(
//!     f("dalsegno/boundary/v1")
//!     f(parent hash, 32 bytes)      zeroes for a run's first boundary
//!     f(run id, 16 bytes)
//!     f(turn, i32)
//!     f(boundary, 1 byte)           1 plan, 2 result
//!     f(epoch, i64)
//!     f(attempt, i32)
//!     f(at, i64)                    milliseconds since 1970, the store's clock
//!     f(position, i64)              events committed up to and with this boundary
//!     f(commit id, 16 bytes)
//!     f(body digest, 32 bytes)      SHA-256 of the body as it came
//!     f(ops digest)                 SHA-256 of the channel operations as text; empty if there are none
//!     f(full, 1 byte)               1 if they are the full state, else 0
//!     f(events digest)              SHA-256 of f(event) of each event; empty if there are none
//!     f(tokens in, i64) f(tokens out, i64) f(tool calls, i64) f(cost, i64)
//!     f(trigger, UTF-8)             empty if none
//!     f(records digest)             of the changes of records since the boundary before (records.rs); empty if none
//! )
//! ```
//!
//! # Format, version 2
//!
//! Only the first boundary of a fork has it. The tag is `dalsegno/boundary/v2`, the parent hash is zeroes, and these
//! fields follow:
//!
//! ```text
//!     f(id of the run that was forked, 16 bytes)
//!     f(turn of that run after which the fork begins, i32)
//!     f(content hash of the result of that turn, 32 bytes)
//! ```
//!
//! Payloads are included by their digests only, so the chain can still be verified after payloads were dropped. If
//! payloads are sealed, the digests of body, operations, events and records are keyed with a key of their run
//! ([`crate::seal`]). The format of the chain does not change, and no key is needed to verify it.

use dalsegno_model::{Digest, ForkedFrom, RunId};
pub use dalsegno_model::{boundary_number, boundary_of};
use dalsegno_protocol::{Boundary, RawValue, Usage};
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use crate::fields::FramedHasher;

/// First field of every boundary's hash.
pub const TAG: &[u8] = b"dalsegno/boundary/v1";

/// First field of the hash of a fork's first boundary.
pub const FORK_TAG: &[u8] = b"dalsegno/boundary/v2";

/// The parent hash of a chain's first link.
pub const NO_PARENT: Digest = [0; 32];

/// The hashed fields of a boundary.
#[derive(Clone, Debug)]
pub struct Header<'a> {
    /// Hash of the boundary before; [`NO_PARENT`] for the first.
    pub parent_hash: Digest,
    /// The run.
    pub run: RunId,
    /// Number of the turn.
    pub turn: i32,
    /// Which boundary of it.
    pub boundary: Boundary,
    /// The epoch it was committed under.
    pub epoch: i64,
    /// The attempt that committed it.
    pub attempt: i32,
    /// When, in milliseconds since 1970.
    pub at: i64,
    /// Total number of events up to and including this boundary.
    pub position: i64,
    /// The worker's id of the commit.
    pub commit_id: Uuid,
    /// SHA-256 of the body as it came.
    pub digest: Digest,
    /// [`ops_digest`]; `None` if the state does not change.
    pub ops_digest: Option<Digest>,
    /// Whether the operations are the full state.
    pub full: bool,
    /// [`events_digest`]; `None` if there are no events.
    pub events_digest: Option<Digest>,
    /// The usage of this boundary.
    pub usage: Usage,
    /// Why the worker committed it.
    pub trigger: Option<&'a str>,
    /// Digest of the changes of records since the boundary before, see `records.rs`; `None` if there are none.
    pub records_digest: Option<Digest>,
    /// The boundary of another run after which a fork begins.
    pub forked_from: Option<ForkedFrom>,
}

impl Header<'_> {
    /// The boundary's content hash.
    pub fn content_hash(&self) -> Digest {
        let mut hash = FramedHasher::new(if self.forked_from.is_some() { FORK_TAG } else { TAG });
        hash.field(&self.parent_hash);
        hash.field(self.run.as_bytes());
        hash.field(&self.turn.to_be_bytes());
        hash.field(&[boundary_number(self.boundary)]);
        hash.field(&self.epoch.to_be_bytes());
        hash.field(&self.attempt.to_be_bytes());
        hash.field(&self.at.to_be_bytes());
        hash.field(&self.position.to_be_bytes());
        hash.field(self.commit_id.as_bytes());
        hash.field(&self.digest);
        hash.field(optional(&self.ops_digest));
        hash.field(&[u8::from(self.full)]);
        hash.field(optional(&self.events_digest));
        hash.field(&self.usage.tokens_in.to_be_bytes());
        hash.field(&self.usage.tokens_out.to_be_bytes());
        hash.field(&self.usage.tool_calls.to_be_bytes());
        hash.field(&self.usage.cost_micro_usd.to_be_bytes());
        hash.field(self.trigger.unwrap_or_default().as_bytes());
        hash.field(optional(&self.records_digest));
        if let Some(ForkedFrom { run, turn, content_hash }) = &self.forked_from {
            hash.field(run.as_bytes());
            hash.field(&turn.to_be_bytes());
            hash.field(content_hash);
        }
        hash.finish()
    }
}

/// Digest of a boundary's channel operations: SHA-256 of their text, uncompressed.
pub fn ops_digest(ops: Option<&[u8]>) -> Option<Digest> {
    ops.map(sha256)
}

/// Digest of a boundary's events: SHA-256 over `f(event)` of each, in order.
pub fn events_digest(events: &[Box<RawValue>]) -> Option<Digest> {
    if events.is_empty() {
        return None;
    }
    let mut hash = FramedHasher::bare();
    for event in events {
        hash.field(event.get().as_bytes());
    }
    Some(hash.finish())
}

/// A content hash as people and workers see it: `sha256:` and 64 hexadecimal digits.
pub fn render(hash: &[u8]) -> String {
    use std::fmt::Write as _;
    hash.iter().fold(String::from("sha256:"), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Parses a content hash in this form; `None` for any other text.
pub fn parse(text: &str) -> Option<Digest> {
    let digits = text.strip_prefix("sha256:")?.as_bytes();
    let (pairs, []) = digits.as_chunks::<2>() else { return None };
    let bytes: Option<Vec<u8>> =
        pairs.iter().map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect();
    let hash: Digest = bytes?.try_into().ok()?;
    (render(&hash) == text).then_some(hash)
}

/// SHA-256 of these bytes.
pub fn sha256(bytes: &[u8]) -> Digest {
    Sha256::digest(bytes).into()
}

fn optional(digest: &Option<Digest>) -> &[u8] {
    digest.as_ref().map_or(&[], |digest| digest.as_slice())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header<'static> {
        Header {
            parent_hash: NO_PARENT,
            run: Uuid::from_u128(0x0198_0000_0000_7000_8000_0000_0000_0001),
            turn: 1,
            boundary: Boundary::Result,
            epoch: 1,
            attempt: 1,
            at: 1_800_000_000_000,
            position: 2,
            commit_id: Uuid::from_u128(7),
            digest: [9; 32],
            ops_digest: ops_digest(Some(br#"{"full":true}"#)),
            full: true,
            events_digest: events_digest(&[
                RawValue::from_string("1".into()).unwrap(),
                RawValue::from_string("\"two\"".into()).unwrap(),
            ]),
            usage: Usage { tokens_in: 1, tokens_out: 2, tool_calls: 3, cost_micro_usd: 4 },
            trigger: Some("TASK_END"),
            records_digest: None,
            forked_from: None,
        }
    }

    fn base() -> Header<'static> {
        let run = Uuid::from_u128(0x0198_0000_0000_7000_8000_0000_0000_0002);
        Header { forked_from: Some(ForkedFrom { run, turn: 3, content_hash: [5; 32] }), ..header() }
    }

    #[test]
    fn the_hash_of_a_fork_says_what_was_forked() {
        let changed = |change: fn(&mut ForkedFrom)| {
            let mut header = base();
            change(header.forked_from.as_mut().unwrap());
            header.content_hash()
        };
        let hashes = [
            header().content_hash(),
            base().content_hash(),
            changed(|from| from.run = Uuid::nil()),
            changed(|from| from.turn = 4),
            changed(|from| from.content_hash = [6; 32]),
        ];
        for (index, hash) in hashes.iter().enumerate() {
            assert!(!hashes[index + 1..].contains(hash), "{index}");
        }
        assert_eq!(
            render(&base().content_hash()),
            "sha256:fa2a7f6bfe3668932e925b2a70ac80162db323503259dc00a5131d7bc501e80c",
            "the golden hash of version 2"
        );
    }

    /// The bytes by hand, so that a change of the format cannot go unseen.
    #[test]
    fn content_hash_is_sha256_over_the_documented_bytes() {
        let mut bytes = Vec::new();
        let mut f = |field: &[u8]| {
            bytes.extend((field.len() as u32).to_be_bytes());
            bytes.extend(field);
        };
        f(b"dalsegno/boundary/v1");
        f(&[0; 32]);
        f(&[0x01, 0x98, 0, 0, 0, 0, 0x70, 0, 0x80, 0, 0, 0, 0, 0, 0, 1]);
        f(&[0, 0, 0, 1]);
        f(&[2]);
        f(&[0, 0, 0, 0, 0, 0, 0, 1]);
        f(&[0, 0, 0, 1]);
        f(&1_800_000_000_000_i64.to_be_bytes());
        f(&[0, 0, 0, 0, 0, 0, 0, 2]);
        f(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7]);
        f(&[9; 32]);
        f(&Sha256::digest(br#"{"full":true}"#));
        f(&[1]);
        f(&Sha256::digest(b"\0\0\0\x011\0\0\0\x05\"two\""));
        for amount in 1..=4_i64 {
            f(&amount.to_be_bytes());
        }
        f(b"TASK_END");
        f(b"");
        let by_hand: Digest = Sha256::digest(&bytes).into();
        assert_eq!(header().content_hash(), by_hand);
        assert_eq!(
            render(&by_hand),
            "sha256:b6b50812a77a2fb52076b525d66e22d6223425d39254e46a249db3487bbe4d92",
            "the golden hash of version 1"
        );
    }

    #[test]
    fn every_field_enters_the_hash() {
        let plain = header().content_hash();
        let changes: Vec<Header<'static>> = vec![
            Header { parent_hash: [1; 32], ..header() },
            Header { run: Uuid::nil(), ..header() },
            Header { turn: 2, ..header() },
            Header { boundary: Boundary::Plan, ..header() },
            Header { epoch: 2, ..header() },
            Header { attempt: 2, ..header() },
            Header { at: 0, ..header() },
            Header { position: 3, ..header() },
            Header { commit_id: Uuid::nil(), ..header() },
            Header { digest: [0; 32], ..header() },
            Header { ops_digest: None, ..header() },
            Header { full: false, ..header() },
            Header { events_digest: None, ..header() },
            Header { usage: Usage::default(), ..header() },
            Header { trigger: None, ..header() },
            Header { records_digest: Some([0; 32]), ..header() },
        ];
        for changed in changes {
            assert_ne!(changed.content_hash(), plain, "{changed:?}");
        }
    }
}
