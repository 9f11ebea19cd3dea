//! Whether the gateway can accept connections.
//!
//! A process without a free file descriptor accepts none, and its open connections may work for ever. Only a restart
//! helps, so the probes must see it.

use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Pause after a connection could not be accepted.
pub(crate) const ACCEPT_RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Failures further apart than this are not one lasting failure: in between the gateway waited for a connection.
const LASTING: Duration = Duration::from_secs(3);

/// How long accepting must have failed before the gateway is not ready.
const NOT_READY_AFTER: Duration = Duration::from_secs(2);

/// The failures to accept since the last accepted connection.
#[derive(Default)]
pub(crate) struct AcceptHealth(Mutex<Option<Failures>>);

struct Failures {
    first: Instant,
    last: Instant,
    error: String,
}

impl AcceptHealth {
    /// A connection was accepted.
    pub(crate) fn accepted(&self) {
        *self.failures() = None;
    }

    /// A connection could not be accepted.
    pub(crate) fn failed(&self, error: &io::Error) {
        let now = Instant::now();
        let mut failures = self.failures();
        let first = failures.as_ref().filter(|it| it.is_lasting(now)).map_or(now, |it| it.first);
        *failures = Some(Failures { first, last: now, error: error.to_string() });
    }

    /// Whether the gateway accepts connections, or has failed to for a moment only.
    pub(crate) fn is_ready(&self) -> bool {
        self.failing_for(NOT_READY_AFTER).is_none()
    }

    /// Why the process must be restarted, if accepting has failed for longer than this.
    pub(crate) fn failure(&self, limit: Duration) -> Option<String> {
        let error = self.failing_for(limit)?;
        Some(format!(
            "the gateway has not been able to accept a connection for {} s: {error}",
            limit.as_secs()
        ))
    }

    /// The error, if accepting has failed for at least this long and still fails.
    fn failing_for(&self, time: Duration) -> Option<String> {
        let now = Instant::now();
        let failures = self.failures();
        let failures = failures.as_ref().filter(|it| it.is_lasting(now) && now - it.first >= time)?;
        Some(failures.error.clone())
    }

    fn failures(&self) -> MutexGuard<'_, Option<Failures>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Failures {
    fn is_lasting(&self, now: Instant) -> bool {
        now - self.last < LASTING
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(30);

    fn fail(health: &AcceptHealth) {
        health.failed(&io::Error::other("Too many open files"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_lasting_failure_makes_the_gateway_unready_and_then_failed() {
        let health = AcceptHealth::default();
        let mut states = Vec::new();
        for _ in 0..40 {
            fail(&health);
            states.push((health.is_ready(), health.failure(LIMIT).is_some()));
            tokio::time::advance(ACCEPT_RETRY_PAUSE).await;
        }
        assert_eq!(states[0], (true, false), "one failure is no state");
        assert_eq!(states[10], (false, false));
        assert_eq!(states[39], (false, true));
        assert!(health.failure(LIMIT).is_some_and(|why| why.contains("Too many open files")));
        health.accepted();
        assert!(health.is_ready() && health.failure(LIMIT).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn failures_with_a_quiet_time_between_them_do_not_add_up() {
        let health = AcceptHealth::default();
        for _ in 0..20 {
            fail(&health);
            tokio::time::advance(2 * LASTING).await;
            assert!(health.is_ready() && health.failure(LIMIT).is_none());
        }
    }
}
