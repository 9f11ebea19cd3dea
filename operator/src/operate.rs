//! The operator: what it follows, and what goes on beside its reconciles.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, bail};
use dalsegno_crds::names;
use dalsegno_gateway::StateReadBudget;
use dalsegno_store::Store;
use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::runtime::events::Reporter;
use kube::runtime::reflector::{self, ObjectRef};
use kube::runtime::utils::PredicateConfig;
use kube::runtime::{Predicate as _, predicates};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, Resource, ResourceExt};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::config::{KeyArgs, OperatorArgs};
use crate::context::{ApiHealth, Context};
use crate::crash::CrashPoint;
use crate::kept::{Definition, Run};
use crate::nodes::NodeBook;
use crate::pods::{self, Owner, PodBook};
use crate::telemetry::Metrics;
use crate::unreadable::Unreadable;
use crate::{anchors, asked, capacity, controller, definitions, leader, pulse, retention};

/// How often the API server is asked whether it answers.
const API_PROBE: Duration = Duration::from_secs(2);
/// How long a reconcile may take to end once we are told to stop: what it leaves is gone on from.
const STOP_GRACE: Duration = Duration::from_secs(10);
/// How often what is no more is forgotten.
const FORGET: Duration = Duration::from_secs(60);

/// Leads, fills every cache, then reconciles until told to stop, and lets another lead.
///
/// # Errors
///
/// A cache cannot be filled, or a part of it has ended before its time.
pub async fn operate(
    client: Client,
    stores: (Arc<dyn Store>, StateReadBudget),
    (args, key): (OperatorArgs, KeyArgs),
    metrics: Metrics,
    crash: CrashPoint,
    is_ready: Arc<AtomicBool>,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let mut lead = None;
    if args.leader_election {
        // One that waits to lead is ready.
        lead = leader::lead(client.clone(), &args.namespace, &args.pod_name, &is_ready, stop.clone()).await;
        if lead.is_none() {
            return Ok(());
        }
    }
    let ended = reconcile(client, stores, (args, key), metrics, crash, is_ready, stop).await;
    // Not before: nothing of ours is under way any more but what the store refuses.
    if let Some(lead) = lead {
        lead.release().await;
    }
    ended
}

async fn reconcile(
    client: Client,
    (store, resumes): (Arc<dyn Store>, StateReadBudget),
    (args, key): (OperatorArgs, KeyArgs),
    metrics: Metrics,
    crash: CrashPoint,
    is_ready: Arc<AtomicBool>,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let (wake, wakes) = mpsc::unbounded_channel::<ObjectRef<Run>>();
    let (definition_cache, definition_writer) = reflector::store::<Definition>();
    let (run_cache, run_writer) = reflector::store::<Run>();
    let reporter =
        Reporter { controller: names::FIELD_MANAGER.into(), instance: Some(args.pod_name.clone()) };
    let ctx = Arc::new(Context {
        reporter,
        store,
        gateway_url: args.gateway_url.trim_end_matches('/').to_owned(),
        pods: PodBook::default(),
        nodes: NodeBook::default(),
        definitions: definition_cache.clone(),
        unreadable: Unreadable::default(),
        api: ApiHealth::default(),
        refusals: HashMap::new().into(),
        heads: HashMap::new().into(),
        resumes,
        failures: HashMap::new().into(),
        wake,
        metrics,
        crash,
        client: client.clone(),
    });
    let mut tasks = JoinSet::new();

    let (pods_ready, wait_for_pods) = oneshot::channel();
    tasks.spawn(follow_pods(ctx.clone(), api_of(&client, &args), pods_ready));
    let (nodes_ready, wait_for_nodes) = oneshot::channel();
    tasks.spawn(follow_nodes(ctx.clone(), nodes_ready));
    tasks.spawn(probe_api(ctx.clone()));

    let (definitions_ready, wait_for_definitions) = oneshot::channel();
    let definitions = watcher(api_of::<Definition>(&client, &args), watcher::Config::default())
        .default_backoff()
        // The cache's own `wait_until_ready` wakes one waiter only, and the controller is one.
        .inspect(when_listed(definitions_ready))
        .modify(trim)
        .reflect(definition_writer)
        .touched_objects()
        .predicate_filter(predicates::generation, PredicateConfig::default())
        .inspect({
            let (ctx, runs) = (ctx.clone(), run_cache.clone());
            move |changed| {
                if let Ok(definition) = changed {
                    wake_runs_of(&ctx, &runs, definition);
                }
            }
        });
    tasks.spawn(definitions::run(
        ctx.clone(),
        definitions,
        definition_cache.clone(),
        stop.clone().cancelled_owned(),
    ));

    let filled = async {
        wait_for_definitions.await.context("watching AgentDefinitions")?;
        wait_for_pods.await.context("watching pods")?;
        wait_for_nodes.await.context("watching nodes")
    };
    let Some(filled) = stop.run_until_cancelled(filled).await else { return Ok(()) };
    filled?;
    tasks.spawn(pulse::follow(ctx.clone(), stop.clone()));
    tasks.spawn(anchors::follow(ctx.store.clone(), args.anchor_every, key.signing_key, stop.clone()));
    tasks.spawn(capacity::follow(ctx.store.clone(), ctx.metrics.clone(), stop.clone()));
    tasks.spawn(retention::follow(ctx.store.clone(), ctx.metrics.clone(), stop.clone()));

    let (runs_kept, wait_for_cache) = oneshot::channel();
    tasks.spawn(forget(ctx.clone(), run_cache.clone(), wait_for_cache));
    let (runs_ready, wait_for_runs) = oneshot::channel();
    let runs = watcher(api_of::<Run>(&client, &args), watcher::Config::default())
        .default_backoff()
        .inspect(when_listed(runs_ready))
        .modify(trim)
        .reflect(run_writer)
        .inspect(when_listed(runs_kept))
        .touched_objects()
        .predicate_filter(predicates::generation.combine(predicates::finalizers), PredicateConfig::default());
    is_ready.store(true, Ordering::Relaxed);
    tracing::info!("operating");
    let wakes = futures::stream::unfold(wakes, |mut wakes| async move { Some((wakes.recv().await?, wakes)) });
    let stopped = stop.clone().cancelled_owned();
    let reconciling = controller::run(ctx, runs, run_cache, wakes, args.concurrency, stopped);
    let reconciling = until_stopped(wait_for_runs, reconciling, &stop, STOP_GRACE);
    beside(reconciling, &mut tasks, &stop).await?;
    tasks.shutdown().await;
    Ok(())
}

