//! A connection on loan from a pool.

use std::sync::Arc;

use sqlx::PgConnection;
use tokio::sync::OwnedSemaphorePermit;

use super::abandoned::AbandonedConnections;
use super::session::Session;
use crate::db_error::{DbError, DbResult};

/// A connection and its permit. If it is dropped, the call on it has failed or was given up: it keeps its permit until
/// the server has ended the statement, and does not return to the pool.
#[derive(Debug)]
pub(super) struct PooledConnection {
    loan: Option<(Session, OwnedSemaphorePermit)>,
    abandoned: Arc<AbandonedConnections>,
}

impl PooledConnection {
    pub fn new(session: Session, permit: OwnedSemaphorePermit, abandoned: Arc<AbandonedConnections>) -> Self {
        Self { loan: Some((session, permit)), abandoned }
    }

    /// The connection.
    pub fn get(&mut self) -> DbResult<&mut PgConnection> {
        let loan = self.loan.as_mut().ok_or_else(|| DbError::unavailable("the connection was returned"))?;
        Ok(&mut loan.0.conn)
    }

    /// Ends the loan of a connection on which nothing is open. The caller returns the session to the pool before it
    /// drops the permit.
    pub fn end(mut self) -> Option<(Session, OwnedSemaphorePermit)> {
        self.loan.take()
    }
}

impl Drop for PooledConnection {
    fn drop(&mut self) {
        if let Some((session, permit)) = self.loan.take() {
            self.abandoned.keep(session, permit);
        }
    }
}
