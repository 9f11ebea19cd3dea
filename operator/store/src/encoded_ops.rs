//! Encodes a boundary whose resulting state must be measured before it is stored: the state at the run's head is read
//! for it.

use std::sync::LazyLock;

use dalsegno_protocol::Limits;
use tokio::sync::Semaphore;

pub(crate) use dalsegno_format::encoded_ops::EncodedOps;

use crate::branch;
use crate::per_run_limiter::PerRunLimiter;
use crate::snapshot_io::SnapshotReader;
use dalsegno_format::seal::PayloadCipher;
use dalsegno_model::{Commit, Result};

/// A boundary with at most this many bytes of payloads may be stored in one batch with others.
pub(crate) const MAX_BATCHED_BYTES: usize = 256 << 10;

/// One measurement per run at a time. Callers for one run wait here, and only the first of them waits for the permits
/// below, which all runs share.
static PER_RUN: LazyLock<PerRunLimiter> = LazyLock::new(|| PerRunLimiter::new(1));

/// Permits to read a state of at most [`SMALL_STATE`] bytes.
static SMALL_STATES: Semaphore = Semaphore::const_new(2);

/// Bytes of a small state.
const SMALL_STATE: usize = Limits::STATE_BYTES / 8;

/// Permits to read a state of any size.
static STATES: Semaphore = Semaphore::const_new(1);

/// Encodes the operations of a boundary, and computes the size of the state after it. The result is valid only while
/// the head that was read is the run's head. `None`: the state after the boundary is larger than allowed.
pub(crate) async fn encode_with_state_size(
    reader: &impl SnapshotReader,
    commit: &Commit,
    cipher: &PayloadCipher,
) -> Result<Option<EncodedOps>> {
    let guard = PER_RUN.join(commit.run);
    let _permit = guard.acquire().await;
    // Acquiring never fails: these semaphores are never closed.
    let small = SMALL_STATES.acquire().await;
    if let Some(at) = branch::small_state(reader, commit.run, SMALL_STATE).await? {
        return EncodedOps::after(at.state, at.row.content_hash, commit, cipher);
    }
    drop(small);
    let _large = STATES.acquire().await;
    // The state before the first boundary is empty, so its size is known without this function.
    let Some(at) = branch::state(reader, commit.run, None).await? else { return Ok(None) };
    EncodedOps::after(at.state, at.row.content_hash, commit, cipher)
}
