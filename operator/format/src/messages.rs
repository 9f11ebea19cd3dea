//! The digest of a message to a run.
//!
//! ```text
//! SHA-256( f("dalsegno/message/v1") f(id) f(topic; empty if there is none) f(author) f(value, JSON as it came) )
//! ```
//!
//! with `f` as in [`crate::header`] and texts as UTF-8. If the run has a data key, the digest is keyed
//! ([`crate::seal::PayloadCipher::message_digests`]). The audit has it in the row of the message.

use dalsegno_model::Digest;

use crate::fields::FramedHasher;

/// First field of every message's digest.
const TAG: &[u8] = b"dalsegno/message/v1";

/// What a message's digest covers.
#[derive(Clone, Copy, Debug)]
pub struct MessageContent<'a> {
    /// Its id.
    pub id: &'a str,
    /// What it is about.
    pub topic: Option<&'a str>,
    /// The authenticated sender.
    pub author: &'a str,
    /// Its value, as JSON text.
    pub value: &'a str,
}

impl MessageContent<'_> {
    /// The SHA-256 of the message.
    pub fn digest(&self) -> Digest {
        let Self { id, topic, author, value } = *self;
        let mut hash = FramedHasher::new(TAG);
        for part in [id, topic.unwrap_or_default(), author, value] {
            hash.field(part.as_bytes());
        }
        hash.finish()
    }
}
