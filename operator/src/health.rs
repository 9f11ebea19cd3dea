//! Health and metrics over HTTP.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::http::{StatusCode, header};
use axum::routing::get;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;

use crate::mutex::lock;

/// Whether one part of the program is ready.
pub type Ready = Arc<dyn Fn() -> bool + Send + Sync>;

/// Serves `/healthz`, `/readyz` and `/metrics` until `stop` is ready.
///
/// # Errors
///
/// The address cannot be bound.
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
    axum::serve(crate::listen::listen(listen).await?, app).with_graceful_shutdown(stop).await
}
