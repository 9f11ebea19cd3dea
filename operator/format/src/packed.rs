//! A boundary's channel operations as they go into the store: plain, or as a patch that only its parent can take.

use dalsegno_model::{Commit, Digest, Error, Result};
use dalsegno_protocol::{Limits, State};

use crate::seal::{Sealing, Spot};
use crate::{codec, fold, size};

/// A patch this many times smaller than what it stands for is taken without asking how small a plain frame would be.
const CLEARLY: usize = 32;

/// A payload, and on which parent alone it may stand.
#[derive(Clone, Debug)]
pub struct Packed {
    /// The operations; `None`: the state stays.
    pub ops: Option<Vec<u8>>,
    /// The content hash that the head must have; `None`: any.
    pub base: Option<Digest>,
    /// Bytes of the state after it, where they are the full state or have a base; else what they add to it at most.
    pub size: i64,
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

    /// As it can stand on the head alone that has this hash, with how large the state is after it; `state` is the state at
    /// that head. `None`: larger than it may be.
    pub fn after(mut state: State, head: Digest, commit: &Commit, sealing: &Sealing) -> Result<Option<Self>> {
        if let Some(ops) = &commit.ops {
            let text = str::from_utf8(ops).map_err(|error| corrupt(&error))?;
            fold::step(&mut state, text)?;
        }
        let bytes = size::of_state(&state);
        if bytes > Limits::STATE_BYTES {
            return Ok(None);
        }
        let plain = Self::plain(commit, sealing)?;
        Ok(Some(Self { base: Some(head), size: signed(bytes), ..plain }))
    }

    fn sealed(
        commit: &Commit,
        sealing: &Sealing,
        ops: Option<Vec<u8>>,
        base: Option<Digest>,
    ) -> Result<Self> {
        let spot = Spot::Ops(commit.turn, commit.boundary, commit.commit_id);
        let ops = ops.map(|ops| sealing.seal(spot, ops)).transpose()?;
        Ok(Self { ops, base, size: signed(commit.size) })
    }
}

fn corrupt(error: &dyn std::error::Error) -> Error {
    Error::Corrupt { doing: "counting a state", detail: error.to_string() }
}

fn signed(bytes: usize) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}
