//! The database's connections, and how an operation gets to one of them.

use std::path::Path;
use std::sync::Arc;

use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};
use sqlx::{ConnectOptions as _, Connection as _, SqliteConnection, SqlitePool};
use uuid::Uuid;

use super::active_reads::{ActiveRead, ActiveReads, BoxFuture, watch_wal};
use super::clock::Clock;
use super::disk::{Disk, Room};
use super::files::wal_path;
use super::lock::Lock;
use super::serving::Serving;
use super::volume::{self, TIMEOUT, Volume};
use super::writer::{Durability, Writer};
use super::{backup, heartbeats, read, schema, wal_rewrite};
use crate::db_error::{DbError, DbResult};
use crate::keys::{KeyProvider, Keys};
use dalsegno_model::{Error, Result};

/// Connections for single queries.
const READERS: u32 = 4;

/// Connections for long reads, such as exports. They have connections of their own, so that the others never wait for
/// them.
const LONG_READERS: u32 = 4;

/// A store in SQLite.
#[derive(Debug)]
pub struct Sqlite {
    pub(super) id: Uuid,
    clock: Arc<Clock>,
    /// `None`: the database is open for reading only.
    pub(super) writer: Option<Writer>,
    /// `None`: the database is in memory, where the writer's connection is the only one.
    pub(super) readers: Option<Readers>,
    /// `None`: another process serves the store, or it is in memory.
    disk: Option<Arc<Disk>>,
    pub(super) keys: Arc<Keys>,
    /// Names this process in its heartbeats as a gateway.
    pub(super) gateway: Uuid,
}

/// The connections for reading.
#[derive(Debug)]
pub(super) struct Readers {
    short: SqlitePool,
    long: SqlitePool,
    active: Arc<ActiveReads>,
}

impl Readers {
    fn new(path: &Path) -> Self {
        let options = || SqliteConnectOptions::new().filename(path).read_only(true).busy_timeout(TIMEOUT);
        let pool = |connections| {
            SqlitePoolOptions::new()
                .max_connections(connections)
                .test_before_acquire(false)
                .acquire_timeout(TIMEOUT)
                .connect_lazy_with(options())
        };
        Self { short: pool(READERS), long: pool(LONG_READERS), active: Arc::default() }
    }

    /// The connections of a process that does not serve the store. It ends its own long reads while the write-ahead log
    /// is too large.
    fn watched(path: &Path) -> Result<Self> {
        let readers = Self::new(path);
        let bound = volume::limits_of(path)?.wal_bound();
        tokio::spawn(watch_wal(Arc::downgrade(&readers.active), wal_path(path), bound));
        Ok(readers)
    }

    /// Begins a read that may take long.
    pub async fn begin_long(&self) -> DbResult<ActiveRead> {
        self.active.begin(&self.long).await
    }

    async fn close(&self) {
        self.short.close().await;
        self.long.close().await;
    }
}

impl Sqlite {
    /// Opens the database for writing and locks it. The schema must be this binary's. The time before counts as an
    /// outage of the gateways, however short it was: every worker has lost its connection.
    pub async fn open(path: &Path) -> Result<Self> {
        let lock = lock_and_prepare(path)?;
        // A log that was longer is cut to this size when it begins anew.
        let log_bytes = volume::limits_of(path)?.checkpoint_at().to_string();
        let options = file(path).create_if_missing(false).pragma("journal_size_limit", log_bytes);
        let mut conn = connect(&options, path).await?;
        check_schema(&mut conn, path).await?;
        let (id, clock) = id_and_clock(&mut conn).await?;
        volume::begin_new_log(&mut conn).await.map_err(|fault| fault.with_context("copying the log"))?;
        heartbeats::begin_serving(&mut conn, clock.now())
            .await
            .map_err(|fault| fault.with_context("beginning to serve"))?;
        let readers = Readers::new(path);
        let disk = Arc::new(Disk::new(Arc::clone(&readers.active)));
        let volume = Volume::new(path, Arc::clone(&disk), Arc::clone(&readers.active));
        let writer = Writer::start(conn, Arc::clone(&clock), Some(Serving { lock, volume }));
        let readers = Some(readers);
        Ok(Self {
            id,
            clock,
            writer: Some(writer),
            readers,
            disk: Some(disk),
            keys: Arc::default(),
            gateway: Uuid::new_v4(),
        })
    }

