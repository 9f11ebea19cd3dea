//! How many calls of one run may be under way at once.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, PoisonError};

use dalsegno_protocol::Code;
use dalsegno_store::RunId;

use crate::refusal::Refusal;

/// Counts the calls under way, by run.
pub(crate) struct Admission {
    limit: usize,
    under_way: Arc<Mutex<HashMap<RunId, usize>>>,
}

/// One call under way; it is over when this is dropped.
pub(crate) struct Admitted {
    run: RunId,
    under_way: Arc<Mutex<HashMap<RunId, usize>>>,
}

impl Admission {
    pub(crate) fn new(limit: usize) -> Self {
        Self { limit, under_way: Arc::default() }
    }

    /// Lets one more call of this run in, unless there are too many.
    pub(crate) fn admit(&self, run: RunId) -> Result<Admitted, Refusal> {
        let mut under_way = self.under_way.lock().unwrap_or_else(PoisonError::into_inner);
        let count = under_way.get(&run).copied().unwrap_or_default();
        if count >= self.limit {
            return Err(Refusal::new(
                Code::TooManyRequests,
                format!(
                    "{count} calls of this run are under way already; wait for some of them, then send the same \
                     bytes again"
                ),
            ));
        }
        under_way.insert(run, count + 1);
        Ok(Admitted { run, under_way: self.under_way.clone() })
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        let mut under_way = self.under_way.lock().unwrap_or_else(PoisonError::into_inner);
        if let Entry::Occupied(mut count) = under_way.entry(self.run) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }
}
