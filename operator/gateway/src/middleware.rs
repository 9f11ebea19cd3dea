//! Wraps every call: a tracing span, a count, a log line, and an answer even if the handler panics.

use std::any::Any;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use axum::extract::{MatchedPath, Request, State};
use axum::http::HeaderName;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use dalsegno_model::RunId;
use dalsegno_protocol::Code;
use tracing::{Instrument, field};

use crate::extractors::RUNS;
use crate::gateway::Gateway;
use crate::response::ApiProblem;

/// What [`observe`] needs: the metrics, and the name of each path's call.
#[derive(Clone)]
pub(crate) struct Observer {
    gateway: Gateway,
    call_names: Arc<HashMap<String, &'static str>>,
}

impl Observer {
    /// `call_names`: from the path of a route to the name of its call.
    pub(crate) fn new(gateway: Gateway, call_names: HashMap<String, &'static str>) -> Self {
        Self { gateway, call_names: Arc::new(call_names) }
    }

    fn call_name(&self, request: &Request) -> &'static str {
        let path = request.extensions().get::<MatchedPath>();
        path.and_then(|path| self.call_names.get(path.as_str()).copied()).unwrap_or("unknown")
    }
}

/// Opens the call's span, counts its answer and logs it. The detail of a problem is not logged, because it may quote
/// the body.
pub(crate) async fn observe(State(observer): State<Observer>, request: Request, next: Next) -> Response {
    let call = observer.call_name(&request);
    let span = tracing::info_span!("call", call, run = field::Empty);
    if let Some(run) = run_of(request.uri().path()) {
        span.record("run", field::display(run));
    }
    let started = Instant::now();
    let response = next.run(request).instrument(span.clone()).await;
    let code = response.extensions().get::<Code>().copied();
    observer.gateway.metrics.answered(call, code);
    let _entered = span.enter();
    let micros = u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX);
    match code {
        None => tracing::debug!(micros, "answered"),
        Some(Code::Internal) => tracing::error!(micros, "failed"),
        Some(code) => tracing::info!(%code, micros, "refused"),
    }
    response
}

/// Drops the headers by which a front proxy names a user. On this listener anybody could send them, and no code may
/// ever see them.
pub(crate) async fn drop_proxy_headers(mut request: Request) -> Request {
    let is_foreign = |name: &&HeaderName| name.as_str().starts_with("x-remote-");
    let foreign: Vec<_> = request.headers().keys().filter(is_foreign).cloned().collect();
    for name in foreign {
        request.headers_mut().remove(name);
    }
    request
}

/// The answer of a handler that panicked.
pub(crate) fn panicked(_: Box<dyn Any + Send + 'static>) -> Response {
    ApiProblem::new(
        Code::Internal,
        "the gateway has a defect, so the outcome of this call is unknown; send the same bytes again",
    )
    .into_response()
}

/// The run that a worker's path names, also if no call has this path.
fn run_of(path: &str) -> Option<RunId> {
    path.strip_prefix(RUNS)?.split('/').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;

    #[tokio::test]
    async fn the_headers_of_a_front_proxy_reach_no_handler() {
        let request = Request::builder()
            .header("x-remote-user", "root")
            .header("X-Remote-Group", "system:masters")
            .header("x-remote-extra-a%2fb", "1")
            .header("x-remotely", "kept")
            .header("authorization", "Bearer a")
            .body(Body::empty())
            .unwrap();
        let request = drop_proxy_headers(request).await;
        let mut left: Vec<_> = request.headers().keys().map(HeaderName::as_str).collect();
        left.sort_unstable();
        assert_eq!(left, ["authorization", "x-remotely"]);
    }
}
