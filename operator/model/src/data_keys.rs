//! Data keys: deleting one makes its run unreadable; all of them can be wrapped with a new key.

use crate::{Error, RunId};

/// The answer to [`crate::Admin::shred`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shredded {
    /// The data key is deleted, and the audit records it.
    Done,
    /// The data key was deleted before (shredded, or past the run's retention). Nothing was done.
    GoneBefore,
    /// The run has no data key: its payloads are plain. Nothing was done.
    NeverSealed,
    /// The run is live: without the key nobody could read what its worker writes.
    Live,
    /// There is no such run.
    NotFound,
}

/// The result of wrapping data keys with the current key.
#[derive(Debug, Default)]
pub struct Rewrapped {
    /// Data keys that were wrapped with another key before, and are wrapped with the current key now.
    pub count: u64,
    /// Runs whose data key could not be unwrapped, and why. Their keys are unchanged.
    pub failed: Vec<(RunId, Error)>,
}
