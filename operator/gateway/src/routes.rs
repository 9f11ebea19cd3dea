//! The route table: each call's path, methods and handlers, and its name in metrics and logs.

use std::collections::HashMap;

use axum::middleware::{from_fn_with_state, map_request};
use axum::routing::{MethodRouter, get, post};
use axum::{Extension, Router};
use dalsegno_protocol::Code;
use tower_http::catch_panic::CatchPanicLayer;

use crate::aggregated::paths;
use crate::extractors::{Document, Door, RUNS};
use crate::gateway::Gateway;
use crate::handlers::{
    attach, audit, calls, commit, events, export, facts, finish, heartbeat, messages, park, proposal,
    records, state, turns, waits,
};
use crate::middleware::{self, Observer};
use crate::response::ApiProblem;

/// A run as users name it, with namespace and name.
const USER_RUN: &str = "/v1/namespaces/{namespace}/agentruns/{name}";

/// One call of the contract.
struct Route {
    /// The call's name in metrics and logs; for users also the last part of the path, and the subresource of `agentruns`
    /// that RBAC names.
    call: &'static str,
    /// What workers may do, and the path below the run; `None`: nothing.
    worker: Option<(&'static str, MethodRouter<Gateway>)>,
    /// What users may do; `None`: nothing.
    user: Option<MethodRouter<Gateway>>,
}

/// Every call of the contract.
fn route_table() -> Vec<Route> {
    let worker = |call, path, methods| Route { call, worker: Some((path, methods)), user: None };
    let user = |call, methods| Route { call, worker: None, user: Some(methods) };
    let both = |call, methods: fn() -> MethodRouter<Gateway>| Route {
        call,
        worker: Some((call, methods())),
        user: Some(methods()),
    };
    vec![
        worker("attach", "attach", post(attach::attach)),
        worker("plan", "turns/{turn}/plan", post(commit::plan)),
        worker("turn", "turns/{turn}", post(commit::result)),
        worker("heartbeat", "heartbeat", post(heartbeat::heartbeat)),
        worker("claim", "calls/{call}/claim", post(calls::claim)),
        worker("complete", "calls/{call}/complete", post(calls::complete)),
        Route {
            user: Some(post(calls::settle_by_user)),
            ..worker("settle", "calls/{call}/settle", post(calls::settle))
        },
        worker("finish", "finish", post(finish::finish)),
        worker("cancelled", "cancelled", post(finish::cancelled)),
        worker("park", "park", post(park::park)),
        worker("wait", "waits/{wait}", post(waits::open).get(waits::poll)),
        worker("inbox", "inbox", get(messages::inbox)),
        both("state", || get(state::state)),
        both("memory-delta", || get(state::memory_delta)),
        both("checkpoint", || get(state::checkpoint)),
        both("events", || get(events::events)),
        both("export", || get(export::export)),
        Route {
            user: Some(get(records::list)),
            ..worker("records", "records", post(records::write).get(records::list))
        },
        worker("read-records", "records/read", post(records::read)),
        user("messages", post(messages::send).get(messages::list)),
        user("proposal", get(proposal::proposal)),
        user("audit", get(audit::audit)),
        user("calls", get(calls::list)),
        user("turns", get(turns::turns)),
        user("log", get(events::log)),
        user("facts", get(facts::facts)),
    ]
}

/// The worker's contract over HTTP, and what users may do with a token.
pub fn router(gateway: Gateway) -> Router {
    let mut routes = Vec::new();
    for Route { call, worker, user } in route_table() {
        let document = Document { name: call, door: Door::Token };
        let worker = worker.map(|(path, methods)| (format!("{RUNS}{{run_id}}/{path}"), methods));
        let user = user.map(|methods| (format!("{USER_RUN}/{call}"), methods.layer(Extension(document))));
        routes.extend(worker.into_iter().chain(user).map(|(path, methods)| (call, path, methods)));
    }
    observed(gateway, routes).layer(map_request(middleware::drop_proxy_headers))
}

/// What users may do whom the API server has authenticated and authorized. It has no route that takes a token.
pub(crate) fn front_proxy_router(gateway: Gateway) -> Router {
    let routes = route_table().into_iter().filter_map(|Route { call, worker: _, user }| {
        let document = Document { name: call, door: Door::FrontProxy };
        Some((call, paths::route(call), user?.layer(Extension(document))))
    });
    observed(gateway, routes.collect())
}

/// Calls by name, each with the path and the methods of its route.
type Routes = Vec<(&'static str, String, MethodRouter<Gateway>)>;

fn observed(gateway: Gateway, routes: Routes) -> Router {
    let mut router = Router::new();
    let mut call_names = HashMap::new();
    for (call, path, methods) in routes {
        router = router.route(&path, methods);
        call_names.insert(path, call);
    }
    let observer = Observer::new(gateway.clone(), call_names);
    router
        .fallback(unknown)
        .method_not_allowed_fallback(unknown)
        .layer(CatchPanicLayer::custom(middleware::panicked))
        .layer(from_fn_with_state(observer, middleware::observe))
        .with_state(gateway)
}

async fn unknown() -> ApiProblem {
    ApiProblem::new(
        Code::NotFound,
        "there is no such call; docs/reference/contract.md lists the paths below DALSEGNO_URL and their methods",
    )
}

#[cfg(test)]
mod tests {
    use super::route_table;
    use crate::aggregated::documents::SUBRESOURCES;

    const METRICS: &str = include_str!("../../../docs/reference/metrics.md");

    #[test]
    fn the_page_of_metrics_lists_every_call() {
        let (_, list) = METRICS.split_once("\n| call | ").unwrap();
        let (list, _) = list.split_once(" (a path").unwrap();
        let mut documented: Vec<_> = list.split(',').map(|call| call.trim().trim_matches('`')).collect();
        let mut calls: Vec<_> = route_table().iter().map(|route| route.call).collect();
        calls.push("unknown");
        documented.sort_unstable();
        calls.sort_unstable();
        assert_eq!(documented, calls);
    }

    #[test]
    fn the_discovery_lists_every_call_of_users() {
        let mut listed: Vec<_> = SUBRESOURCES.iter().map(|it| it.name).collect();
        let routes = route_table();
        let mut calls: Vec<_> =
            routes.iter().filter(|it| it.user.is_some()).map(|route| route.call).collect();
        listed.sort_unstable();
        calls.sort_unstable();
        assert_eq!(listed, calls);
    }
}
