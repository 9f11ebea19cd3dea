//! What statements are asked of: the pool, or the connection of one moment.

use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::Query;

use super::pool::Pool;
use crate::db_error::DbResult;

/// Answers statements that read.
pub(super) trait Answers: Sync {
    /// All rows of one statement.
    fn all(
        &self,
        query: Query<'_, sqlx::Postgres, PgArguments>,
    ) -> impl Future<Output = DbResult<Vec<PgRow>>> + Send;
}

impl Answers for Pool {
    async fn all(&self, query: Query<'_, sqlx::Postgres, PgArguments>) -> DbResult<Vec<PgRow>> {
        Self::all(self, query).await
    }
}
