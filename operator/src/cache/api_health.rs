//! Since when the API server is available. Changes that a watch missed during an outage are no evidence.

use std::sync::Mutex;
use std::time::Duration;

use jiff::Timestamp;
use kube::Client;

use crate::mutex::lock;

/// Interval and timeout of the probe.
const PROBE_INTERVAL: Duration = Duration::from_secs(2);

/// Since when the API server is available; `None` during an outage.
#[derive(Debug, Default)]
pub struct ApiHealth(Mutex<Option<Timestamp>>);

impl ApiHealth {
    /// Records the result of a probe.
    pub fn record(&self, available: bool, now: Timestamp) {
        let mut since = lock(&self.0);
        *since = match (available, *since) {
            (true, Some(since)) => Some(since),
            (true, None) => Some(now),
            (false, _) => None,
        };
    }

    /// Since when the API server is available; `now` during an outage.
    pub fn available_since(&self, now: Timestamp) -> Timestamp {
        lock(&self.0).unwrap_or(now)
    }

    /// Probes the API server until cancelled.
    pub async fn probe(&self, client: &Client) {
        let mut ticks = tokio::time::interval(PROBE_INTERVAL);
        loop {
            ticks.tick().await;
            let version = tokio::time::timeout(PROBE_INTERVAL, client.apiserver_version()).await;
            self.record(matches!(version, Ok(Ok(_))), Timestamp::now());
        }
    }
}
