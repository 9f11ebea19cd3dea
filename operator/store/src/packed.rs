//! A boundary's channel operations as they go into the store: plain, or as a patch that only its parent can take.

use std::sync::LazyLock;

use dalsegno_protocol::Limits;
use tokio::sync::Semaphore;

use crate::branch::{self, Shelf, Standpoint};
use crate::lines::Lines;
use crate::seal::{Sealing, Spot};
use crate::{Commit, Digest, Error, Result, codec, fold, size};

/// A patch this many times smaller than what it stands for is taken without asking how small a plain frame would be.
const CLEARLY: usize = 32;

/// Bytes of the payloads of a boundary that is kept together with others.
pub(crate) const SMALL: usize = 256 << 10;

/// Where a run waits that has a state counted already: among other runs it waits but once.
static COUNTING: LazyLock<Lines> = LazyLock::new(|| Lines::new(1));

/// States that are counted at once, none of them larger than a small one.
static SMALL_STATES: Semaphore = Semaphore::const_new(2);

/// Bytes of a small state.
const SMALL_STATE: usize = Limits::STATE_BYTES / 8;

/// States of any size that are counted at once.
static STATES: Semaphore = Semaphore::const_new(1);

/// A payload, and on which parent alone it may stand.
#[derive(Clone, Debug)]
pub(crate) struct Packed {
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

    /// As it can stand on the head alone that is there now, with how large the state is after it. `None`: larger than it may
    /// be.
    pub async fn counted(shelf: &impl Shelf, commit: &Commit, sealing: &Sealing) -> Result<Option<Self>> {
        let line = COUNTING.join(commit.run);
        let _served = line.served().await;
        // None of these is ever closed.
        let small = SMALL_STATES.acquire().await;
        if let Some(at) = branch::small_state(shelf, commit.run, SMALL_STATE).await? {
            return Self::after(at, commit, sealing);
        }
        drop(small);
        let _large = STATES.acquire().await;
        // Before the first boundary it is known.
        let Some(at) = branch::state(shelf, commit.run, None).await? else { return Ok(None) };
        Self::after(at, commit, sealing)
    }

    fn after(at: Standpoint, commit: &Commit, sealing: &Sealing) -> Result<Option<Self>> {
        let mut state = at.state;
        if let Some(ops) = &commit.ops {
            let text = str::from_utf8(ops).map_err(|error| corrupt(&error))?;
            fold::step(&mut state, text)?;
        }
        let bytes = size::of_state(&state);
        if bytes > Limits::STATE_BYTES {
            return Ok(None);
        }
        let plain = Self::plain(commit, sealing)?;
        Ok(Some(Self { base: Some(at.row.content_hash), size: signed(bytes), ..plain }))
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
