//! The operator's manager: leader election, caches, controllers and background tasks.

use std::collections::HashMap;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use dalsegno_core::CliLocation;
use dalsegno_crds::names;
use dalsegno_gateway::StateReadBudget;
use dalsegno_model::Store;
use futures::{Stream, StreamExt as _};
use kube::Client;
use kube::runtime::events::Reporter;
use kube::runtime::reflector::{self, ObjectRef};
use kube::runtime::utils::PredicateConfig;
use kube::runtime::{Predicate as _, WatchStreamExt, predicates, watcher};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::cache::api_health::ApiHealth;
use crate::cache::approvals::ApprovalCache;
use crate::cache::invalid_objects::InvalidObjects;
use crate::cache::listed_objects::listed_objects;
use crate::cache::nodes::NodeCache;
use crate::cache::pods::PodCache;
use crate::cache::quotas::QuotaCache;
use crate::cache::raw_object::{RawDefinition, RawRun};
use crate::cache::run_queues::RunQueues;
use crate::cache::watch_health::WatchHealth;
use crate::certificates::bundle::GatewayTrust;
use crate::config::{OperatorArgs, TlsArgs};
use crate::controller::context::Context;
use crate::controller::definitions;
use crate::controller::failpoint::Failpoint;
use crate::controller::panics::Panics;
use crate::controller::policies::Policies;
use crate::controller::queue_health::QueueHealth;
use crate::controller::run_controller::RunController;
use crate::controller::write_conflicts::WriteConflicts;
use crate::kube_client::api_server_hosts;
use crate::metrics::Metrics;
use crate::people_api::leaving::withdraw_at_the_end;
use crate::people_api::registrar::Registrar;
use crate::tasks::anchor_sink::AnchorSink;
use crate::tasks::anchors::Anchoring;
use crate::tasks::certificates::Certificates;
use crate::tasks::notifications::{ApiServer, Outbox, Receiver};
use crate::tasks::run_counts::Ages;
use crate::tasks::watches::{
    enqueue_runs_of, signal_when_listed, trim, watch_approvals, watch_kind, watch_nodes, watch_pods,
    watch_quotas,
};
use crate::tasks::{
    cache_cleanup, capacity, deadline_poll, leader, policies, purge, retention, run_counts, run_with_tasks,
};

/// Time for reconciles to end after a stop. The next operator continues what they leave unfinished.
const STOP_GRACE: Duration = Duration::from_secs(10);

/// Everything that the operator needs.
pub struct Manager {
    /// Client of the API server.
    pub client: Client,
    /// The store.
    pub store: Arc<dyn Store>,
    /// Limits the memory of states that are read.
    pub state_reads: StateReadBudget,
    /// Settings.
    pub args: OperatorArgs,
    /// Settings of the gateway's certificate.
    pub tls: TlsArgs,
    /// File of the key that signs anchors.
    pub signing_key: Option<PathBuf>,
    /// Metrics.
    pub metrics: Metrics,
    /// Aborts the process in tests.
    pub failpoint: Failpoint,
    /// When the watches were last heard.
    pub watch_health: WatchHealth,
    /// What the queue of reconciles does.
    pub queue_health: QueueHealth,
    /// Set once the operator is ready: it reconciles, or waits to become the leader.
    pub is_ready: Arc<AtomicBool>,
}

/// Becomes the leader, fills all caches, and reconciles until `stop`. Then releases the leadership.
///
/// # Errors
///
/// A cache cannot be filled, or a background task ended before the stop.
pub async fn run_manager(manager: Manager, stop: CancellationToken) -> anyhow::Result<()> {
    // Of every operator, not of the leader alone: the last one to stop may be a standby.
    let leaving = withdraw_at_the_end(manager.client.clone(), manager.args.namespace.clone(), stop.clone());
    let leaving = manager.args.people_api.people_api.then(|| tokio::spawn(leaving));
    let ended = manager.lead_and_reconcile(stop.clone()).await;
    if let Some(leaving) = leaving {
        // The parts of the process that did not end by a stop end by this one's end.
        stop.cancel();
        let _ = leaving.await;
    }
    ended
}

