//! Length-prefixed fields: `f(x)` of the formats is the length of `x` as a big-endian u32, then `x`. No two different
//! sequences of fields have the same bytes.

use dalsegno_model::Digest;
use sha2::{Digest as _, Sha256};

/// A hash over length-prefixed fields.
#[derive(Clone, Debug)]
pub struct FramedHasher(Sha256);

impl FramedHasher {
    /// Starts with a tag that says what is hashed.
    pub fn new(tag: &[u8]) -> Self {
        let mut framed = Self::bare();
        framed.field(tag);
        framed
    }

    /// Starts without a tag. Only for a digest that is hashed again, with a tag.
    pub fn bare() -> Self {
        Self(Sha256::new())
    }

    /// Adds a field.
    pub fn field(&mut self, bytes: &[u8]) {
        // A field is at most a request body (16 MiB), far below 4 GiB.
        self.0.update((bytes.len() as u32).to_be_bytes());
        self.0.update(bytes);
    }

    /// The hash of all fields.
    pub fn finish(self) -> Digest {
        self.0.finalize().into()
    }
}

/// The bytes of length-prefixed fields.
#[derive(Default)]
pub(crate) struct Fields(pub Vec<u8>);

impl Fields {
    pub fn field(&mut self, bytes: &[u8]) {
        // No field has 4 GiB.
        self.0.extend((bytes.len() as u32).to_be_bytes());
        self.0.extend(bytes);
    }
}
