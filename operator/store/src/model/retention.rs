//! What is left of a run once its time is over.

use super::RunId;

/// What one step of [`crate::Store::drop_expired`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dropped {
    /// The run whose payloads were dropped; `None`: there was none left to drop.
    pub run: Option<RunId>,
    /// Rows that were deleted or emptied.
    pub rows: u64,
    /// Whether it was the last step of this run.
    pub done: bool,
}
