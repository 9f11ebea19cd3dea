//! Runs the long-running parts of a process until a signal: operator, gateway, health.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context as _;
use dalsegno_gateway::{Config as GatewayConfig, Gateway, StateReadBudget};
use dalsegno_model::Store;
use dalsegno_store::{StoreMetrics, measured};
use kube::Client;
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::config::{ConnectionArgs, GatewayArgs, HealthArgs, KeyArgs, OperatorArgs, StoreArgs};
use crate::controller::failpoint::Failpoint;
use crate::health::{Ready, serve_health};
use crate::kube_client;
use crate::manager::{Manager, run_manager};
use crate::metrics::Metrics;
use crate::token_review::TokenReviews;

/// The parts of one process.
pub struct Parts {
    /// Connections to the store.
    pub connections: ConnectionArgs,
    /// The gateway.
    pub gateway: Option<GatewayArgs>,
    /// The operator.
    pub operator: Option<OperatorArgs>,
    /// Health and metrics.
    pub health: HealthArgs,
    /// The signing key.
    pub key: KeyArgs,
}

/// What the parts share while they are started.
struct Process {
    store: Arc<dyn Store>,
    client: Client,
    stop: CancellationToken,
    registry: Registry,
    ready: Vec<Ready>,
    tasks: JoinSet<anyhow::Result<()>>,
}

/// Runs the parts until SIGTERM, SIGINT or the end of one of them.
///
/// # Errors
///
/// The store cannot be opened, or a part failed.
pub async fn serve(store_args: &StoreArgs, parts: Parts) -> anyhow::Result<()> {
    let metrics = StoreMetrics::default();
    let options = parts.connections.options(parts.name(), metrics.clone());
    let mut registry = Registry::with_prefix("dalsegno");
    metrics.register(&mut registry);
    let Parts { connections: _, gateway, operator, health, key } = parts;
    let mut process = Process {
        store: measured(store_args.open(&options).await?, metrics),
        client: kube_client::connect().await.context("reaching the API server")?,
        stop: CancellationToken::new(),
        registry,
        ready: Vec::new(),
        tasks: JoinSet::new(),
    };
    let mut state_reads = StateReadBudget::default();
    if let Some(args) = gateway {
        state_reads = process.start_gateway(&args, &key).await?;
    }
    if let Some(args) = operator {
        let failpoint =
            Failpoint::new(args.crash_at.clone(), &failpoint_folder(store_args.url()), &args.pod_name);
        process.start_operator(args, key, state_reads, failpoint);
    }
    process.run(health).await
}

impl Parts {
    /// Name of the process among the connections of the server.
    fn name(&self) -> &'static str {
        match (&self.gateway, &self.operator) {
            (Some(_), None) => "gateway",
            (None, Some(_)) => "operator",
            (Some(_), Some(_)) | (None, None) => "all",
        }
    }
}

impl Process {
    /// Starts the gateway. Returns its limiter of state reads.
    async fn start_gateway(&mut self, args: &GatewayArgs, key: &KeyArgs) -> anyhow::Result<StateReadBudget> {
        let gateway = Gateway::new(
            self.store.clone(),
            Arc::new(TokenReviews::new(self.client.clone())),
            GatewayConfig { signing_key: key.signing_key.clone(), ..GatewayConfig::default() },
        );
        gateway.register(&mut self.registry);
        let state_reads = gateway.resume_reads();
        let listener = TcpListener::bind(args.gateway_listen).await.context("listening for workers")?;
        self.ready.push(Arc::new({
            let gateway = gateway.clone();
            move || gateway.is_ready()
        }));
        let stopped = self.stop.clone().cancelled_owned();
        self.tasks.spawn(async move {
            dalsegno_gateway::serve(listener, gateway, stopped).await.context("serving workers")
        });
        Ok(state_reads)
    }

    fn start_operator(
        &mut self,
        args: OperatorArgs,
        key: KeyArgs,
        state_reads: StateReadBudget,
        failpoint: Failpoint,
    ) {
        let metrics = Metrics::default();
        metrics.register(&mut self.registry);
        let is_ready = Arc::new(AtomicBool::new(false));
        self.ready.push(Arc::new({
            let is_ready = is_ready.clone();
            move || is_ready.load(Ordering::Relaxed)
        }));
        let manager = Manager {
            client: self.client.clone(),
            store: self.store.clone(),
            state_reads,
            args,
            signing_key: key.signing_key,
            metrics,
            failpoint,
            is_ready,
        };
        self.tasks.spawn(run_manager(manager, self.stop.clone()));
    }

    /// Serves health, and waits for a signal or the end of a part. Then stops all parts.
    async fn run(mut self, health: HealthArgs) -> anyhow::Result<()> {
        let (ready, registry) = (self.ready, self.registry);
        let stopped = self.stop.clone().cancelled_owned();
        self.tasks.spawn(async move {
            serve_health(health.health_listen, ready, registry, stopped).await.context("serving health")
        });
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let first = tokio::select! {
            _ = terminate.recv() => None,
            _ = interrupt.recv() => None,
            ended = self.tasks.join_next() => ended,
        };
        tracing::info!("stopping");
        self.stop.cancel();
        let mut outcome = first.map_or(Ok(()), |ended| ended.context("a part panicked").and_then(|it| it));
        while let Some(ended) = self.tasks.join_next().await {
            outcome = outcome.and(ended.context("a part panicked").and_then(|it| it));
        }
        outcome
    }
}

/// Folder for the failpoint's marker, which must survive a container but not a pod: the folder of the embedded store's
/// file, or the temporary folder.
fn failpoint_folder(database_url: &str) -> PathBuf {
    database_url
        .strip_prefix("sqlite://")
        .and_then(|path| Path::new(path).parent())
        .filter(|folder| folder.is_absolute())
        .map_or_else(std::env::temp_dir, Path::to_path_buf)
}
