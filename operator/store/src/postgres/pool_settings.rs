//! The settings of a pool: its size, its time limits, and the statements that begin its transactions.

use std::time::Duration;

use crate::metrics::PoolMetrics;
use crate::options::ConnectionOptions;

/// Time that a call has besides its statement: to wait for a connection and to open one.
const BESIDES_STATEMENT: Duration = Duration::from_secs(3);

/// Settings of one pool.
#[derive(Debug)]
pub(super) struct PoolSettings {
    pub application_name: String,
    pub max_connections: usize,
    /// Longest time that a call may take: to wait for a connection, to open one, and to run the statement.
    pub deadline: Duration,
    pub connection_lifetime: Duration,
    /// Begins a transaction. Through a pooler no setting stays on a session, so each transaction sets its own timeouts.
    /// A pooler does not report a dead client to the server: the idle timeout releases its locks. It is shorter than
    /// the statement timeout, so that a call that waits for these locks still succeeds.
    pub begin: String,
    /// Begins a read transaction. Its reader may pause between reads. If the reader has died, the server keeps old row
    /// versions for it no longer than the idle timeout.
    pub begin_read_only: String,
    pub metrics: PoolMetrics,
}

impl PoolSettings {
    /// Settings of the pool with this name.
    pub fn new(pool: &'static str, max_connections: u16, options: &ConnectionOptions) -> Self {
        let (statement, idle) = (options.statement_timeout, options.statement_timeout * 3 / 5);
        let statement_timeout = format!("SET LOCAL statement_timeout = '{}ms'", statement.as_millis());
        Self {
            application_name: format!("{}-{pool}", options.application_name),
            max_connections: max_connections.into(),
            deadline: statement + BESIDES_STATEMENT,
            connection_lifetime: options.connection_lifetime,
            begin: format!(
                "BEGIN; {statement_timeout}; SET LOCAL idle_in_transaction_session_timeout = '{}ms'",
                idle.as_millis()
            ),
            begin_read_only: format!(
                "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; {statement_timeout}; \
                 SET LOCAL idle_in_transaction_session_timeout = '10min'"
            ),
            metrics: options.metrics.of_pool(pool),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_transaction_ends_before_a_statement_that_waits_for_its_locks() {
        let begin = PoolSettings::new("statements", 1, &ConnectionOptions::default()).begin;
        assert!(begin.contains("SET LOCAL statement_timeout = '5000ms'"), "{begin}");
        assert!(begin.contains("SET LOCAL idle_in_transaction_session_timeout = '3000ms'"), "{begin}");
    }
}
