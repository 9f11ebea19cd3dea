//! The parts that run until they are told to stop: operator, gateway, health.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use dalsegno_crds::names;
use dalsegno_gateway::{Config as GatewayConfig, Gateway};
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
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::config::{GatewayArgs, HealthArgs, KeyArgs, OperatorArgs};
use crate::context::{ApiHealth, Context, Definition};
use crate::crash::CrashPoint;
use crate::nodes::NodeBook;
use crate::pods::{self, PodBook};
use crate::run::Run;
use crate::telemetry::{Metrics, Ready, serve_health};
use crate::tokens::TokenReviews;
use crate::{anchors, capacity, controller, definitions, leader, pulse, retention};

/// How often the API server is asked whether it answers.
const API_PROBE: Duration = Duration::from_secs(2);

/// What one process runs.
pub struct Parts {
    /// The gateway.
    pub gateway: Option<GatewayArgs>,
    /// The operator.
    pub operator: Option<OperatorArgs>,
    /// Health and metrics.
    pub health: HealthArgs,
    /// What signs.
    pub key: KeyArgs,
    /// Folder for what must outlive a container but not a pod.
    pub folder: PathBuf,
}

/// Runs the parts until SIGTERM, SIGINT or the end of one of them.
///
/// # Errors
///
/// What ended a part before its time.
pub async fn serve(store: Arc<dyn Store>, parts: Parts) -> anyhow::Result<()> {
    let client = Client::try_default().await.context("reaching the API server")?;
    let stop = CancellationToken::new();
    let mut registry = Registry::with_prefix("dalsegno");
    let mut ready: Vec<Ready> = Vec::new();
    let mut tasks: JoinSet<anyhow::Result<()>> = JoinSet::new();

    if let Some(args) = parts.gateway {
        let gateway = Gateway::new(
            store.clone(),
            Arc::new(TokenReviews::new(client.clone())),
            GatewayConfig { signing_key: parts.key.signing_key.clone(), ..GatewayConfig::default() },
        );
        gateway.register(&mut registry);
        let listener = TcpListener::bind(args.gateway_listen).await.context("listening for workers")?;
        ready.push(Arc::new({
            let gateway = gateway.clone();
            move || gateway.is_ready()
        }));
        let stopped = stop.clone().cancelled_owned();
        tasks.spawn(async move {
            dalsegno_gateway::serve(listener, gateway, stopped).await.context("serving workers")
        });
    }
    if let Some(args) = parts.operator {
        let metrics = Metrics::default();
        metrics.register(&mut registry);
        let is_ready = Arc::new(AtomicBool::new(false));
        ready.push(Arc::new({
            let is_ready = is_ready.clone();
            move || is_ready.load(Ordering::Relaxed)
        }));
        let crash = CrashPoint::new(args.crash_at.clone(), &parts.folder, &args.pod_name);
        tasks.spawn(operate(client, store, (args, parts.key), metrics, crash, is_ready, stop.clone()));
    }
    let stopped = stop.clone().cancelled_owned();
    tasks.spawn(async move {
        serve_health(parts.health.health_listen, ready, registry, stopped).await.context("serving health")
    });

    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let first = tokio::select! {
        _ = terminate.recv() => None,
        _ = interrupt.recv() => None,
        ended = tasks.join_next() => ended,
    };
    tracing::info!("stopping");
    stop.cancel();
    let mut outcome = first.map_or(Ok(()), |ended| ended.context("a part panicked").and_then(|it| it));
    while let Some(ended) = tasks.join_next().await {
        outcome = outcome.and(ended.context("a part panicked").and_then(|it| it));
    }
    outcome
}

/// The operator: leads, fills every cache, then reconciles.
async fn operate(
    client: Client,
    store: Arc<dyn Store>,
    (args, key): (OperatorArgs, KeyArgs),
    metrics: Metrics,
    crash: CrashPoint,
    is_ready: Arc<AtomicBool>,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    if args.leader_election {
        // One that waits to lead is ready to.
        is_ready.store(true, Ordering::Relaxed);
        leader::lead(client.clone(), &args.namespace, &args.pod_name, stop.clone()).await?;
    }
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
        api: ApiHealth::default(),
        refusals: HashMap::new().into(),
        heads: HashMap::new().into(),
        revisions: HashMap::new().into(),
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
    let mut definitions_ready = Some(definitions_ready);
    let definitions = watcher(api_of::<Definition>(&client, &args), watcher::Config::default())
        .default_backoff()
        // The cache's own `wait_until_ready` wakes one waiter only, and the controller is one.
        .inspect(move |event| {
            if matches!(event, Ok(watcher::Event::InitDone)) {
                announce(&mut definitions_ready);
            }
        })
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

    let runs = watcher(api_of::<Run>(&client, &args), watcher::Config::default())
        .default_backoff()
        .modify(trim)
        .reflect(run_writer)
        .touched_objects()
        .predicate_filter(predicates::generation.combine(predicates::finalizers), PredicateConfig::default());
    is_ready.store(true, Ordering::Relaxed);
    tracing::info!("operating");
    let wakes = futures::stream::unfold(wakes, |mut wakes| async move { Some((wakes.recv().await?, wakes)) });
    controller::run(ctx, runs, run_cache, wakes, args.concurrency, stop.cancelled_owned()).await;
    tasks.shutdown().await;
    Ok(())
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
    object.managed_fields_mut().clear();
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
        if let Some(node) = ctx.nodes.take(event, Timestamp::now()) {
            ctx.pods.runs_on(&node).iter().for_each(|key| ctx.look_at(key));
        }
        if listed {
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

/// The folder of an embedded store's file, else the temporary one.
pub fn folder_of(database_url: &str) -> PathBuf {
    database_url
        .strip_prefix("sqlite://")
        .and_then(|path| Path::new(path).parent())
        .filter(|folder| folder.is_absolute())
        .map_or_else(std::env::temp_dir, Path::to_path_buf)
}
