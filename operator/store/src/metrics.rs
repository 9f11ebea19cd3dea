//! The store's metrics. No label names a run. `docs/reference/metrics.md` lists them, and a test compares the two.

use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

/// All clones count together.
#[derive(Clone, Debug)]
pub struct StoreMetrics {
    operation_seconds: Family<OperationLabel, Histogram, fn() -> Histogram>,
    pool_wait_seconds: Family<PoolLabel, Histogram, fn() -> Histogram>,
    connections: Family<PoolLabel, Gauge>,
    abandoned_connections: Gauge,
    statement_boundaries: Histogram,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OperationLabel {
    operation: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PoolLabel {
    pool: &'static str,
}

impl Default for StoreMetrics {
    fn default() -> Self {
        Self {
            operation_seconds: Family::new_with_constructor(seconds),
            pool_wait_seconds: Family::new_with_constructor(seconds),
            connections: Family::default(),
            abandoned_connections: Gauge::default(),
            statement_boundaries: Histogram::new(exponential_buckets(1.0, 2.0, 6)),
        }
    }
}

/// From 0.5 ms to 16 s.
fn seconds() -> Histogram {
    Histogram::new(exponential_buckets(0.000_5, 2.0, 16))
}

impl StoreMetrics {
    /// Registers the metrics as `store_…`, below the prefix of the registry.
    pub fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("store");
        registry.register(
            "operation_seconds",
            "Duration of an operation of the store, by operation",
            self.operation_seconds.clone(),
        );
        registry.register(
            "pool_wait_seconds",
            "Time that a call waited for a connection to PostgreSQL, by pool",
            self.pool_wait_seconds.clone(),
        );
        registry.register("connections", "Open connections to PostgreSQL, by pool", self.connections.clone());
        registry.register(
            "abandoned_connections",
            "Connections to PostgreSQL whose call was given up and whose statement has not ended",
            self.abandoned_connections.clone(),
        );
        registry.register(
            "statement_boundaries",
            "Boundaries that one statement committed in PostgreSQL",
            self.statement_boundaries.clone(),
        );
    }

    /// The sizes of batches of commits.
    #[cfg(feature = "postgres")]
    pub(crate) fn statement_boundaries(&self) -> Histogram {
        self.statement_boundaries.clone()
    }

    pub(crate) fn operation_took(&self, operation: &'static str, time: Duration) {
        self.operation_seconds.get_or_create(&OperationLabel { operation }).observe(time.as_secs_f64());
    }

    #[cfg(feature = "postgres")]
    pub(crate) fn of_pool(&self, pool: &'static str) -> PoolMetrics {
        let label = PoolLabel { pool };
        PoolMetrics {
            wait_seconds: self.pool_wait_seconds.get_or_create_owned(&label),
            connections: self.connections.get_or_create_owned(&label),
        }
    }

    /// Counts an abandoned connection until the returned value is dropped.
    #[cfg(feature = "postgres")]
    pub(crate) fn count_abandoned(&self) -> Counted {
        Counted::new(self.abandoned_connections.clone())
    }
}

/// The metrics of one pool.
#[cfg(feature = "postgres")]
#[derive(Clone, Debug)]
pub(crate) struct PoolMetrics {
    wait_seconds: Histogram,
    connections: Gauge,
}

#[cfg(feature = "postgres")]
impl PoolMetrics {
    pub fn waited(&self, time: Duration) {
        self.wait_seconds.observe(time.as_secs_f64());
    }

    /// Counts an open connection until the returned value is dropped.
    pub fn count_connection(&self) -> Counted {
        Counted::new(self.connections.clone())
    }
}

/// Counts one in a gauge until it is dropped.
#[cfg(feature = "postgres")]
#[derive(Debug)]
pub(crate) struct Counted(Gauge);

#[cfg(feature = "postgres")]
impl Counted {
    fn new(gauge: Gauge) -> Self {
        gauge.inc();
        Self(gauge)
    }
}

#[cfg(feature = "postgres")]
impl Drop for Counted {
    fn drop(&mut self) {
        self.0.dec();
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;

    use super::*;

    const PAGE: &str = include_str!("../../../docs/reference/metrics.md");

    #[test]
    fn the_page_lists_every_metric() {
        let section = PAGE.split("\n## ").find(|section| section.starts_with("Store\n")).unwrap_or_default();
        let rows = section.lines().filter_map(|line| line.strip_prefix("| `dalsegno_")?.split_once("` | "));
        let mut documented: Vec<_> =
            rows.map(|(name, rest)| (name, rest.split(" |").next().unwrap_or_default())).collect();
        let (mut registry, mut text) = (Registry::default(), String::new());
        let metrics = StoreMetrics::default();
        metrics.register(&mut registry);
        metrics.operation_took("commit", Duration::from_millis(3));
        metrics.of_pool("statements").waited(Duration::ZERO);
        encode(&mut text, &registry).expect("metrics are text");
        let mut exported: Vec<_> =
            text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' ')).collect();
        documented.sort_unstable();
        exported.sort_unstable();
        assert_eq!(documented, exported);
    }
}
