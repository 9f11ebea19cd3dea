//! Runs the long-running parts of a process until a signal: operator, gateway, health.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use dalsegno_gateway::tls::{Acceptor, Transport};
use dalsegno_gateway::{Config as GatewayConfig, Gateway, Listener, StateReadBudget};
use dalsegno_model::Store;
use dalsegno_store::sqlite::Disk;
use dalsegno_store::{ConnectionOptions, ServedStore, StoreMetrics, measured};
use kube::Client;
use prometheus_client::registry::Registry;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::cache::watch_health::WatchHealth;
use crate::certificates::serving::Serving;
use crate::config::{
    ConnectionArgs, GatewayArgs, HealthArgs, KeyArgs, OperatorArgs, StoreArgs, TlsArgs, TlsMode,
};
use crate::controller::failpoint::Failpoint;
use crate::controller::queue_health::QueueHealth;
use crate::health::{Probes, serve_health};
use crate::kube_client;
use crate::listen::listen;
use crate::manager::{Manager, run_manager};
use crate::metrics::Metrics;
use crate::people_api::listener::AggregatedListener;
use crate::process_limits;
use crate::token_review::TokenReviews;
use crate::volume::{self, VolumeFailed};

/// The parts of one process.
pub struct Parts {
    /// Connections to the store.
    pub connections: ConnectionArgs,
    /// The gateway.
    pub gateway: Option<GatewayArgs>,
    /// The operator.
    pub operator: Option<OperatorArgs>,
    /// TLS.
    pub tls: TlsArgs,
    /// Health and metrics.
    pub health: HealthArgs,
    /// The signing key.
    pub key: KeyArgs,
}

/// What the parts share while they are started.
struct Process {
    store: Arc<dyn Store>,
    client: Client,
    watch_health: WatchHealth,
    stop: CancellationToken,
    registry: Registry,
    probes: Probes,
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
    let Parts { connections: _, gateway, operator, tls, health, key } = parts;
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        store = without_secrets(store_args.url()),
        gateway = gateway.as_ref().map(|it| it.gateway_listen.to_string()),
        operator = operator.is_some(),
        health = health.health_listen.to_string(),
        "Dal Segno starts"
    );
    let mut signals = Signals::new()?;
    let watch_health = WatchHealth::default();
    let client = kube_client::connect(watch_health.clone()).await.context("reaching the API server")?;
    let (stop, serving) = (CancellationToken::new(), Serving::new());
    let aggregated = match gateway.as_ref().and_then(|it| it.aggregated_listen) {
        None => None,
        Some(address) => {
            Some(AggregatedListener::start(address, client.clone(), serving.certificate()).await?)
        }
    };
    if gateway.is_some() {
        tokio::spawn(serving.clone().follow(client.clone(), stop.clone()));
    }
    let opened = tokio::select! {
        opened = open_store(store_args, &options, aggregated.is_some()) => opened?,
        () = signals.received() => return Ok(()),
    };
    let ServedStore { store, disk } = opened;
    let mut process = Process {
        store: measured(store, metrics),
        client,
        watch_health,
        stop,
        registry,
        probes: Probes::default(),
        tasks: JoinSet::new(),
    };
    if let Some(disk) = disk {
        process.watch_volume(disk, operator.as_ref());
    }
    let mut of_gateway = None;
    if let Some(args) = gateway {
        let (config, address, aggregated) = (args.config(&key), args.gateway_listen, aggregated.as_ref());
        let part = GatewayPart { config, address, tls: &tls, serving, aggregated };
        of_gateway = Some(process.start_gateway(part).await?);
    }
    if let Some(args) = operator {
        let state_reads = of_gateway.unwrap_or_else(|| StateReadBudget::new(args.state_read_bytes));
        let failpoint =
            Failpoint::new(args.crash_at.clone(), &failpoint_folder(store_args.url()), &args.pod_name);
        process.start_operator(OperatorPart { args, tls, key, state_reads, failpoint });
    }
    let outcome = process.run(health, signals).await;
    if let Some(aggregated) = aggregated {
        aggregated.close().await;
    }
    outcome
}

/// Pause between two tries to open a store that is unavailable.
const STORE_RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Opens the store. `waits`: it is awaited while it is unavailable, since the process serves something without it.
async fn open_store(
    args: &StoreArgs,
    options: &ConnectionOptions,
    waits: bool,
) -> anyhow::Result<ServedStore> {
    loop {
        match args.open_to_serve(options).await {
            Err(error) if waits && is_unavailable(&error) => {
                tracing::warn!(
                    error = format!("{error:#}"),
                    "the store is unavailable; opening it is tried again"
                );
                tokio::time::sleep(STORE_RETRY_PAUSE).await;
            }
            opened => return opened,
        }
    }
}

fn is_unavailable(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(dalsegno_model::Error::Unavailable { .. }))
}

/// The signals that end the process.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn new() -> std::io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    async fn received(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
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

/// What the gateway needs besides what all parts of the process share.
struct GatewayPart<'a> {
    config: GatewayConfig,
    address: SocketAddr,
    tls: &'a TlsArgs,
    serving: Serving,
    aggregated: Option<&'a AggregatedListener>,
}

/// What the operator needs besides what all parts of the process share.
struct OperatorPart {
    args: OperatorArgs,
    tls: TlsArgs,
    key: KeyArgs,
    state_reads: StateReadBudget,
    failpoint: Failpoint,
}

