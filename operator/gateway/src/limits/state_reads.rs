//! Limits on reading states. A read holds its state in memory several times over, so the bytes read at once are
//! limited, and each owner reads one state at a time.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use dalsegno_model::Sizes;
use dalsegno_protocol::Limits;
use quick_cache::sync::Cache;
use tokio::sync::{Mutex, OwnedMutexGuard, OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};

use crate::limits::shared_limit::{LimitExceeded, LimitOwner};

/// Bytes of two of the largest states.
pub(crate) const TWO_STATES: usize = 2 * Limits::STATE_BYTES;

/// One part of a budget in this many is for small states.
const SMALL_PART: usize = 9;

/// Smallest budget in bytes: one of the largest states, and the part for small ones.
pub(crate) const MIN_BUDGET: usize = Limits::STATE_BYTES * SMALL_PART / (SMALL_PART - 1);

/// Largest small state in bytes. Small states have a budget of their own and never wait behind a large one. Most states
/// are small.
pub(crate) const SMALL_STATE: usize = Limits::INLINE_STATE_BYTES;

/// Owners whose queue is remembered. An owner that is forgotten can read twice at once.
const OWNERS: usize = 16_384;

/// Bytes of states that are read at once. Clones share one budget.
#[derive(Clone, Debug)]
pub struct StateReadBudget {
    small: Arc<Semaphore>,
    large: Arc<Semaphore>,
    /// All bytes for large states.
    large_bytes: usize,
}

impl StateReadBudget {
    /// Smallest budget in bytes.
    pub const MIN_BYTES: usize = MIN_BUDGET;

    /// A budget of this many bytes, or of 72 MiB if that is more: a ninth is for small states, and at least one of the
    /// largest states fits into the rest.
    pub fn new(bytes: usize) -> Self {
        let bytes = bytes.max(MIN_BUDGET);
        let small_bytes = bytes / SMALL_PART;
        let large_bytes = bytes - small_bytes;
        Self {
            small: Arc::new(Semaphore::new(small_bytes)),
            large: Arc::new(Semaphore::new(large_bytes)),
            large_bytes,
        }
    }

    /// Waits until a head of these sizes can be read. The permit gives the bytes back on drop. `None` only if the
    /// budget was closed, which never happens.
    pub async fn acquire(&self, sizes: &Sizes) -> Option<OwnedSemaphorePermit> {
        self.acquire_bytes(read_bytes(sizes)).await
    }

    /// Waits for this many bytes, or for the whole budget if that is less. So a read may take more than the budget;
    /// `Config::memory_bytes` counts [`TWO_STATES`] for it.
    pub(crate) async fn acquire_bytes(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        let bytes = bytes.min(self.large_bytes);
        let budget = if bytes <= SMALL_STATE { &self.small } else { &self.large };
        budget.clone().acquire_many_owned(u32::try_from(bytes).unwrap_or(u32::MAX)).await.ok()
    }
}

/// Bytes that reading a head takes: its state, the boundaries it is rebuilt from, and the open calls. A state of
/// unknown size counts as the largest.
pub(crate) fn read_bytes(sizes: &Sizes) -> usize {
    let state = sizes.state.and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(Limits::STATE_BYTES);
    let tail_and_calls = usize::try_from(sizes.tail.saturating_add(sizes.calls)).unwrap_or_default();
    state.saturating_add(tail_and_calls)
}

/// A budget with one queue for all owners, FIFO with one place per owner: nobody waits behind more than one read of
/// each other owner.
pub(crate) struct StateReadLimiter {
    budget: StateReadBudget,
    turns: OwnerTurns,
    timeout: Duration,
}

/// One turn for each owner, so that an owner with many calls waits once in the queue of all owners.
pub(crate) struct OwnerTurns(Cache<LimitOwner, Arc<Mutex<()>>>);

impl OwnerTurns {
    /// Nobody has a turn.
    pub(crate) fn new() -> Self {
        Self(Cache::new(OWNERS))
    }