impl Manager {
    async fn lead_and_reconcile(self, stop: CancellationToken) -> anyhow::Result<()> {
        let mut guard = None;
        if self.args.leader_election {
            let (client, args) = (self.client.clone(), &self.args);
            let candidate =
                leader::Candidate { client, namespace: &args.namespace, identity: &args.pod_name };
            guard = candidate.lead(&self.is_ready, stop.clone()).await;
            if guard.is_none() {
                return Ok(());
            }
        }
        let ended = self.reconcile_until(stop).await;
        // Last: by now nothing of ours is under way that the store would not reject.
        if let Some(guard) = guard {
            guard.release().await;
        }
        ended
    }

    /// Starts the watches, and waits until the caches of pods, nodes and definitions are filled: a reconcile must not take an
    /// empty cache for an empty cluster. Then starts the background tasks, and reconciles runs until `stop`.
    async fn reconcile_until(self, stop: CancellationToken) -> anyhow::Result<()> {
        let (is_ready, watch_health) = (self.is_ready.clone(), self.watch_health.clone());
        let queue_health = self.queue_health.clone();
        let (args, tls, signing_key) = (self.args.clone(), self.tls.clone(), self.signing_key.clone());
        let api_server = ApiServer::new(self.client.clone(), api_server_hosts().await);
        let receiver = Receiver::new(&args.notifications, api_server)?;
        let (queue, queued) = mpsc::unbounded_channel::<ObjectRef<RawRun>>();
        let (definitions, definition_writer) = reflector::store::<RawDefinition>();
        let (runs, run_writer) = reflector::store::<RawRun>();
        let ctx = Arc::new(self.context(queue, definitions.clone()));
        let mut tasks = JoinSet::new();

        let (pods_listed, wait_for_pods) = oneshot::channel();
        tasks.spawn(watch_pods(ctx.clone(), args.clone(), pods_listed));
        let (nodes_listed, wait_for_nodes) = oneshot::channel();
        tasks.spawn(watch_nodes(ctx.clone(), nodes_listed));
        tasks.spawn(watch_quotas(ctx.clone(), args.clone()));
        tasks.spawn(watch_approvals(ctx.clone(), args.clone()));
        tasks.spawn(policies::run(ctx.clone(), stop.clone()));
        let probing = ctx.clone();
        tasks.spawn(async move { probing.api.probe(&probing.client).await });
        let (changes, wait_for_definitions) = definition_changes(ctx.clone(), &args, definition_writer);
        let stopped = stop.clone().cancelled_owned();
        tasks.spawn(definitions::run(ctx.clone(), changes, definitions, stopped));

        let filled = async {
            wait_for_definitions.await.context("watching AgentDefinitions")?;
            wait_for_pods.await.context("watching pods")?;
            wait_for_nodes.await.context("watching nodes")
        };
        let Some(filled) = stop.run_until_cancelled(filled).await else { return Ok(()) };
        filled?;
        tasks.spawn(deadline_poll::run(ctx.clone(), stop.clone()));
        // After the pods are listed: an empty cache is no proof that every worker has a new CA.
        tasks.spawn(Certificates::new(ctx.clone(), tls, &args.namespace).run(stop.clone()));
        let anchoring = Anchoring::new(
            ctx.store.clone(),
            signing_key,
            AnchorSink::new(&args, ctx.client.clone()),
            ctx.metrics.clone(),
        );
        tasks.spawn(anchoring.run(args.anchor_every, stop.clone()));
        let registrar = Registrar::new(ctx.client.clone(), &args, ctx.metrics.people_api.clone());
        tasks.spawn(registrar.run(stop.clone()));
        let outbox = Outbox { store: ctx.store.clone(), receiver, metrics: ctx.metrics.clone() };
        tasks.spawn(outbox.run(stop.clone()));
        tasks.spawn(capacity::run(ctx.store.clone(), ctx.metrics.clone(), stop.clone()));
        if let Some(days) = args.purge_days {
            tasks.spawn(purge::run(ctx.store.clone(), days, ctx.metrics.clone(), stop.clone()));
        }
        tasks.spawn(retention::run(ctx.store.clone(), ctx.metrics.clone(), stop.clone()));

        let (runs_cached, wait_for_cache) = oneshot::channel();
        tasks.spawn(cache_cleanup::run(ctx.clone(), runs.clone(), wait_for_cache));
        let ages = Ages { watches: watch_health, queue: queue_health };
        tasks.spawn(run_counts::run(runs.clone(), ctx.metrics.clone(), ages));
        let (runs_listed, wait_for_runs) = oneshot::channel();
        let queues = ctx.clone();
        let events = watch_kind::<RawRun>(&ctx.client, &args, &watcher::Config::default())
            .inspect(move |event| {
                if let Ok(event) = event {
                    queues.run_queues.apply(event).iter().for_each(|run| queues.enqueue(run));
                }
            })
            .inspect(signal_when_listed(runs_listed))
            .modify(trim)
            .reflect(run_writer)
            .inspect(signal_when_listed(runs_cached));
        let changes = listed_objects(events).predicate_filter(
            predicates::generation.combine(predicates::finalizers),
            PredicateConfig::default(),
        );
        is_ready.store(true, Ordering::Relaxed);
        tracing::info!("the operator has filled its caches and starts to reconcile");
        let queue =
            futures::stream::unfold(queued, |mut queued| async move { Some((queued.recv().await?, queued)) });
        let controller = RunController { runs: changes, queue, cache: runs, concurrency: args.concurrency };
        let reconciling = controller.run(ctx, stop.clone().cancelled_owned());
        let reconciling = until_stopped(wait_for_runs, reconciling, &stop, STOP_GRACE);
        run_with_tasks(reconciling, &mut tasks, &stop).await?;
        tasks.shutdown().await;
        Ok(())
    }

