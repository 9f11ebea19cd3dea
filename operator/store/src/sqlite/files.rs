//! The files beside a database. Each has the database's name and a suffix.

use std::path::{Path, PathBuf};

/// The write-ahead log, as SQLite names it.
pub(super) fn wal_path(database: &Path) -> PathBuf {
    beside(database, "-wal")
}

/// The file that the process which uses the database has locked.
pub(super) fn lock_path(database: &Path) -> PathBuf {
    beside(database, ".lock")
}

/// The reserve: space that is given up when the volume is full.
pub(super) fn reserve_path(database: &Path) -> PathBuf {
    beside(database, ".reserve")
}

/// The copy from before the migration from this schema.
pub(super) fn copy_path(database: &Path, schema: i64) -> PathBuf {
    beside(database, &format!(".schema-{schema}"))
}

/// A copy that is not complete.
pub(super) fn partial_path(copy: &Path) -> PathBuf {
    beside(copy, ".partial")
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}
