//! How much the store keeps, by namespace: asked once a minute by the operator that leads, told as a metric.

use std::sync::Arc;
use std::time::Duration;

use dalsegno_store::Store;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use crate::telemetry::{Metrics, chain};

/// How often. It is one read of the runs' own rows.
const PERIOD: Duration = Duration::from_secs(60);
/// Namespaces that the metric names: its series are so many and one more, however many namespaces there are.
const NAMESPACES: u32 = 20;

/// Asks and tells until told to stop. While the store is away the last answer stands.
pub async fn follow(store: Arc<dyn Store>, metrics: Metrics, stop: CancellationToken) {
    let mut ticks = interval(PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while stop.run_until_cancelled(ticks.tick()).await.is_some() {
        match store.capacity(NAMESPACES).await {
            Ok(held) => metrics.holds(held),
            Err(error) => tracing::warn!(error = chain(&error), "what is kept could not be summed up"),
        }
    }
}
