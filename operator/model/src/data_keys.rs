//! Data keys: one deleted, which makes its run unreadable; all of them wrapped anew.

use crate::{Error, RunId};

/// The answer to [`crate::Admin::shred`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shredded {
    /// The data key is deleted, and the audit says so.
    Done,
    /// The data key was gone before, shredded or past its retention: nothing was done.
    GoneBefore,
    /// It has no data key: what there is of it is plain, and nothing was done.
    NeverSealed,
    /// The run is live: its worker would write what nobody can read.
    Live,
    /// There is no such run.
    NotFound,
}

/// What became of data keys that were to be wrapped anew.
#[derive(Debug, Default)]
pub struct Rewrapped {
    /// How many the current key wraps now, and another one did before.
    pub count: u64,
    /// Runs whose data key could not be unwrapped, and why; these are as they were.
    pub failed: Vec<(RunId, Error)>,
}
