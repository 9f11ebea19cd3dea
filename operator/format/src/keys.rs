//! Data keys: one for each run, kept wrapped by a key that the store never holds.

mod mounted;

use async_trait::async_trait;
use dalsegno_model::{Error, Result, RunId};

pub use mounted::MountedKeys;

use crate::seal::DataKey;

/// A data key as it is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrapped {
    /// Id of the key that wraps it.
    pub key_id: String,
    /// The data key, sealed by it.
    pub bytes: Vec<u8>,
}

/// Wraps data keys and unwraps them: keys that are mounted, or a key service.
#[async_trait]
pub trait KeyProvider: Send + Sync + 'static {
    /// Id of the key by which data keys are wrapped now.
    async fn current(&self) -> Result<String>;

    /// Wraps the data key of a run by the current key.
    async fn wrap(&self, run: RunId, data_key: &DataKey) -> Result<Wrapped>;

    /// The data key of a run.
    ///
    /// # Errors
    ///
    /// [`Error::Unfit`] where the key of this id is not there, or is another one than it was: no damage, and mended once
    /// the right one is there. [`Error::Corrupt`] where it is, and these bytes are not what it wrapped for this run.
    async fn unwrap(&self, run: RunId, wrapped: &Wrapped) -> Result<DataKey>;
}

/// Why a data key cannot be unwrapped, which concerns its run alone: it is damaged, or wrapped by a key that is not there.
pub fn fault(unwrapped: Result<()>) -> Result<Option<String>> {
    match unwrapped {
        Ok(()) => Ok(None),
        Err(Error::Corrupt { detail: why, .. } | Error::Unfit(why)) => Ok(Some(why)),
        Err(error) => Err(error),
    }
}

/// There are no keys, and what is asked for needs them.
pub fn no_keys() -> Error {
    Error::Unfit("there are no keys: name their folder with --encryption-keys".into())
}
