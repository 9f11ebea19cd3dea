//! Requests of people, and the store's own keys.

use async_trait::async_trait;

use crate::{
    EndedRun, ForgottenPurges, NamespaceAdoption, NewMessage, Prune, Purge, PurgeScope, PurgeStep, Result,
    Rewrapped, RunId, Sent, Shred, Shredded,
};

/// What people request by hand, and the store's own keys.
#[async_trait]
pub trait Admin: Send + Sync + 'static {
    /// Stores a message to a run. Checks in this order: unknown run; duplicate, or conflict (the id was used before);
    /// finished; too many. Idempotent for the same message.
    async fn send_message(&self, message: &NewMessage) -> Result<Sent>;

    /// Makes the runs of a namespace adoptable after the namespace was re-created with another UID: changes the
    /// tenant of every row. The audit records who requested it, and why. Returns the number of rows. They are changed
    /// in pages: if a page fails, those before it stay changed, and the same call continues.
    async fn adopt_namespace(&self, adoption: &NamespaceAdoption) -> Result<u64>;

    /// Deletes the first rows of a run's audit, up to and including the given row, and records it in the next one.
    /// Returns the number of deleted rows; 0 if the run does not have the given row.
    ///
    /// Nothing is deleted if the run's calls are not those of its audit ([`crate::Error::Corrupt`]). On PostgreSQL,
    /// only the role that owns the tables may prune ([`crate::Error::Unusable`]). The caller must check that an anchor
    /// names the given row, and that no deleted row is still needed ([`crate::audit::first_needed`]).
    async fn prune_audit(&self, prune: &Prune) -> Result<u64>;

    /// Requests that the store keeps anchors from this number on only: marks runs that no later anchor names as moved,
    /// so that the next anchors name them again and then announce it. Returns the number of these runs.
    async fn request_anchors_from(&self, first: i64) -> Result<u64>;

    /// Deletes some of the anchors below this number, the first of them first, with their leaves. Returns the number of
    /// deleted anchors; 0 if none is left. On PostgreSQL, only the role that owns the tables may
    /// ([`crate::Error::Unusable`]). The caller must check that an anchor outside of the store announces it.
    async fn prune_anchors(&self, below: i64) -> Result<u64>;

    /// Lists runs that may be purged, the earliest end first. An empty page is the end.
    async fn runs_to_purge(&self, scope: &PurgeScope, after: EndedRun) -> Result<Vec<EndedRun>>;

    /// One step of deleting a run from the store: records the purge, or deletes at most `rows` rows. Safe to repeat:
    /// a purge that was interrupted continues with the rows that are left. On PostgreSQL, only the role that owns the
    /// tables may purge ([`crate::Error::Unusable`]).
    async fn purge(&self, purge: &Purge, rows: u32) -> Result<PurgeStep>;

    /// Deletes purge records of runs that no anchor of the store names any more: looks at a page of them, those of runs
    /// after `after`. On PostgreSQL, only the role that owns the tables may ([`crate::Error::Unusable`]).
    async fn forget_purges(&self, after: RunId) -> Result<ForgottenPurges>;

    /// The store's own signing key, a PKCS#8 document. If the store has none yet, `fresh` becomes its key. Anybody
    /// who can read the whole database can read this key; keep the key in a file to separate the two.
    async fn signing_key(&self, fresh: &[u8]) -> Result<Vec<u8>>;

    /// Wraps every data key that is wrapped with another key with the current one. No payload is changed.
    async fn rewrap_keys(&self) -> Result<Rewrapped>;

    /// Deletes the data key of a run that is over. Its sealed payloads become unreadable for everybody, and the audit
    /// records it. Plain payloads are not changed. Idempotent. A process that has read the key before may use it for
    /// up to one more minute.
    async fn shred(&self, shred: &Shred) -> Result<Shredded>;
}
