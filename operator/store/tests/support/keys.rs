//! Wrapping keys for tests.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use dalsegno_format::seal::DataKey;
use dalsegno_model::{Result, RunId};
use dalsegno_store::keys::{KeyProvider, MountedKeys, Wrapped};
use tempfile::TempDir;

/// A folder with the wrapping key `k1`.
pub fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    put(&folder, "k1", 1);
    folder
}

/// Writes a key file, replacing an existing one.
pub fn put(folder: &TempDir, id: &str, byte: u8) {
    std::fs::write(folder.path().join(id), STANDARD.encode([byte; 32])).unwrap();
}

/// The keys of a folder, as a store takes them.
pub fn shared(folder: &TempDir) -> Option<Arc<dyn KeyProvider>> {
    Some(Arc::new(MountedKeys::open(folder.path()).unwrap()))
}

/// Keys whose data keys are of the first format, which seals no texts.
#[allow(dead_code, reason = "not every test has runs of an earlier version")]
pub struct FirstFormat(pub Arc<dyn KeyProvider>);

#[async_trait::async_trait]
impl KeyProvider for FirstFormat {
    async fn current(&self) -> Result<String> {
        self.0.current().await
    }

    async fn wrap(&self, run: RunId, data_key: &DataKey) -> Result<Wrapped> {
        self.0.wrap(run, &DataKey { seals_texts: false, ..*data_key }).await
    }

    async fn unwrap(&self, run: RunId, wrapped: &Wrapped) -> Result<DataKey> {
        self.0.unwrap(run, wrapped).await
    }
}
