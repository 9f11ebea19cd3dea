//! Copies a database while another process writes to it.
//!
//! # Guarantees
//!
//! - The copy is of one moment: it holds every write that was acknowledged before the copy began.
//! - No write waits for the copy.
//! - The write-ahead log cannot shrink behind the copy's snapshot. So the copy gives up if the log grows beyond its bound.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions as _, Connection as _, SqliteConnection};

use super::disk_limits::DiskLimits;
use super::files::{copy_path, partial_path, wal_path};
use super::schema;
use super::volume::{TIMEOUT, limits_of, total_and_free};
use crate::db_error::{DbError, DbResult};
use dalsegno_model::{Error, Result};

/// The largest database that is copied before a migration: the copy takes seconds.
const LARGEST_COPY: u64 = 1 << 30;

/// Instructions of SQLite between two looks at whether the copy is to end.
const INSTRUCTIONS: i32 = 1_000;

/// How often the size of the log is measured.
const WATCH_INTERVAL: Duration = Duration::from_millis(50);

/// Copies the database to a new file that only its owner can read. If that fails, the file is removed.
pub(crate) async fn back_up(database: &Path, to: &Path) -> Result<()> {
    back_up_within(database, to, limits_of(database)?.wal_bound()).await
}

/// The same, with this bound of the log in bytes.
async fn back_up_within(database: &Path, to: &Path, bound: u64) -> Result<()> {
    let operation = "copying the database";
    let options = SqliteConnectOptions::new().filename(database).read_only(true).busy_timeout(TIMEOUT);
    let mut conn = options.connect().await.map_err(|error| {
        Error::Unusable(format!("cannot open the database {}: {error}", database.display()))
    })?;
    schema::check(&mut conn).await?;
    // SQLite fills an empty file, and refuses any other.
    create(to).map_err(|error| Error::Unusable(format!("cannot create {}: {error}", to.display())))?;
    let copied = copy(&mut conn, database, to, bound).await;
    let closed = conn.close().await.map_err(DbError::from);
    copied.and(closed).map_err(|fault| match std::fs::remove_file(to) {
        Ok(()) => fault.with_context(operation),
        Err(error) => Error::Unusable(format!(
            "{}; {} is incomplete, and cannot be removed: {error}",
            fault.with_context(operation),
            to.display()
        )),
    })
}

/// Copies the database before a migration to a file beside it, and deletes the copies before earlier migrations. A
/// migration must not fail for want of a copy, nor keep workers waiting for long: without room, or if the database is
/// large, there is none. The copy stays, so the volume must have room for another database of this size beside it.
pub(super) async fn before_migration(
    conn: &mut SqliteConnection,
    database: &Path,
    schema: i64,
) -> Result<()> {
    let size = std::fs::metadata(database).map_or(0, |file| file.len());
    let (total, free) = total_and_free(database)?;
    if !is_copied(size, DiskLimits::of_volume(total), free) {
        tracing::warn!(
            bytes = size,
            "the database is migrated without a copy, because it is large or its volume has too little room"
        );
        return Ok(());
    }
    match copy_for_migration(conn, database, schema).await {
        Ok(path) => tracing::info!(path = %path.display(), "the database was copied before its migration"),
        Err(DbError::Corrupt(detail)) => {
            return Err(DbError::Corrupt(detail).with_context("copying the database before its migration"));
        }
        Err(fault) => {
            let error = fault.with_context("copying the database before its migration");
            tracing::warn!(error = %error, "the database is migrated without a copy");
        }
    }
    Ok(())
}

/// Whether a database of this size is copied before a migration, on a volume with this much free space.
fn is_copied(size: u64, limits: DiskLimits, free: u64) -> bool {
    size <= LARGEST_COPY && 2 * size + limits.wal_bound() <= free
}

