//! Making a run unreadable.

/// The answer to [`crate::Store::shred`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shredded {
    /// The data key is gone: now, or since an earlier call.
    Done,
    /// It has no data key: what there is of it is plain, and nothing was done.
    NeverSealed,
    /// The run is live: its worker would write what nobody can read.
    Live,
    /// There is no such run.
    NotFound,
}