/// Works while the tasks do. One that ends before it was told to ends the work: nobody would miss it otherwise, and what it
/// does is done by nobody else.
async fn beside(
    work: impl Future<Output = ()>,
    tasks: &mut JoinSet<()>,
    stop: &CancellationToken,
) -> anyhow::Result<()> {
    let mut work = pin!(work);
    loop {
        tokio::select! {
            () = &mut work => return Ok(()),
            Some(ended) = tasks.join_next() => {
                ended.context("a part of the operator panicked")?;
                if !stop.is_cancelled() {
                    bail!("a part of the operator has ended, and was not told to");
                }
            }
        }
    }
}

/// A controller that is told to stop ends what it has begun, and has `grace` to do it; one whose cache is not filled has
/// begun nothing, and would wait for the cache.
async fn until_stopped(
    filled: oneshot::Receiver<()>,
    reconciling: impl Future<Output = ()>,
    stop: &CancellationToken,
    grace: Duration,
) {
    let reconciling = pin!(reconciling);
    let stopped = async {
        if let Some(Ok(())) = stop.run_until_cancelled(filled).await {
            stop.cancelled().await;
            tokio::time::sleep(grace).await;
        }
    };
    tokio::select! {
        () = reconciling => {}
        () = stopped => {}
    }
}

/// All namespaces, or the one to watch.
fn api_of<K>(client: &Client, args: &OperatorArgs) -> Api<K>
where
    K: Resource<Scope = k8s_openapi::NamespaceResourceScope>,
    K::DynamicType: Default,
{
    match &args.watch_namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    }
}

fn trim(object: &mut impl ResourceExt) {
    asked::trim(object.managed_fields_mut());
    object.annotations_mut().remove("kubectl.kubernetes.io/last-applied-configuration");
}

async fn follow_pods(ctx: Arc<Context>, api: Api<Pod>, ready: oneshot::Sender<()>) {
    let selector = format!("{}={}", names::LABEL_MANAGED_BY, names::MANAGED_BY);
    let watch = watcher(api, watcher::Config::default().labels(&selector)).default_backoff();
    let mut changes = pin!(pods::follow(ctx.pods.clone(), watch));
    let mut ready = Some(ready);
    while let Some((changed, listed)) = changes.next().await {
        changed.iter().for_each(|key| ctx.look_at(key));
        if listed {
            announce(&mut ready);
        }
    }
}

async fn follow_nodes(ctx: Arc<Context>, ready: oneshot::Sender<()>) {
    let mut watch =
        pin!(watcher(Api::<Node>::all(ctx.client.clone()), watcher::Config::default()).default_backoff());
    let mut ready = Some(ready);
    while let Some(event) = watch.next().await {
        let Ok(event) = event else { continue };
        let listed = matches!(event, watcher::Event::InitDone);
        for node in ctx.nodes.take(event, Timestamp::now()) {
            ctx.pods.runs_on(&node).iter().for_each(|key| ctx.look_at(key));
        }
        if listed {
            announce(&mut ready);
        }
    }
}

