//! The writer's care for the volume: it copies the write-ahead log into the database, keeps the reserve, and judges how
//! much space is left.
//!
//! # Guarantees
//!
//! - The log grows beyond its bound only while another program reads. Reads of this process are ended.
//! - Every error of a checkpoint is seen. SQLite's own automatic checkpoint, which is off, hides them: after a failed
//!   sync that nobody saw, a turn could be acknowledged behind a hole in the log.
//! - On a full volume the reserve is given up, and the log is copied into the database and truncated. So writes that
//!   free space succeed again.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::statvfs;
use sqlx::{AssertSqlSafe, SqliteConnection};

use super::active_reads::{ActiveReads, SHORT_READ, SHORTEST_READ};
use super::disk::{Disk, DiskLevel, DiskStatus};
use super::disk_limits::{DiskLimits, ReserveStep, Space};
use super::files::wal_path;
use super::reserve::Reserve;
use crate::db_error::{DbError, DbResult};
use dalsegno_model::Error;

/// Limit of one operation. Each takes far less on a disk that works.
pub(super) const TIMEOUT: Duration = Duration::from_secs(10);

/// Pause between two attempts to truncate the log: each stops all writes for up to [`TRUNCATE_WAIT`].
const TRUNCATE_PAUSE: Duration = Duration::from_millis(250);

/// How long a truncation waits for short reads.
const TRUNCATE_WAIT: Duration = Duration::from_millis(20);

/// Pause between two attempts to make the reserve.
const RESERVE_PAUSE: Duration = Duration::from_secs(10);

/// The limits of the volume that a database is on.
pub(super) fn limits_of(database: &Path) -> Result<DiskLimits, Error> {
    Ok(DiskLimits::of_volume(total_and_free(database)?.0))
}

/// Gives up the reserve of a database that is not open yet if its volume is full: SQLite needs some space to open it.
pub(super) fn make_room_to_open(database: &Path) -> Result<(), Error> {
    let (total, free) = total_and_free(database)?;
    let limits = DiskLimits::of_volume(total);
    let reserve = Reserve::of(database);
    let space = Space { free, has_reserve: reserve.exists(), keeps_reserve: true, ..Space::default() };
    if limits.reserve_step(&space) == ReserveStep::GiveUp && reserve.give_up() {
        tracing::warn!(
            free_bytes = free,
            "the volume is full: the reserve was given up to open the database"
        );
    }
    Ok(())
}

/// Copies a log that an earlier process left into the database, and truncates it. Turns that are committed from now on
/// depend on no page that an earlier, failed sync may have left unwritten.
pub(super) async fn begin_new_log(conn: &mut SqliteConnection) -> DbResult<()> {
    match checkpoint(conn, "PRAGMA wal_checkpoint(TRUNCATE)").await {
        Ok(true) => Ok(()),
        Ok(false) => {
            tracing::warn!(
                "another program reads the database: the log of the earlier process is copied later"
            );
            Ok(())
        }
        Err(error) => only_full(error).map(|_| {
            tracing::warn!("the volume is full: the log of the earlier process is copied later");
        }),
    }
}

/// Total and free bytes of a database's volume.
pub(super) fn total_and_free(database: &Path) -> Result<(u64, u64), Error> {
    let folder = database.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let volume = statvfs(folder).map_err(|error| {
        Error::Unusable(format!("cannot measure the volume of {}: {error}", folder.display()))
    })?;
    Ok((volume.f_blocks * volume.f_frsize, volume.f_bavail * volume.f_frsize))
}

/// The volume of the database that the writer writes to.
pub(super) struct Volume {
    database: PathBuf,
    wal: PathBuf,
    reserve: Reserve,
    disk: Arc<Disk>,
    reads: Arc<ActiveReads>,
    level: DiskLevel,
    /// Size of the log after a checkpoint that could not copy all of it.
    incomplete_at: Option<u64>,
    truncated: Option<Instant>,
    reserve_tried: Option<Instant>,
}

impl Volume {
    pub fn new(database: &Path, disk: Arc<Disk>, reads: Arc<ActiveReads>) -> Self {
        Self {
            database: database.to_owned(),
            wal: wal_path(database),
            reserve: Reserve::of(database),
            disk,
            reads,
            level: DiskLevel::Ok,
            incomplete_at: None,
            truncated: None,
            reserve_tried: None,
        }
    }

    pub fn disk(&self) -> &Disk {
        &self.disk
    }

    /// Copies the log if it is due, keeps the reserve, and publishes the status. Called after each transaction, and once
    /// a second without one. `was_full`: a write has failed because the volume is full.
    ///
    /// # Errors
    ///
    /// A checkpoint or a measurement failed. [`super::disk_fault`] says whether anything may still be written.
    pub async fn maintain(&mut self, conn: &mut SqliteConnection, was_full: bool) -> DbResult<()> {
        let mut is_full = was_full;
        if was_full {
            self.give_up_reserve();
        }
        let (limits, space) = self.measure(conn).await?;
        if space.wal >= limits.wal_bound() || is_full || self.level == DiskLevel::Full {
            if space.wal > 0 {
                let is_urgent =
                    is_full || self.level == DiskLevel::Full || space.wal > 2 * limits.wal_bound();
                self.reads.end_older_than(if is_urgent { SHORTEST_READ } else { SHORT_READ });
                is_full |= self.truncate_log(conn).await?;
            }
        } else if self.is_checkpoint_due(&limits, space.wal) {
            is_full |= self.copy_log(conn, space.wal).await?;
        }
        if is_full && self.give_up_reserve() {
            self.truncated = None;
            self.truncate_log(conn).await?;
        }
        let (limits, space) = self.measure(conn).await?;
        let space = self.keep_reserve(&limits, space);
        self.level = limits.level(&space, if is_full { DiskLevel::Full } else { self.level });
        self.disk.publish(DiskStatus {
            level: self.level,
            total_bytes: limits.total(),
            free_bytes: space.free,
            wal_bytes: space.wal,
            has_reserve: space.has_reserve,
            interrupted_reads: 0,
        });
        Ok(())
    }

