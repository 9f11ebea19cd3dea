//! Data keys: one per run, stored wrapped with a key that the store never has.

mod mounted;

use async_trait::async_trait;
use dalsegno_model::{Error, Result, RunId};

pub use mounted::MountedKeys;

use crate::seal::DataKey;

/// A data key as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrapped {
    /// Id of the wrapping key.
    pub key_id: String,
    /// The wrapped data key.
    pub bytes: Vec<u8>,
}

/// Wraps and unwraps data keys: with mounted keys, or with a key service.
#[async_trait]
pub trait KeyProvider: Send + Sync + 'static {
    /// Id of the key that wraps new data keys.
    async fn current(&self) -> Result<String>;

    /// Wraps a run's data key with the current key.
    async fn wrap(&self, run: RunId, data_key: &DataKey) -> Result<Wrapped>;

    /// Unwraps a run's data key.
    ///
    /// # Errors
    ///
    /// [`Error::Unusable`] if the key with this id is missing or has been replaced by another one. This is not damage,
    /// and is solved by restoring the right key. [`Error::Corrupt`] if the right key is there, and these bytes are
    /// not what it wrapped for this run.
    async fn unwrap(&self, run: RunId, wrapped: &Wrapped) -> Result<DataKey>;
}

/// Why a data key cannot be unwrapped: it is damaged, or wrapped with a key that is not mounted. Both affect only its
/// run. Any other failure is an error.
pub fn unwrap_failure(unwrapped: Result<()>) -> Result<Option<String>> {
    match unwrapped {
        Ok(()) => Ok(None),
        Err(Error::Corrupt { detail: why, .. } | Error::Unusable(why)) => Ok(Some(why)),
        Err(error) => Err(error),
    }
}

/// The error if keys are needed and none are mounted.
pub fn no_keys() -> Error {
    Error::Unusable("there are no keys: name their folder with --encryption-keys".into())
}
