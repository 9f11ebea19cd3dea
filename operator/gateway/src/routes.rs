//! The route table: which call is answered where, and by what name metrics and logs know it.

use axum::Router;
use axum::middleware::from_fn_with_state;
use axum::routing::{MethodRouter, get, post};
use dalsegno_protocol::Code;
use tower_http::catch_panic::CatchPanicLayer;

use crate::extractors::RUNS;
use crate::gateway::Gateway;
use crate::handlers::{attach, calls, commit, events, export, finish, heartbeat, records, state};
use crate::middleware::{self, Observer};
use crate::response::Refusal;

/// Where people find a run, which they name as `kubectl` does.
const PEOPLE: &str = "/v1/namespaces/{namespace}/agentruns/{name}";

/// One call of the contract.
struct Call {
    /// The name in metrics and logs.
    name: &'static str,
    /// The path below a run.
    path: &'static str,
    /// The methods of workers.
    worker: MethodRouter<Gateway>,
    /// The methods of people; `None`: the call is for workers alone.
    person: Option<MethodRouter<Gateway>>,
}

/// Every call of the contract.
fn table() -> Vec<Call> {
    let write = |name, path, worker| Call { name, path, worker, person: None };
    let read = |name, methods: fn() -> MethodRouter<Gateway>| Call {
        name,
        path: name,
        worker: methods(),
        person: Some(methods()),
    };
    vec![
        write("attach", "attach", post(attach::attach)),
        write("plan", "turns/{turn}/plan", post(commit::plan)),
        write("turn", "turns/{turn}", post(commit::result)),
        write("heartbeat", "heartbeat", post(heartbeat::heartbeat)),
        write("claim", "calls/{call}/claim", post(calls::claim)),
        write("complete", "calls/{call}/complete", post(calls::complete)),
        write("settle", "calls/{call}/settle", post(calls::settle)),
        write("finish", "finish", post(finish::finish)),
        write("cancelled", "cancelled", post(finish::cancelled)),
        read("state", || get(state::state)),
        read("memory-delta", || get(state::memory_delta)),
        read("checkpoint", || get(state::checkpoint)),
        read("events", || get(events::events)),
        read("export", || get(export::export)),
        Call { worker: post(records::write).get(records::list), ..read("records", || get(records::list)) },
    ]
}

/// The worker's contract over HTTP, and what people may read.
pub fn router(gateway: Gateway) -> Router {
    let mut router = Router::new();
    let mut observer = Observer::new(gateway.clone());
    for Call { name, path, worker, person } in table() {
        let at_worker = (format!("{RUNS}{{run_id}}/{path}"), Some(worker));
        for (path, methods) in [at_worker, (format!("{PEOPLE}/{path}"), person)] {
            let Some(methods) = methods else { continue };
            router = router.route(&path, methods);
            observer.name(path, name);
        }
    }
    router
        .fallback(unknown)
        .method_not_allowed_fallback(unknown)
        .layer(CatchPanicLayer::custom(middleware::panicked))
        .layer(from_fn_with_state(observer, middleware::observe))
        .with_state(gateway)
}

async fn unknown() -> Refusal {
    Refusal::new(
        Code::NotFound,
        "there is no such call; docs/worker-contract.md lists the paths below DALSEGNO_URL and their methods",
    )
}
