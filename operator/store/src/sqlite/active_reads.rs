//! Reads under way. A read holds a snapshot of the database, and the write-ahead log cannot shrink behind it. So a read
//! can be ended from outside, and it ends when its caller is dropped.

use std::path::PathBuf;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex as StdMutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use sqlx::{Sqlite as Db, SqliteConnection, SqlitePool, Transaction};
use tokio::sync::Mutex;

use crate::db_error::{DbError, DbResult};

/// A future that borrows a connection.
pub(super) type BoxFuture<'c, T> = Pin<Box<dyn Future<Output = T> + Send + 'c>>;

/// Instructions of SQLite between two looks at whether a read is to end; they take some microseconds.
const INSTRUCTIONS: i32 = 1_000;

/// Reads that are younger than this are not ended: they will be over soon.
pub(super) const SHORT_READ: Duration = Duration::from_secs(1);

/// The same, if the volume is full or the log grows fast.
pub(super) const SHORTEST_READ: Duration = Duration::from_millis(100);

/// How often a process that does not write looks at the size of the write-ahead log.
const WATCH_INTERVAL: Duration = Duration::from_millis(250);

/// All reads under way of a store.
#[derive(Debug, Default)]
pub(super) struct ActiveReads {
    reads: StdMutex<Vec<Weak<Snapshot>>>,
    interrupted: AtomicU64,
}

/// A read transaction.
#[derive(Debug)]
struct Snapshot {
    began: Instant,
    /// Once set, SQLite interrupts the query under way.
    is_ended: Arc<AtomicBool>,
    /// `None`: it was ended.
    transaction: Mutex<Option<Transaction<'static, Db>>>,
}

/// A read under way. It ends when this is dropped.
#[derive(Debug)]
pub(super) struct ActiveRead(Arc<Snapshot>);

impl ActiveReads {
    /// Begins a read. Its first query takes the snapshot that all its queries see.
    pub async fn begin(&self, pool: &SqlitePool) -> DbResult<ActiveRead> {
        let mut transaction = pool.begin().await?;
        let is_ended = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&is_ended);
        let mut handle = transaction.lock_handle().await?;
        handle.set_progress_handler(INSTRUCTIONS, move || !ended.load(Ordering::Relaxed));
        drop(handle);
        let transaction = Mutex::new(Some(transaction));
        let snapshot = Arc::new(Snapshot { began: Instant::now(), is_ended, transaction });
        let mut reads = self.reads.lock().unwrap_or_else(PoisonError::into_inner);
        reads.retain(|read| read.strong_count() > 0);
        reads.push(Arc::downgrade(&snapshot));
        Ok(ActiveRead(snapshot))
    }

    /// Ends all reads that began at least `age` ago. Their callers get an error.
    pub fn end_older_than(&self, age: Duration) {
        let reads = self.reads.lock().unwrap_or_else(PoisonError::into_inner);
        let old = reads.iter().filter_map(Weak::upgrade).filter(|read| read.began.elapsed() >= age);
        for read in old {
            if read.is_ended.swap(true, Ordering::Relaxed) {
                continue;
            }
            self.interrupted.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(
                seconds = read.began.elapsed().as_secs(),
                "a long read was ended, because it kept the write-ahead log from shrinking"
            );
            // Waits for the query under way, which is interrupted. Dropping the transaction rolls it back.
            tokio::spawn(async move { drop(read.transaction.lock().await.take()) });
        }
    }

    /// Reads that were ended from outside.
    pub fn interrupted(&self) -> u64 {
        self.interrupted.load(Ordering::Relaxed)
    }
}

impl ActiveRead {
    /// Runs queries in the read.
    pub async fn run<T, F>(&self, work: F) -> DbResult<T>
    where
        F: for<'c> FnOnce(&'c mut SqliteConnection) -> BoxFuture<'c, DbResult<T>>,
    {
        let mut transaction = self.0.transaction.lock().await;
        let Some(transaction) = transaction.as_mut() else { return Err(ended()) };
        let result = work(transaction).await;
        if result.is_err() && self.0.is_ended.load(Ordering::Relaxed) { Err(ended()) } else { result }
    }

    /// Ends the read, and waits for it.
    pub async fn finish(self) -> DbResult<()> {
        match self.0.transaction.lock().await.take() {
            Some(transaction) => Ok(transaction.rollback().await?),
            None => Ok(()),
        }
    }
}

impl Drop for ActiveRead {
    /// Interrupts the query under way: its caller is gone.
    fn drop(&mut self) {
        self.0.is_ended.store(true, Ordering::Relaxed);
    }
}

fn ended() -> DbError {
    DbError::unavailable(
        "the read was ended, because it kept the write-ahead log of the database from shrinking; \
         repeat it when fewer turns are committed, or read a backup",
    )
}

/// Ends long reads of this process when the write-ahead log grows beyond `bound`, until `reads` is dropped. For a
/// process that only reads: the process that writes looks after each write. A log that does not grow is left alone: it
/// may be that of a copy, which nobody writes to.
pub(super) async fn watch_wal(reads: Weak<ActiveReads>, wal: PathBuf, bound: u64) {
    let size = || std::fs::metadata(&wal).map_or(0, |wal| wal.len());
    let bound = bound.max(size());
    loop {
        tokio::time::sleep(WATCH_INTERVAL).await;
        let Some(reads) = reads.upgrade() else { return };
        if size() > bound {
            reads.end_older_than(SHORT_READ);
        }
    }
}
