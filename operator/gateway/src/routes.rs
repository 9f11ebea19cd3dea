//! Which call is answered where.

use axum::Router;
use axum::middleware::from_fn_with_state;
use axum::routing::{get, post};
use dalsegno_protocol::Code;
use tower_http::catch_panic::CatchPanicLayer;

use crate::gateway::Gateway;
use crate::refusal::Refusal;
use crate::{attach, boundary, calls, end, events, export, heartbeat, observe, read, records};

/// Where runs are found.
pub(crate) const RUNS: &str = "/v1/runs/";

/// The calls of the contract, by path and by the name that metrics and logs know them by.
const ATTACH: (&str, &str) = ("/v1/runs/{run_id}/attach", "attach");
const PLAN: (&str, &str) = ("/v1/runs/{run_id}/turns/{turn}/plan", "plan");
const TURN: (&str, &str) = ("/v1/runs/{run_id}/turns/{turn}", "turn");
const HEARTBEAT: (&str, &str) = ("/v1/runs/{run_id}/heartbeat", "heartbeat");
const CLAIM: (&str, &str) = ("/v1/runs/{run_id}/calls/{call}/claim", "claim");
const COMPLETE: (&str, &str) = ("/v1/runs/{run_id}/calls/{call}/complete", "complete");
const SETTLE: (&str, &str) = ("/v1/runs/{run_id}/calls/{call}/settle", "settle");
const FINISH: (&str, &str) = ("/v1/runs/{run_id}/finish", "finish");
const CANCELLED: (&str, &str) = ("/v1/runs/{run_id}/cancelled", "cancelled");
const STATE: (&str, &str) = ("/v1/runs/{run_id}/state", "state");
const MEMORY_DELTA: (&str, &str) = ("/v1/runs/{run_id}/memory-delta", "memory-delta");
const EVENTS: (&str, &str) = ("/v1/runs/{run_id}/events", "events");
const EXPORT: (&str, &str) = ("/v1/runs/{run_id}/export", "export");
const CHECKPOINT: (&str, &str) = ("/v1/runs/{run_id}/checkpoint", "checkpoint");
const RECORDS: (&str, &str) = ("/v1/runs/{run_id}/records", "records");

/// The same for people, who name the run as `kubectl` does.
const PEOPLES_STATE: (&str, &str) = ("/v1/namespaces/{namespace}/agentruns/{name}/state", "state");
const PEOPLES_MEMORY_DELTA: (&str, &str) =
    ("/v1/namespaces/{namespace}/agentruns/{name}/memory-delta", "memory-delta");
const PEOPLES_EVENTS: (&str, &str) = ("/v1/namespaces/{namespace}/agentruns/{name}/events", "events");
const PEOPLES_EXPORT: (&str, &str) = ("/v1/namespaces/{namespace}/agentruns/{name}/export", "export");
const PEOPLES_CHECKPOINT: (&str, &str) =
    ("/v1/namespaces/{namespace}/agentruns/{name}/checkpoint", "checkpoint");
const PEOPLES_RECORDS: (&str, &str) = ("/v1/namespaces/{namespace}/agentruns/{name}/records", "records");

/// The worker's contract over HTTP, and what people may read.
pub fn router(gateway: Gateway) -> Router {
    Router::new()
        .route(ATTACH.0, post(attach::attach))
        .route(PLAN.0, post(boundary::plan))
        .route(TURN.0, post(boundary::result))
        .route(HEARTBEAT.0, post(heartbeat::heartbeat))
        .route(CLAIM.0, post(calls::claim))
        .route(COMPLETE.0, post(calls::complete))
        .route(SETTLE.0, post(calls::settle))
        .route(FINISH.0, post(end::finish))
        .route(CANCELLED.0, post(end::cancelled))
        .route(STATE.0, get(read::state))
        .route(MEMORY_DELTA.0, get(read::memory_delta))
        .route(EVENTS.0, get(events::events))
        .route(EXPORT.0, get(export::export))
        .route(CHECKPOINT.0, get(read::checkpoint))
        .route(PEOPLES_STATE.0, get(read::state))
        .route(PEOPLES_MEMORY_DELTA.0, get(read::memory_delta))
        .route(PEOPLES_EVENTS.0, get(events::events))
        .route(PEOPLES_EXPORT.0, get(export::export))
        .route(PEOPLES_CHECKPOINT.0, get(read::checkpoint))
        .route(PEOPLES_RECORDS.0, get(records::list))
        .route(RECORDS.0, post(records::write).get(records::list))
        .fallback(unknown)
        .method_not_allowed_fallback(unknown)
        .layer(CatchPanicLayer::custom(observe::panicked))
        .layer(from_fn_with_state(gateway.clone(), observe::observe))
        .with_state(gateway)
}

/// The name of a route's call.
pub(crate) fn name(route: &str) -> Option<&'static str> {
    let routes = [
        ATTACH,
        PLAN,
        TURN,
        HEARTBEAT,
        CLAIM,
        COMPLETE,
        SETTLE,
        FINISH,
        CANCELLED,
        STATE,
        MEMORY_DELTA,
        EVENTS,
        EXPORT,
        CHECKPOINT,
        RECORDS,
        PEOPLES_STATE,
        PEOPLES_MEMORY_DELTA,
        PEOPLES_EVENTS,
        PEOPLES_EXPORT,
        PEOPLES_CHECKPOINT,
        PEOPLES_RECORDS,
    ];
    routes.into_iter().find(|(path, _)| *path == route).map(|(_, name)| name)
}

async fn unknown() -> Refusal {
    Refusal::new(
        Code::NotFound,
        "there is no such call; docs/reference/contract.md lists the paths below DALSEGNO_URL and their methods",
    )
}