    /// Waits for the owner's turn, which lasts until this is dropped.
    pub(crate) async fn acquire(
        &self,
        owner: &LimitOwner,
        until: Instant,
    ) -> Result<OwnedMutexGuard<()>, LimitExceeded> {
        let Ok(owner) = self.0.get_or_insert_with(owner, || Ok::<_, Infallible>(Arc::default()));
        timeout_at(until, owner.lock_owned()).await.map_err(|_| LimitExceeded::Owner)
    }
}

/// A state may be read until this is dropped.
#[derive(Debug)]
pub(crate) struct StateReadPermit {
    _owner: OwnedMutexGuard<()>,
    _bytes: OwnedSemaphorePermit,
}

impl StateReadLimiter {
    /// A limiter of this many bytes, whose callers wait up to `timeout`.
    pub(crate) fn new(bytes: usize, timeout: Duration) -> Self {
        Self { budget: StateReadBudget::new(bytes), turns: OwnerTurns::new(), timeout }
    }

    /// The bytes that all owners share.
    pub(crate) fn budget(&self) -> &StateReadBudget {
        &self.budget
    }

    /// Waits until this owner may read this many bytes.
    pub(crate) async fn acquire(
        &self,
        owner: &LimitOwner,
        bytes: usize,
    ) -> Result<StateReadPermit, LimitExceeded> {
        let until = Instant::now() + self.timeout;
        let owner = self.turns.acquire(owner, until).await?;
        let bytes = timeout_at(until, self.budget.acquire_bytes(bytes)).await;
        Ok(StateReadPermit { _owner: owner, _bytes: bytes.ok().flatten().ok_or(LimitExceeded::Total)? })
    }
}

#[cfg(test)]
mod tests {
    use dalsegno_model::RunId;

    use super::*;

    const ONE: LimitOwner = LimitOwner::Run(RunId::from_u128(1));
    const OTHER: LimitOwner = LimitOwner::Run(RunId::from_u128(2));

    /// A limiter of two of the largest states.
    fn limiter() -> StateReadLimiter {
        StateReadLimiter::new(2 * MIN_BUDGET, Duration::from_millis(300))
    }

    #[tokio::test]
    async fn the_smallest_budget_has_room_for_one_of_the_largest_states_and_small_ones_beside_it() {
        let limiter = StateReadLimiter::new(0, Duration::from_millis(300));
        let _largest = limiter.acquire(&ONE, TWO_STATES).await.unwrap();
        let other = limiter.acquire(&OTHER, SMALL_STATE + 1).await.unwrap_err();
        assert_eq!(other, LimitExceeded::Total);
        assert!(limiter.acquire(&OTHER, SMALL_STATE).await.is_ok());
    }

    #[tokio::test]
    async fn two_of_the_largest_states_are_read_at_once_and_the_next_one_waits() {
        let limiter = limiter();
        let read = async |bytes| {
            let owner = LimitOwner::User(uuid::Uuid::new_v4().to_string());
            limiter.acquire(&owner, bytes).await
        };
        let first = read(Limits::STATE_BYTES).await.unwrap();
        let _second = read(Limits::STATE_BYTES).await.unwrap();
        assert_eq!(read(SMALL_STATE + 1).await.unwrap_err(), LimitExceeded::Total);
        assert!(read(SMALL_STATE).await.is_ok(), "a small state waits for none of them");
        drop(first);
        assert!(read(TWO_STATES).await.is_err());
        assert!(read(Limits::STATE_BYTES).await.is_ok());
    }

    #[tokio::test]
    async fn an_owner_waits_for_its_own_read_and_others_do_not() {
        let limiter = limiter();
        let read = async |owner| limiter.acquire(owner, Limits::STATE_BYTES).await;
        let first = read(&ONE).await.unwrap();
        assert_eq!(read(&ONE).await.unwrap_err(), LimitExceeded::Owner);
        let (second, other) = tokio::join!(read(&ONE), async {
            let other = read(&OTHER).await.map(drop);
            drop(first);
            other
        });
        assert!(second.is_ok() && other.is_ok(), "{second:?} {other:?}");
    }
}
