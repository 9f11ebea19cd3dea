//! A boundary's channel operations as they go into the store: plain, or as a patch that only its parent can take.

use crate::{Commit, Digest, codec};

/// A patch this many times smaller than what it stands for is taken without asking how small a plain frame would be.
const CLEARLY: usize = 32;

/// A payload, and on which parent alone it may stand.
#[derive(Clone, Debug)]
pub(crate) struct Packed {
    pub ops: Option<Vec<u8>>,
    /// The content hash that the head must have; `None`: any.
    pub base: Option<Digest>,
}

impl Packed {
    /// As small as it can be made. A patch says which head it needs: under another one it must not be kept.
    pub fn smallest(commit: &Commit) -> Self {
        let (Some(ops), Some(base), true) = (&commit.ops, &commit.base, commit.full) else {
            return Self::plain(commit);
        };
        let Some(patch) = codec::encode_after(&base.state, ops) else {
            return Self::plain(commit);
        };
        if patch.len() > ops.len() / CLEARLY {
            let plain = Self::plain(commit);
            if plain.ops.as_ref().is_some_and(|plain| plain.len() <= patch.len()) {
                return plain;
            }
        }
        Self { ops: Some(patch), base: Some(base.content_hash) }
    }

    /// As it can stand on any head.
    pub fn plain(commit: &Commit) -> Self {
        Self { ops: commit.ops.as_deref().map(codec::encode), base: None }
    }
}
