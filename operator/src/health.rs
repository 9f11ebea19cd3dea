//! Health and metrics over HTTP.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::http::{StatusCode, header};
use axum::routing::get;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;

use crate::mutex::lock;

/// A check of one part of the program.
pub type Check = Arc<dyn Fn() -> bool + Send + Sync>;

/// What the health endpoints check.
pub struct Checks {
    /// The program is ready if all of these are true.
    pub ready: Vec<Check>,
    /// The program is alive if this is true; else it must be restarted.
    pub alive: Check,
}

/// Serves `/healthz`, `/readyz` and `/metrics` until `stop` is ready.
///
/// # Errors
///
/// The address cannot be bound.
pub async fn serve_health(
    listen: SocketAddr,
    checks: Checks,
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
    let Checks { ready, alive } = checks;
    let liveness = move || async move {
        if alive() {
            (StatusCode::OK, "alive")
        } else {
            (StatusCode::SERVICE_UNAVAILABLE, "the watches of the API server deliver nothing")
        }
    };
    let readiness = move || async move {
        if ready.iter().all(|part| part()) {
            (StatusCode::OK, "ready")
        } else {
            (StatusCode::SERVICE_UNAVAILABLE, "not ready")
        }
    };
    let app = Router::new()
        .route("/healthz", get(liveness))
        .route("/readyz", get(readiness))
        .route("/metrics", get(metrics));
    axum::serve(crate::listen::listen(listen).await?, app).with_graceful_shutdown(stop).await
}
