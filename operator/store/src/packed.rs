//! A boundary whose state must be counted before it is kept: the state at its head is read for it.

use std::sync::LazyLock;

use dalsegno_protocol::Limits;
use tokio::sync::Semaphore;

pub(crate) use dalsegno_format::encoded_ops::EncodedOps;

use crate::branch;
use crate::lines::Lines;
use crate::seal::PayloadCipher;
use crate::shelf::Shelf;
use crate::{Commit, Result};

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

/// As a boundary can stand on the head alone that is there now, with how large the state is after it. `None`: larger than it may
/// be.
pub(crate) async fn counted(
    shelf: &impl Shelf,
    commit: &Commit,
    sealing: &PayloadCipher,
) -> Result<Option<EncodedOps>> {
    let line = COUNTING.join(commit.run);
    let _served = line.served().await;
    // None of these is ever closed.
    let small = SMALL_STATES.acquire().await;
    if let Some(at) = branch::small_state(shelf, commit.run, SMALL_STATE).await? {
        return EncodedOps::after(at.state, at.row.content_hash, commit, sealing);
    }
    drop(small);
    let _large = STATES.acquire().await;
    // Before the first boundary it is known.
    let Some(at) = branch::state(shelf, commit.run, None).await? else { return Ok(None) };
    EncodedOps::after(at.state, at.row.content_hash, commit, sealing)
}
