//! What the process that serves an embedded store does around its transactions: it cares for the volume, and stops for
//! good when the volume has failed.

use sqlx::SqliteConnection;

use super::disk_fault::DiskFault;
use super::lock::Lock;
use super::volume::Volume;
use crate::db_error::{DbError, DbResult};

/// The lock on the database, and its volume.
pub(super) struct Serving {
    pub lock: Lock,
    pub volume: Volume,
}

impl Serving {
    /// Called after each transaction, with what it says of the volume, and once a second without one.
    ///
    /// # Errors
    ///
    /// The volume has failed: call [`Self::fail`].
    pub async fn after_batch(&mut self, conn: &mut SqliteConnection, error: Option<DbError>) -> DbResult<()> {
        let fault = error.as_ref().and_then(DiskFault::of);
        if let (Some(DiskFault::Failed), Some(error)) = (fault, error) {
            return Err(error);
        }
        match self.volume.maintain(conn, fault == Some(DiskFault::Full)).await {
            Err(error) if DiskFault::of(&error) == Some(DiskFault::Failed) => Err(error),
            Err(error) => {
                tracing::warn!(?error, "the volume of the embedded store could not be looked after");
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    /// Publishes that the volume has failed. The connection is not closed, because closing it would write: the last
    /// connection copies the log into the database. The lock is kept until the process ends.
    pub fn fail(self, conn: SqliteConnection, error: &DbError) {
        tracing::error!(
            ?error,
            "the volume of the embedded store has failed: nothing more is accepted, and the process must be restarted"
        );
        self.volume.disk().fail(format!("its volume reported an error: {error:?}"));
        std::mem::forget((conn, self.lock));
    }
}