impl Process {
    /// Starts the gateway. Returns its limiter of state reads.
    async fn start_gateway(&mut self, part: GatewayPart<'_>) -> anyhow::Result<StateReadBudget> {
        let GatewayPart { mut config, address, tls, serving, aggregated } = part;
        config.max_connections = process_limits::connections(config.max_connections);
        process_limits::warn_of_little_memory(config.memory_bytes());
        let reviews = Arc::new(TokenReviews::new(self.client.clone()));
        let gateway = Gateway::new(self.store.clone(), reviews, config);
        gateway.register(&mut self.registry);
        let state_reads = gateway.resume_reads();
        if let Some(aggregated) = aggregated {
            aggregated.open(gateway.clone());
        }
        serving.register(&mut self.registry);
        let acceptor = Acceptor::new(serving.config());
        let plain = match tls.gateway_tls {
            TlsMode::Off => Transport::Plain,
            TlsMode::Operator | TlsMode::Secret => Transport::Legacy(serving.plain_open()),
        };
        let socket = listen(address).await.context("listening for workers")?;
        let mut listeners = vec![Listener::new(socket, plain, &gateway)];
        // Also without TLS: workers that were started with it are served on, with the last certificate.
        if let Some(address) = tls.gateway_tls_listen {
            let socket = listen(address).await.context("listening for workers with TLS")?;
            listeners.push(Listener::new(socket, Transport::Tls(acceptor.clone()), &gateway));
        }
        let needs_certificate = tls.gateway_tls != TlsMode::Off;
        self.probes.ready.push(Arc::new({
            let gateway = gateway.clone();
            move || gateway.is_ready() && (!needs_certificate || acceptor.has_certificate())
        }));
        self.probes.failures.push(Arc::new({
            let gateway = gateway.clone();
            move || gateway.failure()
        }));
        let stopped = self.stop.clone().cancelled_owned();
        self.tasks.spawn(async move {
            dalsegno_gateway::serve(listeners, gateway, stopped).await.context("serving workers")
        });
        Ok(state_reads)
    }

    /// Keeps a reserve on the volume of the embedded store, shows how full the volume is, and ends the process if the
    /// volume fails.
    fn watch_volume(&mut self, disk: Arc<Disk>, operator: Option<&OperatorArgs>) {
        disk.keep_reserve();
        volume::register(disk.clone(), &mut self.registry);
        self.probes.failures.push(Arc::new({
            let disk = disk.clone();
            move || disk.failure()
        }));
        if let Some(args) = operator {
            let (client, args, stop) = (self.client.clone(), args.clone(), self.stop.clone());
            let publishing = volume::publish_levels(disk.clone(), client, args, stop);
            self.tasks.spawn(async move {
                publishing.await;
                Ok(())
            });
        }
        let stop = self.stop.clone();
        self.tasks.spawn(async move {
            match stop.run_until_cancelled(disk.failed()).await {
                Some(why) => Err(VolumeFailed(why).into()),
                None => Ok(()),
            }
        });
    }

    fn start_operator(&mut self, part: OperatorPart) {
        let OperatorPart { args, tls, key, state_reads, failpoint } = part;
        let metrics = Metrics::default();
        metrics.register(&mut self.registry);
        let (is_ready, queue_health) = (Arc::new(AtomicBool::new(false)), QueueHealth::default());
        self.probes.failures.push(Arc::new({
            let queue_health = queue_health.clone();
            move || queue_health.failure(Instant::now())
        }));
        self.probes.ready.push(Arc::new({
            let is_ready = is_ready.clone();
            move || is_ready.load(Ordering::Relaxed)
        }));
        let manager = Manager {
            client: self.client.clone(),
            store: self.store.clone(),
            state_reads,
            args,
            tls,
            signing_key: key.signing_key,
            metrics,
            failpoint,
            is_ready,
            watch_health: self.watch_health.clone(),
            queue_health,
        };
        self.tasks.spawn(run_manager(manager, self.stop.clone()));
    }

    /// Serves health, and waits for a signal or the end of a part. Then stops all parts.
    async fn run(mut self, health: HealthArgs, mut signals: Signals) -> anyhow::Result<()> {
        let (watches, registry) = (self.watch_health, self.registry);
        self.probes.failures.push(Arc::new(move || {
            watches
                .is_blind(Instant::now())
                .then(|| "the watches of the API server deliver nothing".to_owned())
        }));
        let probes = self.probes;
        let stopped = self.stop.clone().cancelled_owned();
        self.tasks.spawn(async move {
            serve_health(health.health_listen, probes, registry, stopped).await.context("serving health")
        });
        let first = tokio::select! {
            () = signals.received() => None,
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

/// The kind and the address of a database, without user, password and parameters.
fn without_secrets(database_url: &str) -> String {
    let (scheme, rest) = database_url.split_once("://").unwrap_or(("unknown", ""));
    let (secret, address) = rest.rsplit_once('@').unwrap_or(("", rest));
    // An `@` in a parameter: what follows it may be part of a password.
    if secret.contains('?') {
        return scheme.to_owned();
    }
    format!("{scheme}://{}", address.split('?').next().unwrap_or_default())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_names_the_store_without_its_secrets() {
        for (url, shown) in [
            ("sqlite:///var/lib/dalsegno/dalsegno.db", "sqlite:///var/lib/dalsegno/dalsegno.db"),
            (
                "postgres://app:pass@db.example:5432/dalsegno?sslmode=verify-full",
                "postgres://db.example:5432/dalsegno",
            ),
            ("postgres://app:p?ss@db/dalsegno", "postgres"),
            ("postgres://db/dalsegno?password=a@b", "postgres"),
            ("postgres://db/dalsegno?user=app", "postgres://db/dalsegno"),
        ] {
            assert_eq!(without_secrets(url), shown);
        }
    }
}