    async fn measure(&self, conn: &mut SqliteConnection) -> DbResult<(DiskLimits, Space)> {
        let (total, free) = total_and_free(&self.database)?;
        let limits = DiskLimits::of_volume(total);
        let free_pages = if limits.is_spacious(free) { 0 } else { free_page_bytes(conn).await? };
        let wal = std::fs::metadata(&self.wal).map_or(0, |wal| wal.len());
        let (has_reserve, keeps_reserve) = (self.reserve.exists(), self.disk.has_to_keep_reserve());
        Ok((limits, Space { free, wal, free_pages, has_reserve, keeps_reserve }))
    }

    fn is_checkpoint_due(&self, limits: &DiskLimits, wal: u64) -> bool {
        // After a checkpoint that a read has stopped, the next one waits until the log has grown.
        let from = self.incomplete_at.map_or(0, |wal| wal + limits.checkpoint_at() / 4);
        wal > limits.checkpoint_at().max(from)
    }

    /// Copies the log into the database, as far as reads permit. Returns whether the volume is full.
    async fn copy_log(&mut self, conn: &mut SqliteConnection, wal: u64) -> DbResult<bool> {
        match checkpoint(conn, "PRAGMA wal_checkpoint(PASSIVE)").await {
            Ok(is_complete) => {
                self.incomplete_at = if is_complete { None } else { Some(wal) };
                Ok(false)
            }
            Err(error) => only_full(error),
        }
    }

    /// Copies the log into the database, and truncates it. Returns whether the volume is full.
    async fn truncate_log(&mut self, conn: &mut SqliteConnection) -> DbResult<bool> {
        if self.truncated.is_some_and(|at| at.elapsed() < TRUNCATE_PAUSE) {
            return Ok(false);
        }
        set_busy_timeout(conn, TRUNCATE_WAIT.as_millis()).await?;
        let outcome = checkpoint(conn, "PRAGMA wal_checkpoint(TRUNCATE)").await;
        set_busy_timeout(conn, TIMEOUT.as_millis()).await?;
        self.truncated = Some(Instant::now());
        match outcome {
            Ok(is_complete) => {
                if is_complete {
                    self.incomplete_at = None;
                }
                Ok(false)
            }
            Err(error) => only_full(error),
        }
    }

    fn keep_reserve(&mut self, limits: &DiskLimits, space: Space) -> Space {
        match limits.reserve_step(&space) {
            ReserveStep::GiveUp if self.give_up_reserve() => {
                Space { free: space.free + limits.reserve(), has_reserve: false, ..space }
            }
            ReserveStep::Make if self.may_try_reserve() => {
                self.reserve_tried = Some(Instant::now());
                match self.reserve.make(limits.reserve()) {
                    Ok(()) => Space { free: space.free - limits.reserve(), has_reserve: true, ..space },
                    Err(error) => {
                        tracing::warn!(%error, "the reserve of the embedded store could not be made");
                        space
                    }
                }
            }
            _ => space,
        }
    }

    /// Returns whether there was a reserve.
    fn give_up_reserve(&self) -> bool {
        let existed = self.reserve.give_up();
        if existed {
            tracing::warn!("the volume is full: the reserve of the embedded store was given up");
        }
        existed
    }

    fn may_try_reserve(&self) -> bool {
        self.reserve_tried.is_none_or(|at| at.elapsed() >= RESERVE_PAUSE)
    }
}

/// Runs a checkpoint. Returns whether it copied the whole log.
async fn checkpoint(conn: &mut SqliteConnection, pragma: &'static str) -> DbResult<bool> {
    let (busy, log, copied): (i64, i64, i64) = sqlx::query_as(pragma).fetch_one(conn).await?;
    Ok(busy == 0 && log == copied)
}

/// Returns true if the volume is full, and any other error.
fn only_full(error: DbError) -> DbResult<bool> {
    if matches!(error, DbError::Full(_)) { Ok(true) } else { Err(error) }
}

async fn set_busy_timeout(conn: &mut SqliteConnection, milliseconds: u128) -> DbResult<()> {
    let pragma = format!("PRAGMA busy_timeout = {milliseconds}");
    sqlx::query(AssertSqlSafe(pragma)).execute(conn).await?;
    Ok(())
}

/// Bytes of the database's free pages.
async fn free_page_bytes(conn: &mut SqliteConnection) -> DbResult<u64> {
    let pages: i64 = sqlx::query_scalar("PRAGMA freelist_count").fetch_one(&mut *conn).await?;
    let size: i64 = sqlx::query_scalar("PRAGMA page_size").fetch_one(conn).await?;
    Ok((pages * size).unsigned_abs())
}
