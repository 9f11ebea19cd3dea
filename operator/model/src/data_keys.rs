//! Data keys: deleting one makes its run unreadable; all of them can be wrapped with a new key. Also the keys of the
//! digests of sealed payloads, which `dalsegno_format::seal` derives from data keys.

use crate::{Error, RunId};

/// A request to delete a run's data key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shred {
    /// The run.
    pub run: RunId,
    /// Who requested it, for the audit.
    pub actor: String,
    /// Why, for the audit.
    pub reason: String,
}

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

/// The key of the digests of one boundary's payloads, of one call, or of one message.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct DigestKey(pub [u8; 32]);

/// Shows nothing of the key.
impl std::fmt::Debug for DigestKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("DigestKey")
    }
}

/// How the digests of a call's key, arguments and result in the audit are computed, or that of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallDigests {
    /// SHA-256: the run has no data key.
    Plain,
    /// With the own key of the call or message. What was written before the run had a data key has a plain digest.
    Keyed(DigestKey),
    /// They cannot be computed any more: the run's data key was deleted.
    Lost,
}
