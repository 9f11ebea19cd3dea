//! The parts that run until they are told to stop: operator, gateway, health.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context as _;
use dalsegno_gateway::{Config as GatewayConfig, Gateway, StateReadBudget};
use dalsegno_store::Store;
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::client;
use crate::config::{GatewayArgs, HealthArgs, KeyArgs, OperatorArgs};
use crate::crash::CrashPoint;
use crate::operate::operate;
use crate::telemetry::{Metrics, Ready, serve_health};
use crate::tokens::TokenReviews;

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
    let client = client::connect().await.context("reaching the API server")?;
    let stop = CancellationToken::new();
    let mut registry = Registry::with_prefix("dalsegno");
    let mut ready: Vec<Ready> = Vec::new();
    let mut tasks: JoinSet<anyhow::Result<()>> = JoinSet::new();

    let mut resumes = StateReadBudget::default();
    if let Some(args) = parts.gateway {
        let gateway = Gateway::new(
            store.clone(),
            Arc::new(TokenReviews::new(client.clone())),
            GatewayConfig { signing_key: parts.key.signing_key.clone(), ..GatewayConfig::default() },
        );
        gateway.register(&mut registry);
        resumes = gateway.resume_reads();
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
        tasks.spawn(operate(
            client,
            (store, resumes),
            (args, parts.key),
            metrics,
            crash,
            is_ready,
            stop.clone(),
        ));
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

/// The folder of an embedded store's file, else the temporary one.
pub fn folder_of(database_url: &str) -> PathBuf {
    database_url
        .strip_prefix("sqlite://")
        .and_then(|path| Path::new(path).parent())
        .filter(|folder| folder.is_absolute())
        .map_or_else(std::env::temp_dir, Path::to_path_buf)
}
