//! The reserve: a file beside the database that takes space on the volume. When the volume is full it is deleted, and
//! the write-ahead log can be copied into the database.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, fallocate};

use super::files::reserve_path;

/// The reserve of a database.
#[derive(Clone, Debug)]
pub(super) struct Reserve(PathBuf);

impl Reserve {
    pub fn of(database: &Path) -> Self {
        Self(reserve_path(database))
    }

    pub fn exists(&self) -> bool {
        self.0.exists()
    }

    /// Allocates this many bytes. After an error the file does not exist.
    pub fn make(&self, bytes: u64) -> io::Result<()> {
        let allocate = || {
            let file = File::create(&self.0)?;
            fallocate(&file, FallocateFlags::empty(), 0, bytes)?;
            file.sync_all()
        };
        let made = allocate();
        if made.is_err() {
            self.give_up();
        }
        made
    }

    /// Deletes the file, if it exists. Returns whether it existed.
    pub fn give_up(&self) -> bool {
        std::fs::remove_file(&self.0).is_ok()
    }
}
