//! Statements that may wait for a run's row stand in line for it here: what waits on a connection keeps it from other runs.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Semaphore, SemaphorePermit};

use crate::RunId;
use crate::fault::{Fault, Work};

/// Statements of one run that have a connection: one that has the row, and one that takes it next.
const AT_ONCE: usize = 2;

/// The lines that anybody stands in.
#[derive(Debug, Default)]
pub(super) struct Lines(Mutex<HashMap<RunId, Line>>);

#[derive(Debug)]
struct Line {
    permits: Arc<Semaphore>,
    length: usize,
}

/// Somebody in a line, until this is dropped.
pub(super) struct Standing<'a> {
    lines: &'a Lines,
    run: RunId,
    permits: Arc<Semaphore>,
}

impl Lines {
    /// Joins the line for this run's row.
    pub fn join(&self, run: RunId) -> Standing<'_> {
        let mut lines = self.lock();
        let line = lines
            .entry(run)
            .or_insert_with(|| Line { permits: Arc::new(Semaphore::new(AT_ONCE)), length: 0 });
        line.length += 1;
        Standing { lines: self, run, permits: Arc::clone(&line.permits) }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<RunId, Line>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Standing<'_> {
    /// Its turn, once those before it are done.
    pub async fn served(&self) -> Work<SemaphorePermit<'_>> {
        self.permits.acquire().await.map_err(Fault::unavailable)
    }
}

impl Drop for Standing<'_> {
    fn drop(&mut self) {
        if let Entry::Occupied(mut line) = self.lines.lock().entry(self.run) {
            line.get_mut().length -= 1;
            if line.get().length == 0 {
                line.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_gone_with_the_last_that_stands_in_it() {
        let (lines, run) = (Lines::default(), RunId::nil());
        let (one, two) = (lines.join(run), lines.join(run));
        drop(one);
        assert_eq!(lines.lock().len(), 1);
        drop(two);
        assert!(lines.lock().is_empty());
    }
}
