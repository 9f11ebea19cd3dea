//! The embedded store: SQLite in a file or in memory, one process that writes.
//!
//! # Guarantees
//!
//! - WAL, `synchronous=FULL`: what was answered is on the disk ([`writer`]).
//! - One process serves: an exclusive lock on `<database>.lock`, held until the process ends. Any number may read, and
//!   a person's short write may go beside it: nothing is remembered between two requests.
//!
//! # Assumptions
//!
//! - The file is on a local file system; a network file system's locks and syncs cannot be trusted.
//!
//! # Caveats
//!
//! - The clock is that of the process ([`clock`]).

mod anchors;
mod attach;
mod audit;
mod boundary;
mod branch;
mod by_size;
mod calls;
mod clock;
mod columns;
mod commit;
mod create;
mod data_keys;
mod events;
mod judge;
mod links;
mod lock;
mod namespace;
mod old;
mod open_calls;
mod prune;
mod pulse;
mod read;
mod reading;
mod records;
mod retention;
mod revisions;
mod row;
mod schema;
mod snapshot;
mod store;
#[cfg(test)]
mod tests;
mod transitions;
mod writer;
mod writes;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};
use sqlx::{ConnectOptions as _, Connection as _, SqliteConnection, SqlitePool};
use uuid::Uuid;

use crate::db_error::{DbError, DbResult};
use crate::keys::{KeyProvider, Keys};
use crate::{Error, Result};
use clock::Clock;
use lock::Lock;
use writer::{Doing, Durability, Writer};

/// Longer than any call takes on a disk that works.
const DEADLINE: Duration = Duration::from_secs(10);

/// Connections that read.
const READERS: u32 = 4;

/// A store in SQLite.
#[derive(Debug)]
pub struct Sqlite {
    id: Uuid,
    clock: Arc<Clock>,
    /// `None`: opened for reading only.
    writer: Option<Writer>,
    /// `None`: in memory, where the writer's connection is the only one.
    readers: Option<SqlitePool>,
    keys: Arc<Keys>,
}

impl Sqlite {
    /// Opens the database for writing and locks it. It must be migrated. What was before is a gap, however short: every
    /// worker has lost its connection.
    pub async fn open(path: &Path) -> Result<Self> {
        let lock = Lock::take(path)?;
        let mut conn = connect(&file(path).create_if_missing(false), path).await?;
        schema::check(&mut conn).await?;
        let (id, clock) = facts(&mut conn).await?;
        attach::begin_to_serve(&mut conn, clock.now())
            .await
            .map_err(|fault| fault.with_context("beginning to serve"))?;
        let readers = readers(path);
        let writer = Writer::start(conn, Arc::clone(&clock), Some(lock));
        Ok(Self { id, clock, writer: Some(writer), readers: Some(readers), keys: Arc::default() })
    }

    /// Opens the database for reading, also while another process writes.
    pub async fn open_read_only(path: &Path) -> Result<Self> {
        let mut conn = connect(&SqliteConnectOptions::new().filename(path).read_only(true), path).await?;
        schema::check(&mut conn).await?;
        let (id, clock) = facts(&mut conn).await?;
        Ok(Self { id, clock, writer: None, readers: Some(readers(path)), keys: Arc::default() })
    }

    /// Opens the database for a short write beside the process that holds the lock: SQLite's own locking puts the two
    /// in order, and nothing is remembered between two requests.
    pub async fn open_beside(path: &Path) -> Result<Self> {
        let mut conn = connect(&file(path).create_if_missing(false), path).await?;
        schema::check(&mut conn).await?;
        let (id, clock) = facts(&mut conn).await?;
        let writer = Writer::start(conn, Arc::clone(&clock), None);
        Ok(Self { id, clock, writer: Some(writer), readers: Some(readers(path)), keys: Arc::default() })
    }

    /// A new store in memory, gone when it is dropped.
    pub async fn memory() -> Result<Self> {
        let path = Path::new(":memory:");
        let mut conn = connect(&SqliteConnectOptions::new().in_memory(true).foreign_keys(true), path).await?;
        schema::migrate(&mut conn).await?;
        let (id, clock) = facts(&mut conn).await?;
        let writer = Writer::start(conn, Arc::clone(&clock), None);
        Ok(Self { id, clock, writer: Some(writer), readers: None, keys: Arc::default() })
    }

