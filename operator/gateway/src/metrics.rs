//! What is counted. Labels are few and fixed: a call and a code, never a run.

use std::time::Duration;

use dalsegno_protocol::Code;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

/// The gateway's metrics.
pub(crate) struct Metrics {
    requests: Family<Answered, Counter>,
    commit_seconds: Histogram,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Answered {
    call: &'static str,
    code: String,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            requests: Family::default(),
            // 0.5 ms to 8 s.
            commit_seconds: Histogram::new(exponential_buckets(0.000_5, 2.0, 15)),
        }
    }
}

impl Metrics {
    pub(crate) fn register(&self, registry: &mut Registry) {
        registry.register(
            "gateway_requests",
            "Calls of workers, by call and by the code of the answer (OK, or the problem's)",
            self.requests.clone(),
        );
        registry.register(
            "gateway_commit_seconds",
            "From a boundary's body being there to its being durable",
            self.commit_seconds.clone(),
        );
    }

    /// One call was answered; without a code it was a success.
    pub(crate) fn answered(&self, call: &'static str, code: Option<Code>) {
        let code = code.map_or_else(|| "OK".to_owned(), |code| code.to_string());
        self.requests.get_or_create(&Answered { call, code }).inc();
    }

    /// A boundary was committed.
    pub(crate) fn committed(&self, took: Duration) {
        self.commit_seconds.observe(took.as_secs_f64());
    }
}