/// Replaces a copy from the same schema: commits may have been made since.
async fn copy_for_migration(conn: &mut SqliteConnection, database: &Path, schema: i64) -> DbResult<PathBuf> {
    let to = copy_path(database, schema);
    let partial = partial_path(&to);
    remove_if_exists(&partial).map_err(DbError::unavailable)?;
    create(&partial).map_err(DbError::unavailable)?;
    // The migration holds the lock of the database, so the log has no bound to respect.
    if let Err(fault) = copy(conn, database, &partial, u64::MAX).await {
        remove_if_exists(&partial).map_err(DbError::unavailable)?;
        return Err(fault);
    }
    for earlier in (0..schema).map(|earlier| copy_path(database, earlier)) {
        remove_if_exists(&earlier).map_err(DbError::unavailable)?;
    }
    std::fs::rename(&partial, &to).map_err(DbError::unavailable)?;
    Ok(to)
}

fn remove_if_exists(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn create(path: &Path) -> io::Result<()> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map(drop)
}

async fn copy(conn: &mut SqliteConnection, database: &Path, to: &Path, bound: u64) -> DbResult<()> {
    let name = to.to_str().ok_or_else(|| DbError::Unusable("the name of the copy is not UTF-8".into()))?;
    let is_ended = Arc::new(AtomicBool::new(false));
    let ended = Arc::clone(&is_ended);
    conn.lock_handle().await?.set_progress_handler(INSTRUCTIONS, move || !ended.load(Ordering::Relaxed));
    let copying = sqlx::query("VACUUM INTO ?").bind(name).execute(&mut *conn);
    let copied = tokio::select! {
        copied = copying => copied,
        never = watch(database, bound, &is_ended) => match never {},
    };
    conn.lock_handle().await?.remove_progress_handler();
    if copied.is_err() && is_ended.load(Ordering::Relaxed) {
        return Err(DbError::unavailable(
            "the copy was ended, because it kept the write-ahead log of the database from shrinking; \
             repeat it when fewer turns are committed, or use a snapshot of the volume",
        ));
    }
    Ok(copied.map(drop)?)
}

/// Ends the copy when the log grows beyond its bound. The copy itself returns then, so this never does.
async fn watch(database: &Path, bound: u64, is_ended: &AtomicBool) -> std::convert::Infallible {
    let wal = wal_path(database);
    let size = || std::fs::metadata(&wal).map_or(0, |wal| wal.len());
    let bound = bound.max(size());
    loop {
        tokio::time::sleep(WATCH_INTERVAL).await;
        if size() > bound {
            is_ended.store(true, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sqlite::Sqlite;

    #[test]
    fn a_large_database_or_one_without_room_beside_it_is_migrated_without_a_copy() {
        const MIB: u64 = 1 << 20;
        let limits = || DiskLimits::of_volume(1 << 30);
        let bound = limits().wal_bound();
        assert!(is_copied(100 * MIB, limits(), 200 * MIB + bound));
        assert!(!is_copied(100 * MIB, limits(), 200 * MIB + bound - 1));
        assert!(is_copied(1_024 * MIB, limits(), 1 << 40));
        assert!(!is_copied(1_024 * MIB + 1, limits(), 1 << 40));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_copy_ends_when_the_log_outgrows_its_bound_and_leaves_no_file() {
        let folder = tempfile::tempdir().unwrap();
        let (database, to) = (folder.path().join("runs.db"), folder.path().join("copy.db"));
        Sqlite::migrate(&database).await.unwrap();
        let options = SqliteConnectOptions::new().filename(&database).busy_timeout(TIMEOUT);
        let options = options.pragma("wal_autocheckpoint", "0").pragma("synchronous", "OFF");
        let mut writer = options.connect().await.unwrap();
        // Copying these rows takes longer than the log takes to grow.
        let fill = "CREATE TABLE filler (bytes BLOB); \
                    WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2000000) \
                    INSERT INTO filler SELECT randomblob(8) FROM n; \
                    PRAGMA wal_checkpoint(TRUNCATE);";
        sqlx::raw_sql(fill).execute(&mut writer).await.unwrap();
        let writing = tokio::spawn(async move {
            loop {
                sqlx::query("INSERT INTO filler VALUES (randomblob(100000))")
                    .execute(&mut writer)
                    .await
                    .unwrap();
            }
        });
        let ended = back_up_within(&database, &to, 1 << 20).await;
        writing.abort();
        let Err(Error::Unavailable { source, .. }) = ended else { panic!("{ended:?}") };
        assert!(source.to_string().contains("write-ahead log"), "{source}");
        assert!(!to.exists());
    }
}
