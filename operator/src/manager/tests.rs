use std::convert::Infallible;
use std::future::pending;
use std::sync::Mutex;

use axum::http::{Request, Response, StatusCode};
use dalsegno_store::sqlite::Sqlite;
use jiff::Timestamp;
use kube::client::Body;
use serde_json::{Value, json};

use super::*;
use crate::config::{AnchorSinkKind, NotificationArgs, PeopleApiArgs, TlsArgs};
use crate::mutex::lock;
use crate::tasks::leader::LEASE;
use crate::test_context::lease_response;

/// An API server without objects that fails to list AgentRuns. The first list of them triggers the stop.
async fn fail_to_list_runs(request: Request<Body>, stop: CancellationToken) -> Response<Body> {
    let uri = request.uri();
    if uri.query().is_some_and(|it| it.contains("watch=true")) {
        return pending().await;
    }
    if uri.path().ends_with("/agentruns") {
        stop.cancel();
        let mut failed = Response::new(Body::empty());
        *failed.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
        return failed;
    }
    let list =
        json!({ "kind": "List", "apiVersion": "v1", "metadata": { "resourceVersion": "1" }, "items": [] });
    Response::new(Body::from(list.to_string().into_bytes()))
}

/// An API server with a Lease that another operator holds. The first request for it triggers the stop.
async fn lease_of_another(request: Request<Body>, stop: CancellationToken) -> Response<Body> {
    assert!(request.uri().path().ends_with("/leases/dalsegno-operator"), "{}", request.uri());
    stop.cancel();
    let spec =
        json!({ "holderIdentity": "other", "renewTime": Timestamp::now(), "leaseDurationSeconds": 3_600 });
    let lease = json!({ "metadata": { "name": "dalsegno-operator" }, "spec": spec });
    Response::new(Body::from(lease.to_string().into_bytes()))
}

/// Runs the manager until this API server triggers the stop.
async fn run_until_stopped_by<A>(
    leader_election: bool,
    server: impl Fn(Request<Body>, CancellationToken) -> A + Send + 'static,
) -> anyhow::Result<()>
where
    A: Future<Output = Response<Body>> + Send + 'static,
{
    let stop = CancellationToken::new();
    let trigger = stop.clone();
    let server = tower::service_fn(move |request| {
        let response = server(request, trigger.clone());
        async { Ok::<_, Infallible>(response.await) }
    });
    let args = OperatorArgs {
        policies: Default::default(),
        gateway_url: "http://gateway".into(),
        watch_namespaces: Vec::new(),
        leader_election,
        namespace: "default".into(),
        pod_name: "dalsegno".into(),
        concurrency: 1,
        state_read_bytes: 0,
        anchor_every: Duration::from_secs(60),
        purge_days: None,
        snapshot_every: None,
        anchor_sink: AnchorSinkKind::None,
        anchor_file: None,
        notifications: NotificationArgs::default(),
        people_api: PeopleApiArgs::default(),
        crash_at: None,
    };
    let manager = Manager {
        client: Client::new(server, "shop"),
        store: Arc::new(Sqlite::memory().await.expect("a store")),
        state_reads: StateReadBudget::new(0),
        args,
        tls: TlsArgs::off(),
        signing_key: None,
        metrics: Metrics::default(),
        failpoint: Failpoint::default(),
        is_ready: Arc::default(),
        watch_health: WatchHealth::default(),
        queue_health: QueueHealth::default(),
    };
    let running = run_manager(manager, stop.clone());
    let ended = tokio::time::timeout(Duration::from_secs(20), running).await;
    assert!(stop.is_cancelled(), "it sent the request");
    ended.expect("it ends")
}

#[tokio::test]
async fn an_operator_that_cannot_list_the_runs_ends_at_a_stop() {
    run_until_stopped_by(false, fail_to_list_runs).await.expect("that is no error");
}

#[tokio::test]
async fn an_operator_that_waits_to_lead_ends_without_an_error_at_a_stop() {
    run_until_stopped_by(true, lease_of_another).await.expect("that is no error");
}

#[tokio::test]
async fn an_operator_releases_the_lease_when_it_has_ended() {
    let lease = Arc::new(Mutex::new(Value::Null));
    let there = lease.clone();
    let server = move |request: Request<Body>, stop: CancellationToken| {
        let there = there.clone();
        async move {
            if request.uri().path().contains("/leases") {
                return lease_response(&there, request).await;
            }
            if request.uri().path().ends_with("/agentruns") {
                assert_eq!(lock(&there)["spec"]["holderIdentity"], "dalsegno");
            }
            fail_to_list_runs(request, stop).await
        }
    };
    run_until_stopped_by(true, server).await.expect("that is no error");
    assert_eq!(lock(&lease)["spec"]["holderIdentity"], Value::Null);
    assert_eq!(lock(&lease)["metadata"]["name"], LEASE);
}

#[tokio::test]
async fn a_reconcile_that_does_not_end_does_not_block_a_stop() {
    let stop = CancellationToken::new();
    let (notify, filled) = oneshot::channel();
    let _ = notify.send(());
    let mut reconciling = pin!(until_stopped(filled, pending(), &stop, Duration::from_millis(50)));
    let early = tokio::time::timeout(Duration::from_millis(200), &mut reconciling).await;
    assert!(early.is_err(), "there was no stop");
    stop.cancel();
    tokio::time::timeout(Duration::from_secs(20), reconciling).await.expect("it ends");
}
