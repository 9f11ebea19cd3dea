//! The store that flags name, with the keys that they name.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use clap::Args;
use dalsegno_store::Store;
use dalsegno_store::keys::{KeyProvider, MountedKeys};

/// Where the store is.
#[derive(Clone, Debug, Args)]
pub struct DatabaseArgs {
    /// `postgres://…` or `sqlite:///path/to/file.db`.
    #[arg(long, env = "DALSEGNO_DATABASE_URL", hide_env_values = true)]
    pub database_url: String,
}

/// The store, and what its payloads are sealed by.
#[derive(Clone, Debug, Args)]
pub struct StoreArgs {
    /// Where it is.
    #[command(flatten)]
    pub database: DatabaseArgs,
    /// What its payloads are sealed by.
    #[command(flatten)]
    pub encryption: EncryptionArgs,
}

/// What payloads are sealed by.
#[derive(Clone, Debug, Args)]
pub struct EncryptionArgs {
    /// Folder of the keys by which the payloads of runs are encrypted: a file for each, named by its id, with 32 bytes in
    /// base64; where there are several, the file `current` holds the id of the one to use. Unset: payloads stay plain.
    #[arg(long, env = "DALSEGNO_ENCRYPTION_KEYS", value_name = "FOLDER")]
    pub encryption_keys: Option<PathBuf>,
}

impl StoreArgs {
    /// To serve it: a SQLite file is locked.
    pub async fn open(&self) -> anyhow::Result<Arc<dyn Store>> {
        dalsegno_store::open(self.url(), self.keys()?).await.context("opening the store")
    }

    /// For a look.
    pub async fn open_read_only(&self) -> anyhow::Result<Arc<dyn Store>> {
        dalsegno_store::open_read_only(self.url(), self.keys()?).await.context("opening the store")
    }

    /// For one person's short write.
    pub async fn open_beside(&self) -> anyhow::Result<Arc<dyn Store>> {
        dalsegno_store::open_beside(self.url(), self.keys()?).await.context("opening the store")
    }

    /// The URL that names it.
    pub fn url(&self) -> &str {
        &self.database.database_url
    }

    fn keys(&self) -> anyhow::Result<Option<Arc<dyn KeyProvider>>> {
        let Some(folder) = &self.encryption.encryption_keys else { return Ok(None) };
        let keys = MountedKeys::open(folder).context("reading the encryption keys")?;
        Ok(Some(Arc::new(keys)))
    }
}