fn when_listed<K>(ready: oneshot::Sender<()>) -> impl FnMut(&watcher::Result<watcher::Event<K>>) {
    let mut ready = Some(ready);
    move |event| {
        if matches!(event, Ok(watcher::Event::InitDone)) {
            announce(&mut ready);
        }
    }
}

/// Says once that a cache is filled; it does not matter if nobody waits any more.
fn announce(ready: &mut Option<oneshot::Sender<()>>) {
    if let Some(ready) = ready.take() {
        let _ = ready.send(());
    }
}

/// Forgets what was kept of what is no more, once it is known which runs there are.
async fn forget(ctx: Arc<Context>, runs: reflector::Store<Run>, filled: oneshot::Receiver<()>) {
    let _ = filled.await;
    let mut ticks = tokio::time::interval(FORGET);
    loop {
        ticks.tick().await;
        ctx.forget_all_but(&runs.state().iter().map(|run| Owner::of(run.as_ref())).collect());
    }
}

async fn probe_api(ctx: Arc<Context>) {
    let mut ticks = tokio::time::interval(API_PROBE);
    loop {
        ticks.tick().await;
        let asked = tokio::time::timeout(API_PROBE, ctx.client.apiserver_version()).await;
        ctx.api.record(matches!(asked, Ok(Ok(_))), Timestamp::now());
    }
}

