//! Keyed digests: without the key they reveal nothing about sealed data.

use dalsegno_model::{CallDigests, Digest, DigestKey};
use ring::hmac;
use sha2::{Digest as _, Sha256};

use crate::header;

/// The digests of a body: as it is stored, and as it was stored before the run had a key.
#[derive(Clone, Copy, Debug)]
pub struct BodyDigest {
    /// The digest to store.
    pub stored: Digest,
    /// SHA-256 of the body. It is not stored if the run has a key.
    pub plain: Digest,
}

impl BodyDigest {
    /// Whether a stored digest belongs to this body.
    pub fn matches(&self, stored: &Digest) -> bool {
        *stored == self.stored || *stored == self.plain
    }

    /// The digest that may be stored instead, from before the run had a key.
    pub fn older(&self) -> Option<Digest> {
        (self.plain != self.stored).then_some(self.plain)
    }
}

/// Digests with the key of a boundary or a call.
pub trait DigestKeyExt {
    /// The keyed digest for data with this SHA-256.
    fn digest(&self, plain: Digest) -> Digest;
}

impl DigestKeyExt for DigestKey {
    fn digest(&self, plain: Digest) -> Digest {
        sign(&hmac::Key::new(hmac::HMAC_SHA256, &self.0), &plain)
    }
}

/// Digests of a call's key, arguments and result, or of a message.
pub trait CallDigestsExt {
    /// The digest of data with this SHA-256.
    fn of_digest(&self, plain: Digest) -> Digest;

    /// The digest of this text.
    fn of(&self, text: &str) -> Digest;

    /// The digest of this text in the form used in audit rows.
    fn render(&self, text: &str) -> String;
}

impl CallDigestsExt for CallDigests {
    fn of_digest(&self, plain: Digest) -> Digest {
        if let Self::Keyed(key) = self { key.digest(plain) } else { plain }
    }

    fn of(&self, text: &str) -> Digest {
        self.of_digest(Sha256::digest(text).into())
    }

    fn render(&self, text: &str) -> String {
        header::render(&self.of(text))
    }
}

/// HMAC-SHA256.
pub(super) fn sign(key: &hmac::Key, bytes: &[u8]) -> Digest {
    let mut digest = [0; 32];
    digest.copy_from_slice(hmac::sign(key, bytes).as_ref());
    digest
}
