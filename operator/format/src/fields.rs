//! Fields framed by their lengths, so that no two sequences of them have the same bytes: `f(x)` of the formats, which is the
//! length of `x` as a big-endian u32, then `x`.

use dalsegno_model::Digest;
use sha2::{Digest as _, Sha256};

/// A hash over length-framed fields, so that no two sequences of fields have the same bytes.
#[derive(Clone, Debug)]
pub struct Framed(Sha256);

impl Framed {
    /// It begins with a tag, which says what is hashed.
    pub fn new(tag: &[u8]) -> Self {
        let mut framed = Self::bare();
        framed.field(tag);
        framed
    }

    /// Without a tag: what it hashes is hashed again with one.
    pub fn bare() -> Self {
        Self(Sha256::new())
    }

    /// Adds a field.
    pub fn field(&mut self, bytes: &[u8]) {
        // A field is at most a body (16 MiB), far below 4 GiB.
        self.0.update((bytes.len() as u32).to_be_bytes());
        self.0.update(bytes);
    }

    /// The hash of all fields.
    pub fn finish(self) -> Digest {
        self.0.finalize().into()
    }
}

/// Length-framed fields, so that no two sequences of them have the same bytes.
#[derive(Default)]
pub(crate) struct Fields(pub Vec<u8>);

impl Fields {
    pub fn field(&mut self, bytes: &[u8]) {
        // No place has a part of 4 GiB.
        self.0.extend((bytes.len() as u32).to_be_bytes());
        self.0.extend(bytes);
    }
}
