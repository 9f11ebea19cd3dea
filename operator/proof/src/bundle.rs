//! A bundle: a run as a file that can be verified on its own. `dalsegno export` writes it, and `dalsegno verify FILE`
//! reads it.
//!
//! # Format, version 3
//!
//! JSON lines, each `{"KIND": {…}}` and a line feed, in this order: one `bundle`, every `boundary` (by turn, boundary
//! and epoch; undone ones too), every `call`, every `wait` (undone ones too), every `message`, every `recordBatch`
//! (undone ones too), every `record` that a key holds, every `audit` row, one `end`.
//! `docs/schemas/bundle-v3.schema.json` defines the fields. Payloads are strings with the exact text that was
//! committed, so that their digests can be computed.
//!
//! `end.sha256` is the SHA-256 of all bytes before the line of `end`. `end.signature` is the Ed25519 signature, with
//! the key `bundle.publicKey`, of the 32 bytes `SHA-256( f("dalsegno/bundle/v1") f(end.sha256, 32 bytes) )`, with
//! `f(x)` as in [`dalsegno_format::header`]. The line of `end` has no spaces, and its fields are in the schema's
//! order.
//!
//! The first boundary of a fork has `forkedFrom`, and the full state.
//!
//! If the run has a data key, the digests of records are keyed with a key of the whole run, which a bundle does not
//! reveal: it would let a reader test guesses of what the run writes later. Then only the signature proves the values
//! of records, and the batches prove which records there are.
//!
//! Version 2 has no waits, no messages and no records. In version 1 the audit does not contain calls, so that only the
//! signature proves them. Otherwise they are the same.

mod convert;
mod export;
mod lines;
mod replay;
mod verify;

use dalsegno_format::fields::FramedHasher;
use dalsegno_model::Digest;

pub use export::{Export, ExportOf};
pub use replay::state;
pub use verify::{Verified, verify};

/// The version that is written.
pub const VERSION: u32 = 3;

/// The first version whose audit contains calls.
const LISTS_CALLS: u32 = 2;

/// The first version with waits, messages and records.
const LISTS_WAITS: u32 = 3;

/// First field of the signed message.
pub const TAG: &[u8] = b"dalsegno/bundle/v1";

/// The message to sign for a bundle whose lines have this digest.
fn signed(sha256: &Digest) -> Digest {
    let mut message = FramedHasher::new(TAG);
    message.field(sha256);
    message.finish()
}
