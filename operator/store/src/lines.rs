//! Lines for what one run can do only so often at once: what waits here keeps nothing from other runs.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Semaphore, SemaphorePermit};

use crate::RunId;
use crate::fault::{Fault, Work};

/// The lines that anybody stands in, one for each run.
#[derive(Debug)]
pub(crate) struct Lines {
    at_once: usize,
    all: Mutex<HashMap<RunId, Line>>,
}

#[derive(Debug)]
struct Line {
    permits: Arc<Semaphore>,
    length: usize,
}

/// Somebody in a line, until this is dropped.
pub(crate) struct Standing<'a> {
    lines: &'a Lines,
    run: RunId,
    permits: Arc<Semaphore>,
}

impl Lines {
    /// Of each line so many are served at once.
    pub fn new(at_once: usize) -> Self {
        Self { at_once, all: Mutex::default() }
    }

    /// Joins the line of this run.
    pub fn join(&self, run: RunId) -> Standing<'_> {
        let mut lines = self.lock();
        let line = lines
            .entry(run)
            .or_insert_with(|| Line { permits: Arc::new(Semaphore::new(self.at_once)), length: 0 });
        line.length += 1;
        Standing { lines: self, run, permits: Arc::clone(&line.permits) }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<RunId, Line>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
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
        let (lines, run) = (Lines::new(1), RunId::nil());
        let (one, two) = (lines.join(run), lines.join(run));
        drop(one);
        assert_eq!(lines.lock().len(), 1);
        drop(two);
        assert!(lines.lock().is_empty());
    }
}
