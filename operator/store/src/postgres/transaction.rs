//! A transaction of several round trips.

use futures::TryStreamExt as _;
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, Either, PgConnection, Postgres};

use super::pool::Pool;
use super::pooled_connection::PooledConnection;
use crate::db_error::DbResult;

/// A transaction that holds the lock of a run's row. If it is dropped before its end, its connection is closed and the
/// server rolls it back: no connection with an open transaction returns to the pool.
#[derive(Debug)]
pub(super) struct Transaction<'a> {
    pool: &'a Pool,
    conn: PooledConnection,
}

impl Pool {
    /// Begins a transaction with these statements, in one round trip, and returns the rows of each. `sql` is sent as it
    /// is: it must contain no values except run ids.
    pub async fn begin(&self, sql: &str) -> DbResult<(Transaction<'_>, Vec<Vec<PgRow>>)> {
        let begin = self.begin_statements();
        let mut transaction = Transaction { pool: self, conn: self.acquire().await? };
        let mut results = transaction.run_simple(format!("{begin}; {sql}")).await?;
        // The results of BEGIN itself.
        results.drain(..begin.split(';').count().min(results.len()));
        Ok((transaction, results))
    }
}

impl Transaction<'_> {
    /// All rows of one statement.
    pub async fn all(&mut self, query: Query<'_, Postgres, PgArguments>) -> DbResult<Vec<PgRow>> {
        let query = query.persistent(!self.pool.transaction_pooling());
        query.fetch_all(self.conn.get()?).await.map_err(|error| self.pool.to_fault(error))
    }

    /// Commits.
    pub async fn commit(self) -> DbResult<()> {
        self.end("COMMIT").await
    }

    /// Rolls back.
    pub async fn rollback(self) -> DbResult<()> {
        self.end("ROLLBACK").await
    }

    async fn end(mut self, statement: &str) -> DbResult<()> {
        self.run_simple(statement.to_owned()).await?;
        self.pool.give_back(self.conn);
        Ok(())
    }

    /// Runs several statements in one round trip, by the simple query protocol, and returns the rows of each.
    pub async fn run_simple(&mut self, sql: String) -> DbResult<Vec<Vec<PgRow>>> {
        let conn = self.conn.get()?;
        fetch_simple(conn, sql).await.map_err(|error| self.pool.to_fault(error))
    }
}

async fn fetch_simple(conn: &mut PgConnection, sql: String) -> sqlx::Result<Vec<Vec<PgRow>>> {
    let mut stream = sqlx::raw_sql(AssertSqlSafe(sql)).fetch_many(conn);
    let (mut results, mut rows) = (Vec::new(), Vec::new());
    while let Some(next) = stream.try_next().await? {
        match next {
            Either::Right(row) => rows.push(row),
            Either::Left(_) => results.push(std::mem::take(&mut rows)),
        }
    }
    Ok(results)
}