    fn context(
        self,
        queue: mpsc::UnboundedSender<ObjectRef<RawRun>>,
        definitions: reflector::Store<RawDefinition>,
    ) -> Context {
        Context {
            client: self.client,
            store: self.store,
            gateway: GatewayTrust::new(&self.args.gateway_url),
            cli: CliLocation::Pod { namespace: self.args.namespace.clone() },
            pods: PodCache::default(),
            nodes: NodeCache::default(),
            definitions,
            approvals: ApprovalCache::default(),
            policies: Policies::new(self.args.policies.0),
            invalid_objects: InvalidObjects::default(),
            api: ApiHealth::default(),
            refusals: HashMap::new().into(),
            quotas: QuotaCache::default(),
            run_queues: RunQueues::default(),
            snapshot_every: self.args.snapshot_every,
            heads: HashMap::new().into(),
            state_reads: self.state_reads,
            failures: HashMap::new().into(),
            write_conflicts: WriteConflicts::default(),
            panics: Panics::default(),
            queue_health: self.queue_health,
            queue,
            reporter: Reporter {
                controller: names::FIELD_MANAGER.into(),
                instance: Some(self.args.pod_name),
            },
            metrics: self.metrics,
            failpoint: self.failpoint,
        }
    }
}

/// Watches AgentDefinitions: fills their cache, and has the runs of a changed definition reconciled. Returns the changes,
/// and a receiver that is notified once the cache is filled.
fn definition_changes(
    ctx: Arc<Context>,
    args: &OperatorArgs,
    writer: reflector::store::Writer<RawDefinition>,
) -> (impl Stream<Item = watcher::Result<RawDefinition>> + Send + 'static, oneshot::Receiver<()>) {
    let (listed, wait_for_list) = oneshot::channel();
    let events = watch_kind::<RawDefinition>(&ctx.client, args, &watcher::Config::default())
        // Not the cache's own `wait_until_ready`: it wakes one waiter only, and the controller is one.
        .inspect(signal_when_listed(listed))
        .modify(trim)
        .reflect(writer);
    let changes = listed_objects(events)
        .predicate_filter(predicates::generation, PredicateConfig::default())
        .inspect(move |changed| {
            if let Ok(definition) = changed {
                enqueue_runs_of(&ctx, definition);
            }
        });
    (changes, wait_for_list)
}

/// Runs the controller until `stop`, and then for at most `grace`. A controller whose cache is not filled has not started a
/// reconcile, but would wait for the cache: it ends at once.
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

#[cfg(test)]
mod tests;