    /// Opens the database for reading. Another process may write at the same time.
    pub async fn open_read_only(path: &Path) -> Result<Self> {
        let mut conn = connect(&SqliteConnectOptions::new().filename(path).read_only(true), path).await?;
        check_schema(&mut conn, path).await?;
        let (id, clock) = id_and_clock(&mut conn).await?;
        let readers = Some(Readers::watched(path)?);
        Ok(Self {
            id,
            clock,
            writer: None,
            readers,
            disk: None,
            keys: Arc::default(),
            gateway: Uuid::new_v4(),
        })
    }

    /// Opens the database for a short write while another process holds the lock. SQLite's own locking serializes the
    /// two, and neither caches anything between two requests.
    pub async fn open_beside(path: &Path) -> Result<Self> {
        let mut conn = connect(&file(path).create_if_missing(false), path).await?;
        check_schema(&mut conn, path).await?;
        let (id, clock) = id_and_clock(&mut conn).await?;
        let writer = Writer::start(conn, Arc::clone(&clock), None);
        let readers = Some(Readers::watched(path)?);
        Ok(Self {
            id,
            clock,
            writer: Some(writer),
            readers,
            disk: None,
            keys: Arc::default(),
            gateway: Uuid::new_v4(),
        })
    }

    /// Creates a store in memory. It ends when it is dropped.
    pub async fn memory() -> Result<Self> {
        let path = Path::new(":memory:");
        let mut conn = connect(&SqliteConnectOptions::new().in_memory(true).foreign_keys(true), path).await?;
        schema::migrate(&mut conn).await?;
        let (id, clock) = id_and_clock(&mut conn).await?;
        let writer = Writer::start(conn, Arc::clone(&clock), None);
        Ok(Self {
            id,
            clock,
            writer: Some(writer),
            readers: None,
            disk: None,
            keys: Arc::default(),
            gateway: Uuid::new_v4(),
        })
    }

    /// Returns the same store with these keys. From now on it encrypts payloads: those of each run with a data key that
    /// these keys wrap.
    pub fn sealed_by(self, keys: Option<Arc<dyn KeyProvider>>) -> Self {
        Self { keys: Arc::new(Keys::of(keys)), ..self }
    }

    /// Migrates the schema to this binary's, under the lock. Creates the database if there is none, and copies an existing
    /// one first, if it is not large and there is room.
    pub async fn migrate(path: &Path) -> Result<()> {
        let _lock = lock_and_prepare(path)?;
        let mut conn = connect(&file(path).create_if_missing(true), path).await?;
        if let Some(schema) = schema::outdated(&mut conn).await? {
            backup::before_migration(&mut conn, path, schema).await?;
        }
        schema::migrate(&mut conn).await?;
        conn.close().await.map_err(|error| unusable(path, error))
    }

    /// The volume of the database, if this process serves it.
    pub fn disk(&self) -> Option<Arc<Disk>> {
        self.disk.clone()
    }

    /// The room on the volume for new data of workers.
    pub(super) fn room(&self) -> Room {
        Room::of(self.disk.clone())
    }

    /// Completes all submitted writes, closes the database and releases the lock.
    pub async fn close(&self) {
        if let Some(readers) = &self.readers {
            readers.close().await;
        }
        if let Some(writer) = &self.writer {
            writer.close().await;
        }
    }

