//! Where a fork begins.

use crate::{Digest, RunId};

/// The boundary of another run that a fork begins after.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForkedFrom {
    /// The other run.
    pub run: RunId,
    /// The turn.
    pub turn: i32,
    /// Content hash of the turn's result.
    pub content_hash: Digest,
}
