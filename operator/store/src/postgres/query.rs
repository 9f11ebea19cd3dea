//! What runs the statements that only read: the pool, or the connection of a read transaction.

use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::Query;

use super::pool::Pool;
use crate::db_error::DbResult;

/// Runs statements that only read.
pub(super) trait QueryExecutor: Sync {
    /// All rows of one statement.
    fn all(
        &self,
        query: Query<'_, sqlx::Postgres, PgArguments>,
    ) -> impl Future<Output = DbResult<Vec<PgRow>>> + Send;
}

impl QueryExecutor for Pool {
    async fn all(&self, query: Query<'_, sqlx::Postgres, PgArguments>) -> DbResult<Vec<PgRow>> {
        Self::all(self, query).await
    }
}
