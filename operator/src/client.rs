//! The client of the API server: whatever is asked through it comes to an end, and nothing is asked again behind our back.

use std::time::Duration;

use axum::http::Request;
use kube::client::Body;
use kube::{Client, Config};
use tokio::time::timeout;
use tower::{BoxError, service_fn};
use tower_http::timeout::TimeoutBody;

/// How long an answer may take, and each part of it. The API server gives up a request after 60 s unless it is told
/// otherwise (`--request-timeout`), webhooks of others and all: what comes later comes never.
const PATIENCE: Duration = Duration::from_secs(65);
/// How long a watch may be silent. Watches end after 290 s, and whoever reads one gives it up by then.
const SILENCE: Duration = Duration::from_secs(300);

/// The client of the API server that the environment names.
///
/// # Errors
///
/// The environment names none, or not how to reach it.
pub async fn connect() -> kube::Result<Client> {
    of(Config::infer().await.map_err(kube::Error::InferConfig)?)
}

/// Whoever asks has a backoff of its own: a client that asks again would keep a run's slot for minutes meanwhile.
fn of(mut config: Config) -> kube::Result<Client> {
    config.default_retry = false;
    Ok(bounded(Client::try_from(config)?, PATIENCE))
}

/// The same, with an end to everything that is asked: an error once the answer, or a part of it, has taken this long.
/// Only a watch may be silent for longer.
pub fn bounded(client: Client, patience: Duration) -> Client {
    let namespace = client.default_namespace().to_owned();
    let service = service_fn(move |request: Request<Body>| {
        let client = client.clone();
        async move {
            let is_watch = request.uri().query().is_some_and(|it| it.contains("watch=true"));
            let answer = timeout(patience, client.send(request)).await;
            let answer = answer.map_err(|_| format!("no answer within {patience:?}"))??;
            let between = if is_watch { SILENCE } else { patience };
            Ok::<_, BoxError>(answer.map(|body| TimeoutBody::new(between, body)))
        }
    });
    Client::new(service, namespace)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a case that cannot go on has failed")]

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

    /// An API server that never answers for a Node, and of a Namespace and of a watch only begins to tell.
    fn silent() -> Client {
        let service = service_fn(|request: Request<Body>| async move {
            if request.uri().path().ends_with("/nodes/n1") {
                future::pending::<()>().await;
            }
            let begun = stream::iter([Ok::<_, Infallible>("{")]).chain(stream::pending());
            Ok::<_, Infallible>(Response::new(axum::body::Body::from_stream(begun)))
        });
        bounded(Client::new(service, "shop"), SHORT)
    }

    #[tokio::test]
    async fn what_gets_no_answer_or_half_of_one_fails_and_a_watch_may_be_silent() {
        let all = async {
            let error = Api::<Node>::all(silent()).get("n1").await.unwrap_err();
            assert!(error.to_string().contains("no answer within 100ms"), "{error}");
            Api::<Namespace>::all(silent()).get("shop").await.unwrap_err();
            let watch = Api::<Node>::all(silent());
            let watch = watch.watch(&WatchParams::default(), "0").await.unwrap();
            let first = timeout(SHORT * 5, watch.boxed().next()).await;
            assert!(first.is_err(), "it goes on: {first:?}");
        };
        timeout(Duration::from_secs(20), all).await.expect("it comes to an end");
    }

    #[tokio::test]
    async fn what_an_api_server_has_no_time_for_is_not_asked_again() {
        let asked = Arc::new(AtomicUsize::new(0));
        let count = asked.clone();
        let server = Router::new().fallback(move || async move {
            count.fetch_add(1, Ordering::Relaxed);
            StatusCode::SERVICE_UNAVAILABLE
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async { axum::serve(listener, server).await });
        let client = of(Config::new(url.parse().unwrap())).unwrap();
        let error = Api::<Node>::all(client).get("n1").await.unwrap_err();
        assert!(matches!(&error, kube::Error::Api(status) if status.code == 503), "{error}");
        assert_eq!(asked.load(Ordering::Relaxed), 1);
    }
}
