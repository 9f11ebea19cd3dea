//! The client of the API server. Every request has a timeout, and no request is retried by the client.

use std::time::{Duration, Instant};

use axum::http::Request;
use http_body_util::BodyExt;
use kube::client::Body;
use kube::{Client, Config};
use tokio::time::timeout;
use tower::{BoxError, service_fn};
use tower_http::timeout::TimeoutBody;

use crate::cache::watch_health::WatchHealth;

/// Timeout of a response, and of each part of its body. The API server itself gives up after 60 s by default
/// (`--request-timeout`), webhooks included.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(65);
/// Longest silence of a watch. The API server sends a bookmark each minute.
const WATCH_IDLE_TIMEOUT: Duration = Duration::from_secs(90);

/// A client of the API server that the environment names: the pod's service account, or a kubeconfig. Records what it hears
/// in `health`.
///
/// # Errors
///
/// The environment names no API server, or its configuration is invalid.
pub async fn connect(health: WatchHealth) -> kube::Result<Client> {
    let config = Config::infer().await.map_err(kube::Error::InferConfig)?;
    Ok(observed(from_config(config)?, health))
}

/// The client, with a record of each answer and of each part of a watch.
fn observed(client: Client, health: WatchHealth) -> Client {
    let namespace = client.default_namespace().to_owned();
    let service = service_fn(move |request: Request<Body>| {
        let (client, health) = (client.clone(), health.clone());
        async move {
            let watch = is_watch(&request).then(|| request.uri().path().to_owned());
            let response = client.send(request).await?;
            health.answered(Instant::now());
            let record = move || {
                if let Some(path) = &watch {
                    health.heard(path, Instant::now());
                }
            };
            record();
            Ok::<_, BoxError>(response.map(|body| {
                body.map_frame(move |frame| {
                    record();
                    frame
                })
            }))
        }
    });
    Client::new(service, namespace)
}

fn is_watch(request: &Request<Body>) -> bool {
    request.uri().query().is_some_and(|it| it.contains("watch=true"))
}

/// Without kube's retries: callers have a backoff of their own, and a retry would hold a run's slot for minutes.
fn from_config(mut config: Config) -> kube::Result<Client> {
    config.default_retry = false;
    Ok(with_timeout(Client::try_from(config)?, REQUEST_TIMEOUT))
}

/// The client with a timeout for every response and for each part of its body. Only the body of a watch may be silent for
/// longer.
pub fn with_timeout(client: Client, limit: Duration) -> Client {
    let namespace = client.default_namespace().to_owned();
    let service = service_fn(move |request: Request<Body>| {
        let client = client.clone();
        async move {
            let is_watch = is_watch(&request);
            let response = timeout(limit, client.send(request)).await;
            let response = response.map_err(|_| format!("no answer within {limit:?}"))??;
            let idle = if is_watch { WATCH_IDLE_TIMEOUT } else { limit };
            Ok::<_, BoxError>(response.map(|body| TimeoutBody::new(idle, body)))
        }
    });
    Client::new(service, namespace)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a panic fails the test")]

    use std::convert::Infallible;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use axum::Router;
    use axum::http::{Response, StatusCode};
    use futures::{StreamExt, future, stream};
    use k8s_openapi::api::core::v1::{Namespace, Node};
    use kube::Api;
    use kube::api::WatchParams;
    use tokio::net::TcpListener;

    use super::*;

    const SHORT: Duration = Duration::from_millis(100);

    /// An API server that never answers for a Node, and stops in the middle of a Namespace and of a watch.
    fn silent() -> Client {
        let service = service_fn(|request: Request<Body>| async move {
            if request.uri().path().ends_with("/nodes/n1") {
                future::pending::<()>().await;
            }
            let partial = stream::iter([Ok::<_, Infallible>("{")]).chain(stream::pending());
            Ok::<_, Infallible>(Response::new(axum::body::Body::from_stream(partial)))
        });
        with_timeout(Client::new(service, "shop"), SHORT)
    }

    #[tokio::test]
    async fn a_missing_or_incomplete_response_fails_and_a_watch_may_be_silent() {
        let all = async {
            let error = Api::<Node>::all(silent()).get("n1").await.unwrap_err();
            assert!(error.to_string().contains("no answer within 100ms"), "{error}");
            Api::<Namespace>::all(silent()).get("shop").await.unwrap_err();
            let watch = Api::<Node>::all(silent());
            let watch = watch.watch(&WatchParams::default(), "0").await.unwrap();
            let first = timeout(SHORT * 5, watch.boxed().next()).await;
            assert!(first.is_err(), "the watch stays open: {first:?}");
        };
        timeout(Duration::from_secs(20), all).await.expect("it ends");
    }

    #[tokio::test]
    async fn a_watch_is_heard_with_each_part_and_a_silent_one_is_not() {
        let health = WatchHealth::default();
        let client = observed(silent(), health.clone());
        let nodes = Api::<Node>::all(client);
        let watch = nodes.watch(&WatchParams::default(), "0").await.unwrap();
        let _ = timeout(SHORT, watch.boxed().next()).await;
        let now = Instant::now();
        let age = health.ages(now)["nodes"];
        assert!(age > Duration::ZERO && age < Duration::from_secs(10), "{age:?}");
        assert_eq!(health.ages(now + SHORT)["nodes"], age + SHORT);
    }

    #[tokio::test]
    async fn a_request_that_an_overloaded_api_server_rejects_is_not_retried() {
        let requests = Arc::new(AtomicUsize::new(0));
        let count = requests.clone();
        let server = Router::new().fallback(move || async move {
            count.fetch_add(1, Ordering::Relaxed);
            StatusCode::SERVICE_UNAVAILABLE
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async { axum::serve(listener, server).await });
        let client = from_config(Config::new(url.parse().unwrap())).unwrap();
        let error = Api::<Node>::all(client).get("n1").await.unwrap_err();
        assert!(matches!(&error, kube::Error::Api(status) if status.code == 503), "{error}");
        assert_eq!(requests.load(Ordering::Relaxed), 1);
    }
}
