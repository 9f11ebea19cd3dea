//! What is done with a write-ahead log that an earlier process left, before SQLite opens it.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use super::files::wal_path;
use dalsegno_model::Error;

/// Bytes that are rewritten at a time.
const BLOCK: usize = 1 << 20;

/// Writes the log over itself, and syncs it.
///
/// After a failed sync the kernel holds pages of the log in memory that are not on the disk, and takes them for written.
/// SQLite would recover from these pages, and append turns behind them. Now they are written again.
pub(super) fn rewrite(database: &Path) -> Result<(), Error> {
    let path = wal_path(database);
    match rewrite_file(&path) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => {
            Err(Error::Unusable(format!("cannot write the log {} to the disk: {error}", path.display())))
        }
    }
}

fn rewrite_file(path: &Path) -> io::Result<()> {
    let file = File::options().read(true).write(true).open(path)?;
    let mut block = vec![0; BLOCK];
    let mut at = 0;
    loop {
        let read = file.read_at(&mut block, at)?;
        if read == 0 {
            return file.sync_all();
        }
        file.write_all_at(&block[..read], at)?;
        at += read as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_unchanged_and_no_log_is_no_error() {
        let dir = tempfile::tempdir().unwrap();
        let database = dir.path().join("runs.db");
        rewrite(&database).unwrap();
        assert!(!wal_path(&database).exists());
        let log: Vec<u8> = (0..BLOCK + 12_345).map(|at| (at % 251) as u8).collect();
        std::fs::write(wal_path(&database), &log).unwrap();
        rewrite(&database).unwrap();
        assert!(std::fs::read(wal_path(&database)).unwrap() == log);
    }
}
