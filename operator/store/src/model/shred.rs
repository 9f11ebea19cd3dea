//! Making a run unreadable.

/// The answer to [`crate::Store::shred`].
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
