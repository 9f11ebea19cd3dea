//! A boundary's channel operations as they go into the store: plain, or as a patch that only its parent can take.

use crate::seal::{Sealing, Spot};
use crate::{Commit, Digest, Result, codec};

/// A patch this many times smaller than what it stands for is taken without asking how small a plain frame would be.
const CLEARLY: usize = 32;

/// Bytes of the payloads of a boundary that is kept together with others.
pub(crate) const SMALL: usize = 256 << 10;

/// A payload, and on which parent alone it may stand.
#[derive(Clone, Debug)]
pub(crate) struct Packed {
    pub ops: Option<Vec<u8>>,
    /// The content hash that the head must have; `None`: any.
    pub base: Option<Digest>,
}

impl Packed {
    /// As small as it can be made. A patch says which head it needs: under another one it must not be kept.
    pub fn smallest(commit: &Commit, sealing: &Sealing) -> Result<Self> {
        let (Some(ops), Some(base), true) = (&commit.ops, &commit.base, commit.full) else {
            return Self::plain(commit, sealing);
        };
        let Some(patch) = codec::encode_after(&base.state, ops) else {
            return Self::plain(commit, sealing);
        };
        if patch.len() > ops.len() / CLEARLY {
            let plain = codec::encode(ops);
            if plain.len() <= patch.len() {
                return Self::sealed(commit, sealing, Some(plain), None);
            }
        }
        Self::sealed(commit, sealing, Some(patch), Some(base.content_hash))
    }

    /// As it can stand on any head.
    pub fn plain(commit: &Commit, sealing: &Sealing) -> Result<Self> {
        Self::sealed(commit, sealing, commit.ops.as_deref().map(codec::encode), None)
    }

    fn sealed(
        commit: &Commit,
        sealing: &Sealing,
        ops: Option<Vec<u8>>,
        base: Option<Digest>,
    ) -> Result<Self> {
        let spot = Spot::Ops(commit.turn, commit.boundary, commit.commit_id);
        Ok(Self { ops: ops.map(|ops| sealing.seal(spot, ops)).transpose()?, base })
    }
}
