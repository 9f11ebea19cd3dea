//! What the process around an embedded store knows of its volume, and whether the store has failed.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::watch;

use super::active_reads::ActiveReads;
use crate::db_error::{DbError, DbResult};

/// How full the volume of the embedded store is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DiskLevel {
    /// There is enough space.
    #[default]
    Ok,
    /// Less than a fifth of the volume is free. Everything still works.
    Filling,
    /// The store accepts no new data of workers. What ends runs or frees space is accepted.
    Full,
}

/// The volume of the embedded store, as last measured.
#[derive(Clone, Copy, Debug, Default)]
pub struct DiskStatus {
    /// How full it is.
    pub level: DiskLevel,
    /// Its size in bytes.
    pub total_bytes: u64,
    /// Its free bytes.
    pub free_bytes: u64,
    /// Bytes of the write-ahead log.
    pub wal_bytes: u64,
    /// Whether the reserve exists.
    pub has_reserve: bool,
    /// Long reads that were ended because they kept the write-ahead log from shrinking, since the start.
    pub interrupted_reads: u64,
}

/// The volume of the embedded store, for the process that serves the store.
#[derive(Debug)]
pub struct Disk {
    status: Mutex<DiskStatus>,
    is_full: AtomicBool,
    keeps_reserve: AtomicBool,
    failure: watch::Sender<Option<String>>,
    reads: Arc<ActiveReads>,
}

impl Disk {
    pub(super) fn new(reads: Arc<ActiveReads>) -> Self {
        Self {
            status: Mutex::default(),
            is_full: AtomicBool::new(false),
            keeps_reserve: AtomicBool::new(false),
            failure: watch::Sender::new(None),
            reads,
        }
    }

    /// The volume, as measured after the last write or within the last second.
    pub fn status(&self) -> DiskStatus {
        let status = *self.status.lock().unwrap_or_else(PoisonError::into_inner);
        DiskStatus { interrupted_reads: self.reads.interrupted(), ..status }
    }

    /// From now on the store keeps a reserve beside the database: a file that is deleted when the volume is full.
    pub fn keep_reserve(&self) {
        self.keeps_reserve.store(true, Ordering::Relaxed);
    }

    /// Why the store has failed: the operating system reported an error of the volume. What was written last may be
    /// lost at the next power failure, so the store accepts nothing more, and its process must end. The next process
    /// recovers from the write-ahead log.
    pub fn failure(&self) -> Option<String> {
        self.failure.borrow().clone()
    }

    /// Waits until the store has failed. Returns why.
    pub async fn failed(&self) -> String {
        let mut failure = self.failure.subscribe();
        let failed = failure.wait_for(Option::is_some).await.ok();
        match failed.and_then(|why| why.clone()) {
            Some(why) => why,
            // The sender is in `self`.
            None => std::future::pending().await,
        }
    }

    pub(super) fn has_to_keep_reserve(&self) -> bool {
        self.keeps_reserve.load(Ordering::Relaxed)
    }

    pub(super) fn fail(&self, why: String) {
        self.failure.send_replace(Some(why));
    }

    /// Publishes a measurement, and logs a change of the level.
    pub(super) fn publish(&self, status: DiskStatus) {
        self.is_full.store(status.level == DiskLevel::Full, Ordering::Relaxed);
        let mut last = self.status.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut *last, status);
        drop(last);
        if before.level != status.level {
            log_level(before.level, &status);
        }
    }
}

/// Whether the volume has room for new data of workers. The check comes after the admission of a write, so that a fenced
/// or repeated write gets its answer also on a full volume.
#[derive(Clone, Debug, Default)]
pub(super) struct Room(Option<Arc<Disk>>);

impl Room {
    pub fn of(disk: Option<Arc<Disk>>) -> Self {
        Self(disk)
    }

    pub fn exists(&self) -> bool {
        self.0.as_ref().is_none_or(|disk| !disk.is_full.load(Ordering::Relaxed))
    }

    /// # Errors
    ///
    /// [`DbError::Full`]: there is no room.
    pub fn check(&self) -> DbResult<()> {
        if self.exists() {
            return Ok(());
        }
        Err(DbError::Full(Arc::from(Box::<dyn std::error::Error + Send + Sync>::from(
            "no new data is accepted while the volume has less space than the store needs to keep working",
        ))))
    }
}

fn log_level(before: DiskLevel, status: &DiskStatus) {
    let DiskStatus { level, total_bytes, free_bytes, wal_bytes, .. } = *status;
    match level {
        DiskLevel::Full => tracing::warn!(
            total_bytes,
            free_bytes,
            wal_bytes,
            "the volume of the embedded store is almost full: turns are refused until there is space"
        ),
        DiskLevel::Filling if before == DiskLevel::Full => tracing::warn!(
            total_bytes,
            free_bytes,
            wal_bytes,
            "the embedded store accepts turns again; less than a fifth of its volume is free"
        ),
        DiskLevel::Filling => tracing::warn!(
            total_bytes,
            free_bytes,
            wal_bytes,
            "less than a fifth of the embedded store's volume is free: enlarge the volume, or let retention delete more"
        ),
        DiskLevel::Ok => {
            tracing::info!(
                total_bytes,
                free_bytes,
                "the volume of the embedded store has enough space again"
            );
        }
    }
}
