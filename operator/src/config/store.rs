//! The store that the flags name, and its encryption keys.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use dalsegno_model::Store;
use dalsegno_store::ServedStore;
use dalsegno_store::keys::{KeyProvider, MountedKeys};
use dalsegno_store::{ConnectionOptions, StoreMetrics};

use super::values::duration;

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

/// Connections to PostgreSQL. The embedded store has none.
#[derive(Clone, Debug, Args)]
pub struct ConnectionArgs {
    /// PostgreSQL: most connections for statements. A process opens up to 3 more, and those for reads. At least 4.
    #[arg(long, env = "DALSEGNO_DATABASE_MAX_CONNECTIONS", default_value_t = 16, value_name = "NUMBER",
          value_parser = clap::value_parser!(u16).range(4..))]
    pub database_max_connections: u16,
    /// PostgreSQL: most connections for exports and verifications, each of which keeps one until it ends.
    #[arg(long, env = "DALSEGNO_DATABASE_MAX_READ_CONNECTIONS", default_value_t = 4, value_name = "NUMBER",
          value_parser = clap::value_parser!(u16).range(1..))]
    pub database_max_read_connections: u16,
    /// PostgreSQL: longest time that the server works on a statement. The calls of workers give up after 8 seconds.
    #[arg(long, env = "DALSEGNO_DATABASE_STATEMENT_TIMEOUT", default_value = "5s", value_name = "DURATION",
          value_parser = duration)]
    pub database_statement_timeout: Duration,
    /// PostgreSQL: age at which a connection is replaced.
    #[arg(long, env = "DALSEGNO_DATABASE_CONNECTION_LIFETIME", default_value = "30m", value_name = "DURATION",
          value_parser = duration)]
    pub database_connection_lifetime: Duration,
}

impl ConnectionArgs {
    /// The options of a process. `part`: its name among the server's connections.
    pub fn options(&self, part: &str, metrics: StoreMetrics) -> ConnectionOptions {
        ConnectionOptions {
            application_name: format!("dalsegno-{part}"),
            max_connections: self.database_max_connections,
            max_read_connections: self.database_max_read_connections,
            statement_timeout: self.database_statement_timeout,
            connection_lifetime: self.database_connection_lifetime,
            metrics,
        }
    }
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
    pub async fn open_to_serve(&self, options: &ConnectionOptions) -> anyhow::Result<ServedStore> {
        let store = dalsegno_store::open_to_serve(self.url(), self.keys()?, options);
        store.await.context("opening the store")
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
