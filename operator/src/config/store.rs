//! The store that the flags name, and its encryption keys.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use clap::Args;
use dalsegno_model::Store;
use dalsegno_store::ServedStore;
use dalsegno_store::keys::{KeyProvider, MountedKeys};

/// URL of the database.
#[derive(Clone, Debug, Args)]
pub struct DatabaseArgs {
    /// `postgres://…` or `sqlite:///path/to/file.db`.
    #[arg(long, env = "DALSEGNO_DATABASE_URL", hide_env_values = true)]
    pub database_url: String,
}

/// The store: its database, and the keys that encrypt its payloads.
#[derive(Clone, Debug, Args)]
pub struct StoreArgs {
    /// URL of the database.
    #[command(flatten)]
    pub database: DatabaseArgs,
    /// Keys of the payloads.
    #[command(flatten)]
    pub encryption: EncryptionArgs,
}

/// The keys that encrypt payloads.
#[derive(Clone, Debug, Args)]
pub struct EncryptionArgs {
    /// Folder of the keys that encrypt the payloads of runs. Each file is a key: its name is the key's id, its content 32
    /// bytes in base64. With several keys, the file `current` holds the id of the one to use. Unset: no encryption.
    #[arg(long, env = "DALSEGNO_ENCRYPTION_KEYS", value_name = "FOLDER")]
    pub encryption_keys: Option<PathBuf>,
}

impl StoreArgs {
    /// Opens the store for a server. A SQLite file is locked.
    pub async fn open_to_serve(&self) -> anyhow::Result<ServedStore> {
        dalsegno_store::open_to_serve(self.url(), self.keys()?).await.context("opening the store")
    }

    /// Opens the store for reading.
    pub async fn open_read_only(&self) -> anyhow::Result<Arc<dyn Store>> {
        dalsegno_store::open_read_only(self.url(), self.keys()?).await.context("opening the store")
    }

    /// Opens the store for one short write, next to a server that may hold the lock.
    pub async fn open_beside(&self) -> anyhow::Result<Arc<dyn Store>> {
        dalsegno_store::open_beside(self.url(), self.keys()?).await.context("opening the store")
    }

    /// URL of the database.
    pub fn url(&self) -> &str {
        &self.database.database_url
    }

    fn keys(&self) -> anyhow::Result<Option<Arc<dyn KeyProvider>>> {
        let Some(folder) = &self.encryption.encryption_keys else { return Ok(None) };
        let keys = MountedKeys::open(folder).context("reading the encryption keys")?;
        Ok(Some(Arc::new(keys)))
    }
}
