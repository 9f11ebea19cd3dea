//! What an error says of the volume.

use crate::db_error::DbError;

/// What is wrong with the volume, in the order of severity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum DiskFault {
    /// It is full. Nothing was written, and everything written before is intact.
    Full,
    /// The operating system reported an error, or the volume has become read-only.
    ///
    /// After a failed sync Linux takes the pages for written, and the next sync succeeds without them. If the store went
    /// on, it could acknowledge a turn behind a hole in the log, and the next power failure would lose the turn.
    Failed,
}

impl DiskFault {
    /// What an error of the writer's connection says of the volume. A refusal of the store itself says nothing.
    pub fn of(error: &DbError) -> Option<Self> {
        const READONLY: u32 = 8;
        const IOERR: u32 = 10;
        let code: u32 = error.code()?.parse().ok()?;
        match code & 0xff {
            _ if matches!(error, DbError::Full(_)) => Some(Self::Full),
            READONLY | IOERR => Some(Self::Failed),
            _ => None,
        }
    }

    /// The error with the worst fault.
    pub fn worst<'a>(errors: impl Iterator<Item = &'a DbError>) -> Option<DbError> {
        errors
            .filter_map(|error| Some((Self::of(error)?, error)))
            .max_by_key(|(fault, _)| *fault)
            .map(|(_, error)| error.clone())
    }
}
