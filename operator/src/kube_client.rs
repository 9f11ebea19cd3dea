//! The client of the API server. Every request has a timeout, no request is retried by the client, and a connection
//! whose other end is gone is found by keepalive.

use std::time::{Duration, Instant};

use axum::http::Request;
use http_body_util::BodyExt;
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use kube::client::{Body, ConfigExt as _};
use kube::{Client, Config};
use tokio::time::timeout;
use tower::{BoxError, ServiceBuilder, service_fn};
use tower_http::timeout::TimeoutBody;

use crate::cache::watch_health::WatchHealth;

/// Timeout of a response, and of each part of its body. The API server itself gives up after 60 s by default
/// (`--request-timeout`), webhooks included.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(65);
/// Longest silence of a watch. The API server sends a bookmark each minute.
const WATCH_IDLE_TIMEOUT: Duration = Duration::from_secs(90);

/// A connection that carries nothing for so long is probed, and then once in each interval.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(15);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
/// After so many probes without an answer the connection fails.
const KEEPALIVE_PROBES: u32 = 3;

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

/// Hosts of the API server, as names or addresses: the one that a client connects to, and the service of the cluster.
pub async fn api_server_hosts() -> Vec<String> {
    let config = Config::infer().await.ok();
    let connected = config.and_then(|it| Some(it.cluster_url.host()?.trim_matches(['[', ']']).to_owned()));
    connected.into_iter().chain(std::env::var("KUBERNETES_SERVICE_HOST").ok()).collect()
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

/// A client of the API server of the pod that this program runs in, with the pod's service account.
///
/// # Errors
///
/// The program does not run in a pod, or the configuration is invalid.
pub fn connect_in_pod() -> anyhow::Result<Client> {
    Ok(from_config(Config::incluster()?)?)
}

fn is_watch(request: &Request<Body>) -> bool {
    request.uri().query().is_some_and(|it| it.contains("watch=true"))
}

/// Without kube's retries: callers have a backoff of their own, and a retry would hold a run's slot for minutes.
fn from_config(mut config: Config) -> kube::Result<Client> {
    config.default_retry = false;
    let client = match &config.proxy_url {
        // Only kube's own client knows which proxies this build supports. It sets no keepalive.
        Some(_) => Client::try_from(config)?,
        None => with_keepalive(&config)?,
    };
    Ok(with_timeout(client, REQUEST_TIMEOUT))
}

/// The layers of kube's own client, over connections with keepalive. kube puts them together in the same order: the
/// address of the API server, the credentials (the token's file is read again each minute), more headers, TLS with the
/// client's certificate.
fn with_keepalive(config: &Config) -> kube::Result<Client> {
    let mut connector = HttpConnector::new();
    connector.enforce_http(false);
    connector.set_nodelay(true);
    connector.set_connect_timeout(config.connect_timeout);
    connector.set_keepalive(Some(KEEPALIVE_IDLE));
    connector.set_keepalive_interval(Some(KEEPALIVE_INTERVAL));
    connector.set_keepalive_retries(Some(KEEPALIVE_PROBES));
    let connector = config.rustls_https_connector_with_connector(connector)?;
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(HttpClient::builder(TokioExecutor::new()).build(connector));
    Ok(Client::new(service, config.default_namespace.clone()))
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
    use axum::http::{HeaderMap, Response, StatusCode};
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

    /// The timer of each established connection to this port, as the kernel shows it: `02` is keepalive.
    fn timers_of_connections_to(port: u16) -> Vec<String> {
        let table = std::fs::read_to_string("/proc/self/net/tcp").unwrap();
        let rows = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let to_port = rows.filter(|row| row[2].ends_with(&format!(":{port:04X}")) && row[3] == "01");
        to_port.map(|row| row[5][..2].to_owned()).collect()
    }

    #[tokio::test]
    async fn a_silent_watch_is_probed_by_keepalive() {
        let server = Router::new().fallback(|| async {
            let partial = stream::iter([Ok::<_, Infallible>("{")]).chain(stream::pending());
            axum::body::Body::from_stream(partial)
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async { axum::serve(listener, server).await });
        let client = from_config(Config::new(format!("http://{address}").parse().unwrap())).unwrap();
        let nodes = Api::<Node>::all(client);
        let _watch = nodes.watch(&WatchParams::default(), "0").await.unwrap();
        assert_eq!(timers_of_connections_to(address.port()), ["02"]);
    }

    #[tokio::test]
    async fn the_token_of_the_service_account_is_read_from_its_file() {
        let server = Router::new().fallback(|headers: HeaderMap| async move {
            let token = headers["authorization"].to_str().unwrap().to_owned();
            (StatusCode::FORBIDDEN, token)
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async { axum::serve(listener, server).await });
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "secret-1").unwrap();
        let mut config = Config::new(url.parse().unwrap());
        config.auth_info.token_file = Some(file.path().to_str().unwrap().to_owned());
        let client = from_config(config).unwrap();
        let error = Api::<Node>::all(client).get("n1").await.unwrap_err();
        assert!(format!("{error:?}").contains("Bearer secret-1"), "{error:?}");
    }

    #[tokio::test]
    async fn a_proxy_is_used() {
        let proxy = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut config = Config::new("http://127.0.0.1:1".parse().unwrap());
        config.proxy_url = Some(format!("http://{}", proxy.local_addr().unwrap()).parse().unwrap());
        let nodes = Api::<Node>::all(from_config(config).unwrap());
        let request = tokio::spawn(async move { nodes.get("n1").await });
        timeout(Duration::from_secs(10), proxy.accept()).await.expect("the proxy is not used").unwrap();
        request.abort();
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
