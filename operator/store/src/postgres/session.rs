//! A connection to a server, and the backend that serves it.

use std::time::{Duration, Instant};

use sqlx::PgConnection;

use super::server_settings::Backend;
use super::url::Target;
use crate::db_error::DbResult;
use crate::metrics::{Counted, PoolMetrics};

/// A connection whose server was found fit.
#[derive(Debug)]
pub(super) struct Session {
    pub conn: PgConnection,
    pub backend: Backend,
    /// Since when nobody uses it. Counts while it is in the pool.
    pub idle_since: Instant,
    /// When it is closed instead of being used again.
    expires: Instant,
    _counted: Counted,
}

impl Session {
    /// Opens a connection to a server that is fit.
    pub async fn open(target: &Target, lifetime: Duration, metrics: &PoolMetrics) -> DbResult<Self> {
        let (conn, backend) = target.connect().await?;
        let now = Instant::now();
        // Up to a tenth earlier, so that the connections of a process are not replaced all at once.
        let earlier = lifetime / 10 * (backend.pid.unsigned_abs() % 16) / 16;
        let (expires, counted) = (now + lifetime - earlier, metrics.count_connection());
        Ok(Self { conn, backend, idle_since: now, expires, _counted: counted })
    }

    pub fn is_expired(&self) -> bool {
        Instant::now() >= self.expires
    }
}
