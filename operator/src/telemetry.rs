//! What the program says of itself: JSON logs, metrics, health.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::http::{StatusCode, header};
use axum::routing::get;
use prometheus_client::encoding::{EncodeLabelSet, text::encode};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::sync::lock;

/// Logs as JSON lines on standard error, from this level on (`error`, `warn`, `info`, `debug`, `trace`).
pub fn log(level: tracing::level_filters::LevelFilter) {
    let json = tracing_subscriber::fmt::layer().json().with_writer(std::io::stderr).flatten_event(true);
    tracing_subscriber::registry().with(level).with(json).init();
}

/// An error with its sources, in one line.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        text = format!("{text}: {inner}");
        source = inner.source();
    }
    text
}

/// The operator's metrics. No label ever names a run.
#[derive(Clone, Default)]
pub struct Metrics {
    effects: Family<EffectLabel, Counter>,
    ended: Family<CauseLabel, Counter>,
    reconciles: Family<OutcomeLabel, Counter>,
    pulses: Family<OutcomeLabel, Counter>,
    active: Gauge,
    seconds: Seconds,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EffectLabel {
    effect: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CauseLabel {
    cause: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabel {
    outcome: &'static str,
}

#[derive(Clone)]
struct Seconds(Histogram);

impl Default for Seconds {
    fn default() -> Self {
        Self(Histogram::new(exponential_buckets(0.001, 2.0, 14)))
    }
}

fn outcome(ok: bool) -> OutcomeLabel {
    OutcomeLabel { outcome: if ok { "ok" } else { "error" } }
}

impl Metrics {
    /// Puts them into a registry, as `operator_…` under the registry's own prefix.
    pub fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("operator");
        registry.register("effects", "Changes made, by effect", self.effects.clone());
        registry.register("attempts_ended", "Attempts ended, by cause", self.ended.clone());
        registry.register("reconciles", "Reconciles, by outcome", self.reconciles.clone());
        registry.register("pulses", "Queries for deadlines and changes, by outcome", self.pulses.clone());
        registry.register("active_runs", "Runs with an attached worker", self.active.clone());
        registry.register("reconcile_seconds", "Time a reconcile took", self.seconds.0.clone());
    }

    /// An effect was performed.
    pub fn effect(&self, effect: &'static str) {
        self.effects.get_or_create(&EffectLabel { effect }).inc();
    }

    /// An attempt was ended for this cause.
    pub fn ended(&self, cause: &str) {
        self.ended.get_or_create(&CauseLabel { cause: cause.to_owned() }).inc();
    }

    /// A reconcile came to an end.
    pub fn reconciled(&self, took: Duration, ok: bool) {
        self.reconciles.get_or_create(&outcome(ok)).inc();
        self.seconds.0.observe(took.as_secs_f64());
    }

    /// The store was asked for its pulse.
    pub fn pulse(&self, ok: bool) {
        self.pulses.get_or_create(&outcome(ok)).inc();
    }

    /// So many runs have an attached worker.
    pub fn active(&self, runs: i64) {
        self.active.set(runs);
    }
}

/// Answers whether one part of the program is ready.
pub type Ready = Arc<dyn Fn() -> bool + Send + Sync>;

/// Serves `/healthz`, `/readyz` and `/metrics` until `stop` is ready.
///
/// # Errors
///
/// The address cannot be listened on.
pub async fn serve_health(
    listen: SocketAddr,
    ready: Vec<Ready>,
    registry: Registry,
    stop: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    let registry = Arc::new(Mutex::new(registry));
    let metrics = move || async move {
        let mut text = String::new();
        let encoded = encode(&mut text, &lock(&registry));
        let status = if encoded.is_ok() { StatusCode::OK } else { StatusCode::INTERNAL_SERVER_ERROR };
        (status, [(header::CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8")], text)
    };
    let readiness = move || async move {
        if ready.iter().all(|part| part()) {
            (StatusCode::OK, "ready")
        } else {
            (StatusCode::SERVICE_UNAVAILABLE, "not ready")
        }
    };
    let app = Router::new()
        .route("/healthz", get(|| async { "alive" }))
        .route("/readyz", get(readiness))
        .route("/metrics", get(metrics));
    axum::serve(TcpListener::bind(listen).await?, app).with_graceful_shutdown(stop).await
}
