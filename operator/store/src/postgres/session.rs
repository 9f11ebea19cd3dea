//! A connection to a server, and the backend that serves it.

use std::time::Instant;

use sqlx::PgConnection;

use super::server_settings::{self, Backend};
use super::url::{Target, connect};
use crate::db_error::DbResult;

/// A connection whose server was found fit.
#[derive(Debug)]
pub(super) struct Session {
    pub conn: PgConnection,
    pub backend: Backend,
    /// Since when nobody uses it. Counts while it is in the pool.
    pub idle_since: Instant,
}

impl Session {
    /// Opens a connection and checks the settings of its server.
    pub async fn open(target: &Target) -> DbResult<Self> {
        let mut conn = connect(&target.options).await?;
        let backend = server_settings::check_settings(&mut conn).await?;
        Ok(Self { conn, backend, idle_since: Instant::now() })
    }
}
