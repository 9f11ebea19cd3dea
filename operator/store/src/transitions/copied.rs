//! Rows that a fork takes over from its parent.

use std::sync::Arc;

use crate::reads::Assignment;
use dalsegno_format::records::Changes;
use dalsegno_model::BoundaryId;

/// Records to store at a boundary, as a batch of a worker.
#[derive(Clone, Debug)]
pub(crate) struct CopiedRecords {
    pub boundary: BoundaryId,
    pub changes: Arc<Changes>,
    /// The wrapped data key under which they are sealed.
    pub data_key: Option<Arc<[u8]>>,
}

impl PartialEq for CopiedRecords {
    fn eq(&self, other: &Self) -> bool {
        (self.boundary, self.changes.digest) == (other.boundary, other.changes.digest)
    }
}

/// A boundary to insert, and the wrapped data key under which it is sealed.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct NewBase {
    pub columns: Vec<Assignment>,
    pub data_key: Option<Arc<[u8]>>,
}
