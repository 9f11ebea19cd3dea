//! Room for states: how many bytes of them are read at once.

use std::sync::Arc;

use dalsegno_protocol::Limits;
use dalsegno_store::Sizes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bytes of two of the largest states.
pub(crate) const TWO_STATES: usize = 2 * Limits::STATE_BYTES;

/// Bytes of a state that waits for no larger one: nearly all are as small.
pub(crate) const SMALL: usize = Limits::INLINE_STATE_BYTES;

/// Bytes of small states that are read at once.
const SMALL_ONES: usize = 16 * SMALL;

/// Bytes of states that are read at once, two of the largest and some small ones: whoever reads one holds it several times
/// over. Cheap to clone; all clones are the same room.
#[derive(Clone, Debug)]
pub struct Room {
    small: Arc<Semaphore>,
    large: Arc<Semaphore>,
}

impl Default for Room {
    fn default() -> Self {
        Self { small: Arc::new(Semaphore::new(SMALL_ONES)), large: Arc::new(Semaphore::new(TWO_STATES)) }
    }
}

impl Room {
    /// Waits for room for a lookup of a head. `None`: the room is closed, which it never is.
    pub async fn take(&self, sizes: &Sizes) -> Option<OwnedSemaphorePermit> {
        self.take_bytes(bytes(sizes)).await
    }

    /// Waits for room for so many bytes, or for all of it where that is less.
    pub(crate) async fn take_bytes(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        let bytes = bytes.min(TWO_STATES);
        let among = if bytes <= SMALL { &self.small } else { &self.large };
        among.clone().acquire_many_owned(u32::try_from(bytes).unwrap_or(u32::MAX)).await.ok()
    }
}

/// Bytes of the state at a head, of the boundaries it is made of and of the open calls beside it. A state of which nobody knows
/// how large it is counts as the largest.
pub(crate) fn bytes(sizes: &Sizes) -> usize {
    let state = sizes.state.and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(Limits::STATE_BYTES);
    let beside = usize::try_from(sizes.tail.saturating_add(sizes.calls)).unwrap_or_default();
    state.saturating_add(beside)
}
