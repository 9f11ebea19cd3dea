//! Digests that nobody can make who has no key: of what is sealed they tell nothing.

use ring::hmac;
use sha2::{Digest as _, Sha256};

use crate::{Digest, header};

/// The digest of a body: as it is kept, and as it was kept before its run had a key.
#[derive(Clone, Copy, Debug)]
pub struct BodyDigest {
    /// As it is kept.
    pub kept: Digest,
    /// SHA-256 of the body. Nothing keeps it where the run has a key.
    pub plain: Digest,
}

impl BodyDigest {
    /// Whether what stands there is of this body.
    pub fn is(&self, stands: &Digest) -> bool {
        *stands == self.kept || *stands == self.plain
    }

    /// The digest that may stand there too, from before the run had a key.
    pub fn older(&self) -> Option<Digest> {
        (self.plain != self.kept).then_some(self.plain)
    }
}

/// What the digests of one boundary's payloads, or of one call, are made with.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct DigestKey(pub [u8; 32]);

impl DigestKey {
    /// The digest that stands for what has this SHA-256.
    pub fn digest(&self, plain: Digest) -> Digest {
        sign(&hmac::Key::new(hmac::HMAC_SHA256, &self.0), &plain)
    }
}

impl std::fmt::Debug for DigestKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("DigestKey")
    }
}

/// How the audit's digests of a call's key, arguments and result are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallDigests {
    /// SHA-256: the run has no data key.
    Plain,
    /// With the call's own key; what was written before the run had a data key has a plain one.
    Keyed(DigestKey),
    /// By nobody any more: the run's data key was deleted.
    Lost,
}

impl CallDigests {
    /// The digest of this text.
    pub fn of(&self, text: &str) -> Digest {
        let plain = Sha256::digest(text).into();
        if let Self::Keyed(key) = self { key.digest(plain) } else { plain }
    }

    /// The same as a row of the audit tells it.
    pub(crate) fn told(&self, text: &str) -> String {
        header::render(&self.of(text))
    }
}

/// HMAC-SHA256.
pub(super) fn sign(key: &hmac::Key, bytes: &[u8]) -> Digest {
    let mut digest = [0; 32];
    digest.copy_from_slice(hmac::sign(key, bytes).as_ref());
    digest
}
