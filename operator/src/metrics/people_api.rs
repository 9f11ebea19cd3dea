//! Metrics of the aggregated API's registration.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// Metrics of the registration of the aggregated API.
#[derive(Clone, Default)]
pub struct PeopleApiMetrics {
    /// Whether it is registered.
    pub registered: Gauge,
    /// Withdrawals because the API server reached no gateway.
    pub withdrawals: Counter,
}

impl PeopleApiMetrics {
    /// Registers them below the prefix of the operator.
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "people_api_registered",
            "Whether the operator has registered the aggregated API (1)",
            self.registered.clone(),
        );
        registry.register(
            "people_api_withdrawals",
            "Withdrawals of the aggregated API, because the API server reached no gateway",
            self.withdrawals.clone(),
        );
    }
}
