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

/// Why the program must be restarted, if it must.
pub type Failure = Arc<dyn Fn() -> Option<String> + Send + Sync>;

/// What the probes ask.
#[derive(Default)]
pub struct Probes {
    /// Whether each part is ready.
    pub ready: Vec<Ready>,
    /// Why the program must be restarted. The first reason is shown.
    pub failures: Vec<Failure>,
}

/// Serves `/healthz`, `/readyz` and `/metrics` until `stop` is ready.
///
/// # Errors
///
/// The address cannot be bound.
pub async fn serve_health(
    listen: SocketAddr,
    probes: Probes,
    registry: Registry,
    stop: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    axum::serve(crate::listen::listen(listen).await?, router(probes, registry))
        .with_graceful_shutdown(stop)
        .await
}

fn router(probes: Probes, registry: Registry) -> Router {
    let registry = Arc::new(Mutex::new(registry));
    let metrics = move || async move {
        let mut text = String::new();
        let encoded = encode(&mut text, &lock(&registry));
        let status = if encoded.is_ok() { StatusCode::OK } else { StatusCode::INTERNAL_SERVER_ERROR };
        (status, [(header::CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8")], text)
    };
    let Probes { ready, failures } = probes;
    let liveness = move || async move {
        match failures.iter().find_map(|failure| failure()) {
            None => (StatusCode::OK, "alive".to_owned()),
            Some(why) => (StatusCode::SERVICE_UNAVAILABLE, why),
        }
    };
    let readiness = move || async move {
        if ready.iter().all(|part| part()) {
            (StatusCode::OK, "ready")
        } else {
            (StatusCode::SERVICE_UNAVAILABLE, "not ready")
        }
    };
    Router::new()
        .route("/healthz", get(liveness))
        .route("/readyz", get(readiness))
        .route("/metrics", get(metrics))
}

#[cfg(test)]
mod tests {
    use axum::body::{Body, to_bytes};
    use axum::http::Request;
    use tower::ServiceExt as _;

    use super::*;

    async fn get(probes: &Probes, path: &str) -> (StatusCode, String) {
        let probes = Probes { ready: probes.ready.clone(), failures: probes.failures.clone() };
        let request = Request::get(path).body(Body::empty()).expect("a request");
        let response = router(probes, Registry::default()).oneshot(request).await.expect("a response");
        let status = response.status();
        let body = to_bytes(response.into_body(), 10_000).await.expect("a body");
        (status, String::from_utf8_lossy(&body).into_owned())
    }

    #[tokio::test]
    async fn a_program_whose_store_has_failed_is_not_alive() {
        let probes = Probes::default();
        assert_eq!(get(&probes, "/healthz").await, (StatusCode::OK, "alive".into()));
        let probes = Probes { failures: vec![Arc::new(|| None)], ..probes };
        assert_eq!(get(&probes, "/healthz").await.0, StatusCode::OK);
        let probes =
            Probes { failures: vec![Arc::new(|| None), Arc::new(|| Some("it is broken".into()))], ..probes };
        assert_eq!(get(&probes, "/healthz").await, (StatusCode::SERVICE_UNAVAILABLE, "it is broken".into()));
    }

    #[tokio::test]
    async fn a_program_is_ready_when_each_part_is() {
        let probes = Probes { ready: vec![Arc::new(|| true), Arc::new(|| false)], failures: Vec::new() };
        assert_eq!(get(&probes, "/readyz").await.0, StatusCode::SERVICE_UNAVAILABLE);
        let probes = Probes { ready: vec![Arc::new(|| true)], failures: Vec::new() };
        assert_eq!(get(&probes, "/readyz").await.0, StatusCode::OK);
    }
}
