//! Publishes the stored bytes of namespaces as a metric.

use std::sync::Arc;
use std::time::Duration;

use dalsegno_model::Store;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use crate::log::error_chain;
use crate::metrics::Metrics;

/// Interval between two queries. A query reads the rows of the runs that still have payloads.
const INTERVAL: Duration = Duration::from_secs(60);
/// Number of namespaces with a series of their own. All others share one more series.
const NAMESPACES: u32 = 20;

/// Updates the metric until `stop`. While the store is unavailable, the last values stay.
pub async fn run(store: Arc<dyn Store>, metrics: Metrics, stop: CancellationToken) {
    let mut ticks = interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while stop.run_until_cancelled(ticks.tick()).await.is_some() {
        match store.namespace_usage(NAMESPACES).await {
            Ok(usage) => metrics.set_stored_bytes(usage),
            Err(error) => {
                tracing::warn!(error = error_chain(&error), "the stored bytes could not be summed up")
            }
        }
    }
}
