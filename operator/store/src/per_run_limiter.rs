//! A limit on concurrent work for each run: callers for the same run wait for each other, never for another run.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Semaphore, SemaphorePermit};

use crate::db_error::{DbError, DbResult};
use dalsegno_model::RunId;

/// One FIFO queue for each run that has callers.
#[derive(Debug)]
pub(crate) struct PerRunLimiter {
    concurrency: usize,
    queues: Mutex<HashMap<RunId, Queue>>,
}

#[derive(Debug)]
struct Queue {
    permits: Arc<Semaphore>,
    /// Guards that exist. The queue is removed with the last one.
    guards: usize,
}

/// A place in a run's queue, until it is dropped.
pub(crate) struct QueueGuard<'a> {
    limiter: &'a PerRunLimiter,
    run: RunId,
    permits: Arc<Semaphore>,
}

impl PerRunLimiter {
    /// `concurrency`: permits for each run.
    pub fn new(concurrency: usize) -> Self {
        Self { concurrency, queues: Mutex::default() }
    }

    /// Joins the queue of this run.
    pub fn join(&self, run: RunId) -> QueueGuard<'_> {
        let mut queues = self.lock();
        let queue = queues
            .entry(run)
            .or_insert_with(|| Queue { permits: Arc::new(Semaphore::new(self.concurrency)), guards: 0 });
        queue.guards += 1;
        QueueGuard { limiter: self, run, permits: Arc::clone(&queue.permits) }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<RunId, Queue>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl QueueGuard<'_> {
    /// Waits for a permit, in the order of the calls.
    pub async fn acquire(&self) -> DbResult<SemaphorePermit<'_>> {
        self.permits.acquire().await.map_err(DbError::unavailable)
    }
}

impl Drop for QueueGuard<'_> {
    fn drop(&mut self) {
        if let Entry::Occupied(mut queue) = self.limiter.lock().entry(self.run) {
            queue.get_mut().guards -= 1;
            if queue.get().guards == 0 {
                queue.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_is_removed_with_its_last_guard() {
        let (limiter, run) = (PerRunLimiter::new(1), RunId::nil());
        let (first, second) = (limiter.join(run), limiter.join(run));
        drop(first);
        assert_eq!(limiter.lock().len(), 1);
        drop(second);
        assert!(limiter.lock().is_empty());
    }
}
