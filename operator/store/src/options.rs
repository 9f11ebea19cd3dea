//! How a process uses PostgreSQL. SQLite, which has no server, needs none of it.

use std::time::Duration;

use crate::metrics::StoreMetrics;

/// Connections to PostgreSQL, and the time limits on them.
///
/// A process has at most `max_connections` + `max_read_connections` + 3 connections: two are for heartbeats, and one asks
/// the server about calls that were given up.
#[derive(Clone, Debug)]
pub struct ConnectionOptions {
    /// Who connects: the beginning of `application_name`.
    pub application_name: String,
    /// Most connections for statements. At least 4.
    pub max_connections: u16,
    /// Most connections for read transactions: exports and verifications. At least 1.
    pub max_read_connections: u16,
    /// Longest time that the server works on a statement. A call fails 3 s later at the latest.
    pub statement_timeout: Duration,
    /// A connection that is older is closed after its statement, and replaced when it is needed.
    pub connection_lifetime: Duration,
    /// Counts connections, and the waiting for them.
    pub metrics: StoreMetrics,
}

impl Default for ConnectionOptions {
    fn default() -> Self {
        Self {
            application_name: "dalsegno".to_owned(),
            max_connections: 16,
            max_read_connections: 4,
            statement_timeout: Duration::from_secs(5),
            connection_lifetime: Duration::from_secs(1_800),
            metrics: StoreMetrics::default(),
        }
    }
}