    /// Performs a write and waits for the sync of its commit.
    pub(super) async fn write<T, F>(&self, operation: &'static str, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: for<'c> FnOnce(&'c mut SqliteConnection, i64) -> BoxFuture<'c, DbResult<T>> + Send + 'static,
    {
        self.submit(Durability::Synced, operation, work).await
    }

    /// Performs a write that a power failure may undo.
    pub(super) async fn write_unsynced<T, F>(&self, operation: &'static str, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: for<'c> FnOnce(&'c mut SqliteConnection, i64) -> BoxFuture<'c, DbResult<T>> + Send + 'static,
    {
        self.submit(Durability::Unsynced, operation, work).await
    }

    /// Performs a write. `work` gets the writer's connection and the store's time in milliseconds.
    pub(super) async fn submit<T, F>(
        &self,
        durability: Durability,
        operation: &'static str,
        work: F,
    ) -> Result<T>
    where
        T: Send + 'static,
        F: for<'c> FnOnce(&'c mut SqliteConnection, i64) -> BoxFuture<'c, DbResult<T>> + Send + 'static,
    {
        with_timeout(operation, self.writer()?.submit(durability, work)).await
    }

    pub(super) fn writer(&self) -> Result<&Writer> {
        self.writer.as_ref().ok_or_else(|| Error::Unusable("it was opened for reading only".into()))
    }
}

/// Runs queries.
pub(super) trait QueryExecutor: Sync {
    /// Runs a query. `work` gets a connection and the store's time in milliseconds.
    fn read<T, F>(&self, operation: &'static str, work: F) -> impl Future<Output = Result<T>> + Send
    where
        T: Send + 'static,
        F: for<'c> FnOnce(&'c mut SqliteConnection, i64) -> BoxFuture<'c, DbResult<T>> + Send + 'static;
}

impl QueryExecutor for Sqlite {
    /// All statements of `work` see the same snapshot of the database.
    async fn read<T, F>(&self, operation: &'static str, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: for<'c> FnOnce(&'c mut SqliteConnection, i64) -> BoxFuture<'c, DbResult<T>> + Send + 'static,
    {
        let Some(readers) = &self.readers else {
            return self.submit(Durability::Unsynced, operation, work).await;
        };
        let query = async {
            let read = readers.active.begin(&readers.short).await?;
            // The first read takes the snapshot, and the clock is read before it. So the snapshot holds every change
            // that is older than the time that `work` gets.
            let now = self.clock.now();
            let result = read.run(move |conn| work(conn, now)).await;
            read.finish().await?;
            result
        };
        with_timeout(operation, query).await
    }
}

/// Waits for an operation, at most [`TIMEOUT`]. An error names the operation.
pub(super) async fn with_timeout<T>(
    operation: &'static str,
    work: impl Future<Output = DbResult<T>>,
) -> Result<T> {
    match tokio::time::timeout(TIMEOUT, work).await {
        Ok(done) => done.map_err(|fault| fault.with_context(operation)),
        Err(elapsed) => Err(DbError::unavailable(elapsed).with_context(operation)),
    }
}

fn file(path: &Path) -> SqliteConnectOptions {
    SqliteConnectOptions::new()
        .filename(path)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .foreign_keys(true)
        .busy_timeout(TIMEOUT)
        // The writer copies the log itself, and sees each error of it: see `volume`.
        .pragma("wal_autocheckpoint", "0")
}

/// Takes the lock, and makes the volume and the log ready for SQLite.
fn lock_and_prepare(path: &Path) -> Result<Lock> {
    let lock = Lock::take(path)?;
    volume::make_room_to_open(path)?;
    wal_rewrite::rewrite(path)?;
    Ok(lock)
}

async fn connect(options: &SqliteConnectOptions, path: &Path) -> Result<SqliteConnection> {
    options.connect().await.map_err(|error| unusable(path, error))
}

fn unusable(path: &Path, error: sqlx::Error) -> Error {
    Error::Unusable(match (path.exists(), path.is_dir()) {
        (false, _) => format!(
            "there is no file {}: the URL must be sqlite:// and the absolute path of the store's file, such as \
             sqlite:///home/ann/agent/.dalsegno/runs.db for `dalsegno dev` in the folder /home/ann/agent; a new store is \
             made by `dalsegno migrate`",
            path.display()
        ),
        (true, true) => format!(
            "{} is a folder: the URL must name the store's file, which `dalsegno dev` keeps in .dalsegno/runs.db",
            path.display()
        ),
        (true, false) => format!("cannot open the database {}: {error}", path.display()),
    })
}

/// Refuses a schema that this binary cannot use, and a file that is no database of this program.
async fn check_schema(conn: &mut SqliteConnection, path: &Path) -> Result<()> {
    schema::check(conn).await.map_err(|error| match error {
        Error::Unusable(why) => Error::Unusable(format!("{}: {why}", path.display())),
        other => other,
    })
}

/// Returns the store's id, and a clock that is not behind any time in the store.
async fn id_and_clock(conn: &mut SqliteConnection) -> Result<(Uuid, Arc<Clock>)> {
    let row = read::store_row(conn).await.map_err(|fault| fault.with_context("opening the store"))?;
    Ok((row.id, Arc::new(Clock::at_least(row.latest()))))
}
