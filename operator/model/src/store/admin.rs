//! What a person asks of the store, and the keys of the store itself.

use async_trait::async_trait;

use crate::{Prune, Result, Rewrapped, RunId, Shredded};

/// What a person asks for by hand, and the store's own keys.
#[async_trait]
pub trait Admin: Send + Sync + 'static {
    /// Makes runs of a namespace that was re-created under another UID adoptable: moves every row of tenant `old` to
    /// `new`, audited with `actor` and `reason`. Returns how many.
    async fn adopt_namespace(&self, old: &str, new: &str, actor: &str, reason: &str) -> Result<u64>;

    /// Drops the start of a run's audit, up to and with the row that is named, and says so in the next one. How many rows
    /// went; 0: the run has no such row. Nothing goes of a run whose calls are not those that its rows tell of
    /// ([`crate::Error::Corrupt`]). PostgreSQL: only the role that owns the tables may ([`crate::Error::Unfit`]). Whether an
    /// anchor names that row, and whether nobody needs those before ([`crate::audit::first_needed`]), is the caller's to know.
    async fn prune_audit(&self, prune: &Prune) -> Result<u64>;

    /// The store's own signing key, a PKCS#8 document: `fresh`, if it has none yet. Whoever can read the whole database
    /// can read it; a key in a file keeps it apart.
    async fn signing_key(&self, fresh: &[u8]) -> Result<Vec<u8>>;

    /// Wraps by the current key every data key that another one wraps; no payload is touched.
    async fn rewrap_keys(&self) -> Result<Rewrapped>;

    /// Deletes the data key of a run that is over: nobody can read its sealed payloads any more, and the audit says so. Of
    /// those that are plain it touches none. Idempotent. A process that has looked the key up may read for another minute.
    async fn shred(&self, run: RunId, reason: &str, actor: &str) -> Result<Shredded>;
}
