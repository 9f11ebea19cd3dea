//! The exclusive lock on an embedded database: one process writes.

use std::fs::File;
use std::path::Path;

use rustix::fs::{FlockOperation, flock};

use super::files::lock_path;
use dalsegno_model::Error;

/// The lock. It is held until this is dropped or the process ends.
#[derive(Debug)]
pub(super) struct Lock(File);

impl Lock {
    /// Locks a file next to the database. SQLite's own locks stay available to readers.
    pub fn take(database: &Path) -> Result<Self, Error> {
        let path = lock_path(database);
        let file =
            File::options().create(true).truncate(false).read(true).write(true).open(&path).map_err(
                |error| Error::Unusable(format!("cannot open the lock {}: {error}", path.display())),
            )?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self(file)),
            Err(rustix::io::Errno::WOULDBLOCK) => Err(Error::Unusable(format!(
                "another process holds {}: a dalsegno that still runs on this database (an old pod that is not gone \
                 yet, or a `dalsegno dev`); one process may write, any number may read",
                path.display()
            ))),
            Err(error) => Err(Error::Unusable(format!("cannot lock {}: {error}", path.display()))),
        }
    }
}

impl Drop for Lock {
    /// Releases the lock now. Closing the file might not: a program that another thread is just starting has a copy of
    /// the file, and the lock with it, until its `exec`.
    fn drop(&mut self) {
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_of_a_second_writer_says_who_may_hold_the_lock() {
        let dir = tempfile::tempdir().unwrap();
        let database = dir.path().join("runs.db");
        let first = Lock::take(&database).unwrap();
        let refused = Lock::take(&database).unwrap_err().to_string();
        assert!(refused.contains("runs.db.lock") && refused.contains("still runs"), "{refused}");
        drop(first);
        Lock::take(&database).unwrap();
    }

    #[test]
    fn the_lock_is_released_despite_a_copy_of_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let database = dir.path().join("runs.db");
        let first = Lock::take(&database).unwrap();
        let _copy_of_a_starting_program = first.0.try_clone().unwrap();
        drop(first);
        Lock::take(&database).unwrap();
    }
}