    /// With keys: payloads are sealed from now on, each run's under a data key that these wrap.
    pub fn sealed_by(self, keys: Option<Arc<dyn KeyProvider>>) -> Self {
        Self { keys: Arc::new(Keys::of(keys)), ..self }
    }

    /// Brings the schema of the database up to this binary's, under the lock. Makes the database if there is none.
    pub async fn migrate(path: &Path) -> Result<()> {
        let _lock = Lock::take(path)?;
        let mut conn = connect(&file(path).create_if_missing(true), path).await?;
        schema::migrate(&mut conn).await?;
        conn.close().await.map_err(|error| unfit(path, error))
    }

    /// Finishes what was handed in, closes the database and lets the lock go.
    pub async fn close(&self) {
        if let Some(readers) = &self.readers {
            readers.close().await;
        }
        if let Some(writer) = &self.writer {
            writer.close().await;
        }
    }

    /// Does a piece of work that must last.
    async fn write<T, F>(&self, doing: &'static str, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: for<'c> FnOnce(&'c mut SqliteConnection, i64) -> Doing<'c, T> + Send + 'static,
    {
        self.submit(Durability::Lasting, doing, work).await
    }

    /// Does a piece of work that a power cut may take back.
    async fn write_passing<T, F>(&self, doing: &'static str, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: for<'c> FnOnce(&'c mut SqliteConnection, i64) -> Doing<'c, T> + Send + 'static,
    {
        self.submit(Durability::Passing, doing, work).await
    }

    async fn submit<T, F>(&self, durability: Durability, doing: &'static str, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: for<'c> FnOnce(&'c mut SqliteConnection, i64) -> Doing<'c, T> + Send + 'static,
    {
        in_time(doing, self.writer()?.submit(durability, work)).await
    }

    fn writer(&self) -> Result<&Writer> {
        self.writer.as_ref().ok_or_else(|| Error::Unfit("it was opened for reading only".into()))
    }
}

/// Does pieces of work that read.
trait Reads: Sync {
    fn read<T, F>(&self, doing: &'static str, work: F) -> impl Future<Output = Result<T>> + Send
    where
        T: Send + 'static,
        F: for<'c> FnOnce(&'c mut SqliteConnection, i64) -> Doing<'c, T> + Send + 'static;
}

impl Reads for Sqlite {
    /// All of it from one snapshot.
    async fn read<T, F>(&self, doing: &'static str, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: for<'c> FnOnce(&'c mut SqliteConnection, i64) -> Doing<'c, T> + Send + 'static,
    {
        let Some(readers) = &self.readers else {
            return self.submit(Durability::Passing, doing, work).await;
        };
        let snapshot = async {
            let mut transaction = readers.begin().await?;
            // The snapshot is taken by the first read, after the clock is: no change is older than an answer's `now`
            // and yet not in it.
            let answer = work(&mut transaction, self.clock.now()).await;
            transaction.rollback().await?;
            answer
        };
        in_time(doing, snapshot).await
    }
}

async fn in_time<T>(doing: &'static str, work: impl Future<Output = DbResult<T>>) -> Result<T> {
    match tokio::time::timeout(DEADLINE, work).await {
        Ok(done) => done.map_err(|fault| fault.with_context(doing)),
        Err(elapsed) => Err(DbError::unavailable(elapsed).with_context(doing)),
    }
}

fn file(path: &Path) -> SqliteConnectOptions {
    SqliteConnectOptions::new()
        .filename(path)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .foreign_keys(true)
        .busy_timeout(DEADLINE)
}

fn readers(path: &Path) -> SqlitePool {
    SqlitePoolOptions::new()
        .max_connections(READERS)
        .test_before_acquire(false)
        .acquire_timeout(DEADLINE)
        .connect_lazy_with(SqliteConnectOptions::new().filename(path).read_only(true).busy_timeout(DEADLINE))
}

async fn connect(options: &SqliteConnectOptions, path: &Path) -> Result<SqliteConnection> {
    options.connect().await.map_err(|error| unfit(path, error))
}

fn unfit(path: &Path, error: sqlx::Error) -> Error {
    Error::Unfit(format!("cannot open the database {}: {error}", path.display()))
}

/// The store's id, and a clock that is not behind it.
async fn facts(conn: &mut SqliteConnection) -> Result<(Uuid, Arc<Clock>)> {
    let row = read::store_row(conn).await.map_err(|fault| fault.with_context("opening the store"))?;
    Ok((row.id, Arc::new(Clock::at_least(row.latest()))))
}
