//! A run as a file that proves itself: what `dalsegno export` writes and `dalsegno verify FILE` reads.
//!
//! # Format, version 2
//!
//! JSON lines, each `{"KIND": {…}}` and a line feed, in this order: one `bundle`, then every `boundary` (by turn,
//! boundary and epoch; undone ones too), every `call`, every `audit` row, one `end`. `docs/schemas/bundle-v2.schema.json`
//! has the fields. Payloads are strings that hold the very text that was committed, so that their digests can be computed.
//!
//! `end.sha256` is the SHA-256 of all bytes before the line of `end`. `end.signature` is the Ed25519 signature, by the key
//! `bundle.publicKey`, of the 32 bytes `SHA-256( f("dalsegno/bundle/v1") f(end.sha256, 32 bytes) )`, with `f(x)` as in
//! [`dalsegno_format::header`]. The line of `end` has no spaces, and its fields stand in the schema's order.
//!
//! Version 1 is the same but for calls, of which its audit does not tell: there they are proved by the signature alone.

mod export;
mod lines;
mod replay;
mod verify;

use dalsegno_format::fields::Framed;
use dalsegno_model::Digest;

pub use export::Export;
pub use replay::state;
pub use verify::{Verified, verify};

/// The version that is written.
pub const VERSION: u32 = 2;

/// The first version whose audit tells of calls.
const TELLS_OF_CALLS: u32 = 2;

/// First field of what is signed.
pub const TAG: &[u8] = b"dalsegno/bundle/v1";

/// What is signed of a bundle whose lines have this digest.
fn signed(sha256: &Digest) -> Digest {
    let mut message = Framed::new(TAG);
    message.field(sha256);
    message.finish()
}
