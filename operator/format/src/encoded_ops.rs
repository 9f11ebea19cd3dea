//! A boundary's channel operations as they are stored: plain, or as a patch against the parent's state.

use dalsegno_model::{Commit, Digest, Error, Result};
use dalsegno_protocol::{Limits, State};

use crate::seal::{AadContext, PayloadCipher};
use crate::{codec, fold, size};

/// If a patch is at least this many times smaller than its input, it is used without encoding the plain form to
/// compare.
const CLEARLY_SMALLER_FACTOR: usize = 32;

/// Encoded channel operations, and the parent that they need.
#[derive(Clone, Debug)]
pub struct EncodedOps {
    /// The operations; `None` if the state does not change.
    pub ops: Option<Vec<u8>>,
    /// The content hash that the head must have; `None` if any head will do.
    pub base: Option<Digest>,
    /// If the operations are the full state, or `base` is set: the exact size of the state afterwards. Otherwise the
    /// upper bound of what they add. In bytes.
    pub size: i64,
}

impl EncodedOps {
    /// The smallest encoding: a patch if that is smaller. A patch needs the head named in `base`; the store must not
    /// accept it on another one.
    pub fn smallest(commit: &Commit, cipher: &PayloadCipher) -> Result<Self> {
        let (Some(ops), Some(base), true) = (&commit.ops, &commit.base, commit.full) else {
            return Self::plain(commit, cipher);
        };
        let Some(patch) = codec::encode_after(&base.state, ops) else {
            return Self::plain(commit, cipher);
        };
        if patch.len() > ops.len() / CLEARLY_SMALLER_FACTOR {
            let plain = codec::encode(ops);
            if plain.len() <= patch.len() {
                return Self::sealed(commit, cipher, Some(plain), None);
            }
        }
        Self::sealed(commit, cipher, Some(patch), Some(base.content_hash))
    }

    /// The encoding that fits any head.
    pub fn plain(commit: &Commit, cipher: &PayloadCipher) -> Result<Self> {
        Self::sealed(commit, cipher, commit.ops.as_deref().map(codec::encode), None)
    }

    /// The encoding for the head with this hash only, with the exact size of the state after it. `state` is the state
    /// at that head. `None` if the new state would be too large.
    pub fn after(
        mut state: State,
        head: Digest,
        commit: &Commit,
        cipher: &PayloadCipher,
    ) -> Result<Option<Self>> {
        if let Some(ops) = &commit.ops {
            let text = str::from_utf8(ops).map_err(|error| corrupt(&error))?;
            fold::step(&mut state, text)?;
        }
        let bytes = size::of_state(&state);
        if bytes > Limits::STATE_BYTES {
            return Ok(None);
        }
        let plain = Self::plain(commit, cipher)?;
        Ok(Some(Self { base: Some(head), size: signed(bytes), ..plain }))
    }

    fn sealed(
        commit: &Commit,
        cipher: &PayloadCipher,
        ops: Option<Vec<u8>>,
        base: Option<Digest>,
    ) -> Result<Self> {
        let context = AadContext::Ops(commit.turn, commit.boundary, commit.commit_id);
        let ops = ops.map(|ops| cipher.seal(context, ops)).transpose()?;
        Ok(Self { ops, base, size: signed(commit.size) })
    }
}

fn corrupt(error: &dyn std::error::Error) -> Error {
    Error::Corrupt { operation: "counting a state", detail: error.to_string() }
}

fn signed(bytes: usize) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}
