//! States that are read: so many bytes in all, and one reading at a time for each.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use dalsegno_protocol::Limits;
use dalsegno_store::Sizes;
use quick_cache::sync::Cache;
use tokio::sync::{Mutex, OwnedMutexGuard, OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};

use crate::limits::shared_limit::{Full, Who};

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

/// How many are remembered who have read. Who is forgotten may read twice at once.
const READERS: usize = 16_384;

/// Room for states, in the order in which it is asked for. Who has some waits for more outside of this queue: whoever asks
/// once waits for one reading of each of the others, and no more.
pub(crate) struct Readings {
    room: Room,
    turns: Cache<Who, Arc<Mutex<()>>>,
    timeout: Duration,
}

/// Room that is taken until this is dropped.
#[derive(Debug)]
pub(crate) struct Reading {
    _turn: OwnedMutexGuard<()>,
    _bytes: OwnedSemaphorePermit,
}

impl Readings {
    pub(crate) fn new(timeout: Duration) -> Self {
        Self { room: Room::default(), turns: Cache::new(READERS), timeout }
    }

    /// What all readings share.
    pub fn room(&self) -> &Room {
        &self.room
    }

    /// Takes so many bytes once they are free: whoever reads a state holds it several times over.
    pub(crate) async fn take(&self, who: &Who, bytes: usize) -> Result<Reading, Full> {
        let until = Instant::now() + self.timeout;
        let Ok(turn) = self.turns.get_or_insert_with(who, || Ok::<_, Infallible>(Arc::default()));
        let turn = timeout_at(until, turn.lock_owned()).await.map_err(|_| Full::Share)?;
        let bytes = timeout_at(until, self.room.take_bytes(bytes)).await;
        Ok(Reading { _turn: turn, _bytes: bytes.ok().flatten().ok_or(Full::Whole)? })
    }
}

#[cfg(test)]
mod tests {
    use dalsegno_store::RunId;

    use super::*;

    const ONE: Who = Who::Run(RunId::from_u128(1));
    const OTHER: Who = Who::Run(RunId::from_u128(2));

    /// Does not wait for long.
    fn limiter() -> Readings {
        Readings::new(Duration::from_millis(300))
    }

    #[tokio::test]
    async fn two_of_the_largest_states_are_read_at_once_and_the_next_waits_for_room() {
        let limiter = limiter();
        let read = async |bytes| limiter.take(&Who::Person(uuid::Uuid::new_v4().to_string()), bytes).await;
        let first = read(Limits::STATE_BYTES).await.unwrap();
        let _second = read(Limits::STATE_BYTES).await.unwrap();
        assert_eq!(read(SMALL + 1).await.unwrap_err(), Full::Whole);
        assert!(read(SMALL).await.is_ok(), "a small one waits for none of them");
        drop(first);
        assert!(read(TWO_STATES).await.is_err());
        assert!(read(Limits::STATE_BYTES).await.is_ok());
    }

    #[tokio::test]
    async fn whoever_reads_waits_for_the_next_reading_where_nobody_else_does() {
        let limiter = limiter();
        let read = async |owner| limiter.take(owner, Limits::STATE_BYTES).await;
        let first = read(&ONE).await.unwrap();
        assert_eq!(read(&ONE).await.unwrap_err(), Full::Share);
        let (second, other) = tokio::join!(read(&ONE), async {
            let other = read(&OTHER).await.map(drop);
            drop(first);
            other
        });
        assert!(second.is_ok() && other.is_ok(), "{second:?} {other:?}");
    }
}
