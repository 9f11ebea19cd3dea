//! Around every call: one span, one count, and an answer even if the code panics.

use std::any::Any;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use dalsegno_protocol::Code;
use dalsegno_store::RunId;
use tracing::{Instrument, field};

use crate::extractors::RUNS;
use crate::gateway::Gateway;
use crate::response::Refusal;

/// What observes calls: the counts, and the name of each route's call.
#[derive(Clone)]
pub(crate) struct Observer {
    gateway: Gateway,
    names: Arc<HashMap<String, &'static str>>,
}

impl Observer {
    pub(crate) fn new(gateway: Gateway) -> Self {
        Self { gateway, names: Arc::default() }
    }

    /// Calls of this route have this name.
    pub(crate) fn name(&mut self, path: String, call: &'static str) {
        Arc::make_mut(&mut self.names).insert(path, call);
    }
}

/// Opens the call's span, counts its answer and logs it. Details of problems are not logged: they may quote a body.
pub(crate) async fn observe(State(observer): State<Observer>, request: Request, next: Next) -> Response {
    let call = call_name(&observer, &request);
    let span = tracing::info_span!("call", call, run = field::Empty);
    if let Some(run) = run(request.uri().path()) {
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

/// Answers for code that panicked.
pub(crate) fn panicked(_: Box<dyn Any + Send + 'static>) -> Response {
    Refusal::new(
        Code::Internal,
        "the gateway has a defect, so the outcome of this call is not known; send the same bytes again",
    )
    .into_response()
}

fn call_name(observer: &Observer, request: &Request) -> &'static str {
    let path = request.extensions().get::<MatchedPath>();
    path.and_then(|path| observer.names.get(path.as_str()).copied()).unwrap_or("unknown")
}

fn run(path: &str) -> Option<RunId> {
    path.strip_prefix(RUNS)?.split('/').next()?.parse().ok()
}
