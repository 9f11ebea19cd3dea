//! Room for states: how many bytes of them are read at once.

use std::sync::Arc;

use dalsegno_protocol::Limits;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bytes of two of the largest states.
pub(crate) const TWO_STATES: usize = 2 * Limits::STATE_BYTES;

/// Bytes of states that are read at once, two of the largest: whoever reads one holds it several times over. Cheap to clone;
/// all clones are the same room.
#[derive(Clone, Debug)]
pub struct Room(Arc<Semaphore>);

impl Default for Room {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(TWO_STATES)))
    }
}

impl Room {
    /// Waits for room for a state and for the open calls beside it, of so many bytes as the store tells. Of a state of which
    /// nobody knows how large it is (`None`), for the largest. `None`: the room is closed, which it never is.
    pub async fn take(&self, state: Option<i64>, calls: i64) -> Option<OwnedSemaphorePermit> {
        let state = state.and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(Limits::STATE_BYTES);
        self.take_bytes(state.saturating_add(usize::try_from(calls).unwrap_or_default())).await
    }

    /// Waits for room for so many bytes, or for all of it where that is less.
    pub(crate) async fn take_bytes(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        let bytes = bytes.min(TWO_STATES);
        self.0.clone().acquire_many_owned(u32::try_from(bytes).unwrap_or(u32::MAX)).await.ok()
    }
}