/// A definition has changed: whoever waits for it shall know.
fn wake_runs_of(ctx: &Context, runs: &reflector::Store<Run>, definition: &Definition) {
    let (name, namespace) = (definition.name_any(), definition.namespace());
    for run in runs.state() {
        if let Ok(run) = run.read()
            && run.namespace() == namespace
            && run.spec.agent_ref.as_ref().is_some_and(|it| it.name == name)
        {
            let _ =
                ctx.wake.send(ObjectRef::new(&run.name_any()).within(&run.namespace().unwrap_or_default()));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::future::pending;
    use std::sync::Mutex;

    use axum::http::{Request, Response, StatusCode};
    use dalsegno_store::sqlite::Sqlite;
    use kube::client::Body;
    use serde_json::{Value, json};

    use super::*;
    use crate::sync::lock;
    use crate::world;

    async fn with(
        task: impl Future<Output = ()> + Send + 'static,
        stop: &CancellationToken,
    ) -> Option<String> {
        let mut tasks = JoinSet::new();
        tasks.spawn(task);
        let work = async { stop.cancelled().await };
        beside(work, &mut tasks, stop).await.err().map(|error| format!("{error:#}"))
    }

    #[tokio::test]
    async fn a_part_that_panics_or_ends_by_itself_ends_the_operator() {
        let stop = CancellationToken::new();
        let told = with(async { panic!("no such pulse") }, &stop).await.unwrap_or_default();
        assert!(told.contains("panicked") && told.contains("no such pulse"), "{told}");
        let told = with(async {}, &stop).await.unwrap_or_default();
        assert!(told.contains("was not told to"), "{told}");
    }

    #[tokio::test]
    async fn a_part_that_ends_because_it_was_told_to_is_no_error() {
        let stop = CancellationToken::new();
        let obeys = stop.clone().cancelled_owned();
        let told = async {
            tokio::task::yield_now().await;
            stop.cancel();
        };
        assert_eq!(tokio::join!(with(obeys, &stop), told).0, None);
        assert_eq!(with(pending(), &stop).await, None);
    }

    #[tokio::test]
    async fn what_is_kept_of_runs_that_are_no_more_is_forgotten_once_it_is_known_which_there_are() {
        let (ctx, _) = world::context(Arc::new(Sqlite::memory().await.expect("a store")), vec![]);
        let (runs, mut cache) = reflector::store::<Run>();
        let run = json!({ "apiVersion": "dalsegno.dev/v1alpha1", "kind": "AgentRun", "spec": {},
                          "metadata": { "name": "nightly", "namespace": "shop", "uid": "kept" } });
        cache.apply_watcher_event(&watcher::Event::Apply(serde_json::from_value(run).expect("a run")));
        for uid in ["kept", "gone"] {
            lock(&ctx.failures).insert(uid.to_owned(), 1);
        }
        let left = || lock(&ctx.failures).len();
        let (announce, filled) = oneshot::channel();
        let mut forgetting = pin!(forget(ctx.clone(), runs, filled));
        let moment = Duration::from_millis(50);
        let early = tokio::time::timeout(moment, &mut forgetting).await;
        assert!(early.is_err() && left() == 2);
        let _ = announce.send(());
        let later = tokio::time::timeout(moment, forgetting).await;
        assert!(later.is_err() && left() == 1);
        assert!(lock(&ctx.failures).contains_key("kept"));
    }

    /// An API server that has nothing, and cannot list AgentRuns. Told to stop when it is first asked for them.
    async fn without_runs(request: Request<Body>, stop: CancellationToken) -> Response<Body> {
        let uri = request.uri();
        if uri.query().is_some_and(|it| it.contains("watch=true")) {
            return pending().await;
        }
        if uri.path().ends_with("/agentruns") {
            stop.cancel();
            let mut refused = Response::new(Body::empty());
            *refused.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
            return refused;
        }
        let list = json!({ "kind": "List", "apiVersion": "v1", "metadata": { "resourceVersion": "1" }, "items": [] });
        Response::new(Body::from(list.to_string().into_bytes()))
    }

    /// A Lease that another operator holds. Told to stop when it is first asked for.
    async fn with_a_leader(request: Request<Body>, stop: CancellationToken) -> Response<Body> {
        assert!(request.uri().path().ends_with("/leases/dalsegno-operator"), "{}", request.uri());
        stop.cancel();
        let spec = json!({ "holderIdentity": "other", "renewTime": Timestamp::now(), "leaseDurationSeconds": 3_600 });
        let lease = json!({ "metadata": { "name": "dalsegno-operator" }, "spec": spec });
        Response::new(Body::from(lease.to_string().into_bytes()))
    }

    /// Operates until it is told to stop, by the API server itself.
    async fn told_to_stop_by<A>(
        leader_election: bool,
        server: impl Fn(Request<Body>, CancellationToken) -> A + Send + 'static,
    ) -> anyhow::Result<()>
    where
        A: Future<Output = Response<Body>> + Send + 'static,
    {
        let stop = CancellationToken::new();
        let told = stop.clone();
        let server = tower::service_fn(move |request| {
            let answer = server(request, told.clone());
            async { Ok::<_, Infallible>(answer.await) }
        });
        let args = OperatorArgs {
            gateway_url: "http://gateway".into(),
            watch_namespace: None,
            leader_election,
            namespace: "default".into(),
            pod_name: "dalsegno".into(),
            concurrency: 1,
            anchor_every: Duration::from_secs(60),
            crash_at: None,
        };
        let operating = operate(
            Client::new(server, "shop"),
            (Arc::new(Sqlite::memory().await.expect("a store")), StateReadBudget::default()),
            (args, KeyArgs { signing_key: None }),
            Metrics::default(),
            CrashPoint::default(),
            Arc::default(),
            stop.clone(),
        );
        let ended = tokio::time::timeout(Duration::from_secs(20), operating).await;
        assert!(stop.is_cancelled(), "it got as far as asking");
        ended.expect("it goes on")
    }

    #[tokio::test]
    async fn an_operator_that_cannot_list_the_runs_ends_when_it_is_told_to() {
        told_to_stop_by(false, without_runs).await.expect("that is no error");
    }

    #[tokio::test]
    async fn an_operator_that_waits_to_lead_ends_well_when_it_is_told_to() {
        told_to_stop_by(true, with_a_leader).await.expect("that is no error");
    }

    #[tokio::test]
    async fn an_operator_that_led_lets_another_lead_once_it_has_ended() {
        let lease = Arc::new(Mutex::new(Value::Null));
        let there = lease.clone();
        let server = move |request: Request<Body>, stop: CancellationToken| {
            let there = there.clone();
            async move {
                if request.uri().path().contains("/leases") {
                    return world::lease(&there, request).await;
                }
                if request.uri().path().ends_with("/agentruns") {
                    assert_eq!(lock(&there)["spec"]["holderIdentity"], "dalsegno");
                }
                without_runs(request, stop).await
            }
        };
        told_to_stop_by(true, server).await.expect("that is no error");
        assert_eq!(lock(&lease)["spec"]["holderIdentity"], Value::Null);
        assert_eq!(lock(&lease)["metadata"]["name"], leader::LEASE);
    }

    #[tokio::test]
    async fn a_reconcile_that_does_not_end_keeps_no_operator_from_ending() {
        let stop = CancellationToken::new();
        let (announce, filled) = oneshot::channel();
        let _ = announce.send(());
        let mut reconciling = pin!(until_stopped(filled, pending(), &stop, Duration::from_millis(50)));
        let early = tokio::time::timeout(Duration::from_millis(200), &mut reconciling).await;
        assert!(early.is_err(), "it was not told to stop");
        stop.cancel();
        tokio::time::timeout(Duration::from_secs(20), reconciling).await.expect("it ends");
    }
}
