//! Wrapping keys for tests.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use dalsegno_store::keys::{KeyProvider, MountedKeys};
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
