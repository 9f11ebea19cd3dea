//! What all reconciles of a cluster share: clients, caches, metrics.
//!
//! Caches may start work, but prove nothing: `observe` asks the API server before it believes that an object is gone.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dalsegno_core::{CliLocation, ObservedHead, PodCreateError};
use dalsegno_crds::AgentRun;
use dalsegno_gateway::StateReadBudget;
use dalsegno_model::Store;
use kube::runtime::events::{Recorder, Reporter};
use kube::runtime::reflector::{ObjectRef, Store as Cache};
use kube::{Api, Client, Resource as _};
use tokio::sync::mpsc::UnboundedSender;

use super::failpoint::Failpoint;
use super::panics::Panics;
use super::queue_health::QueueHealth;
use super::write_conflicts::WriteConflicts;
use crate::cache::api_health::ApiHealth;
use crate::cache::approvals::ApprovalCache;
use crate::cache::invalid_objects::InvalidObjects;
use crate::cache::nodes::NodeCache;
use crate::cache::pods::{Owner, PodCache, RunKey};
use crate::cache::quotas::QuotaCache;
use crate::cache::raw_object::{RawDefinition, RawRun};
use crate::cache::run_queues::RunQueues;
use crate::certificates::bundle::GatewayTrust;
use crate::controller::policies::Policies;
use crate::kube_client::with_timeout;
use crate::metrics::Metrics;
use crate::mutex::lock;

/// Timeout of writing an event, or of reading those of a pod. It is short because the status has the same information.
pub const EVENT_TIMEOUT: Duration = Duration::from_secs(3);

/// What all reconciles share.
pub struct Context {
    /// Client of the API server.
    pub client: Client,
    /// The store.
    pub store: Arc<dyn Store>,
    /// Where workers reach the gateway, and the CAs that they are started with.
    pub gateway: GatewayTrust,
    /// Where a person runs this program.
    pub cli: CliLocation,
    /// All worker pods.
    pub pods: PodCache,
    /// All nodes.
    pub nodes: NodeCache,
    /// All AgentDefinitions.
    pub definitions: Cache<RawDefinition>,
    /// All AgentApprovals.
    pub approvals: ApprovalCache,
    /// Whether the chart's admission policies are in place.
    pub policies: Policies,
    /// Objects that cannot be parsed now.
    pub invalid_objects: InvalidObjects,
    /// Since when the API server is available.
    pub api: ApiHealth,
    /// The last refusal of a pod by the API server, by UID of the AgentRun.
    pub refusals: Mutex<HashMap<String, PodCreateError>>,
    /// Namespaces whose quota is exceeded.
    pub quotas: QuotaCache,
    /// The runs of each definition, and which of them wait.
    pub run_queues: RunQueues,
    /// Results of verifying heads, by UID of the AgentRun, until the attempt has a pod.
    pub heads: Mutex<HashMap<String, ObservedHead>>,
    /// `checkpoints.snapshotEvery` of runs that have no value, nor has their definition.
    pub snapshot_every: Option<i32>,
    /// Limits the memory of states that are read. In one process with a gateway, it is the gateway's.
    pub state_reads: StateReadBudget,
    /// Number of consecutive failed reconciles, by UID of the AgentRun.
    pub failures: Mutex<HashMap<String, u32>>,
    /// Status writes that the API server rejected.
    pub write_conflicts: WriteConflicts,
    /// Reconciles that panicked.
    pub panics: Panics,
    /// What the queue of reconciles does.
    pub queue_health: QueueHealth,
    /// Queue of runs to reconcile.
    pub queue: UnboundedSender<ObjectRef<RawRun>>,
    /// Reporter of events.
    pub reporter: Reporter,
    /// Metrics of the operator.
    pub metrics: Metrics,
    /// Aborts the process in tests.
    pub failpoint: Failpoint,
}

impl Context {
    /// AgentRuns of a namespace.
    pub fn runs(&self, namespace: &str) -> Api<AgentRun> {
        Api::namespaced(self.client.clone(), namespace)
    }

    /// Pods of a namespace.
    pub fn pods_in(&self, namespace: &str) -> Api<k8s_openapi::api::core::v1::Pod> {
        Api::namespaced(self.client.clone(), namespace)
    }

    /// A recorder of events with a short timeout, since its caller holds the run's slot meanwhile. A new one each time: a
    /// recorder remembers events for minutes to count repetitions, and ours are published once.
    pub fn recorder(&self) -> Recorder {
        Recorder::new(with_timeout(self.client.clone(), EVENT_TIMEOUT), self.reporter.clone())
    }

    /// Has the controller reconcile a run.
    pub fn enqueue(&self, key: &RunKey) {
        // It fails only if there is no controller.
        let _ = self.queue.send(ObjectRef::new(&key.name).within(&key.namespace));
    }

    /// Removes everything cached about other runs than these, and about definitions and nodes that are gone. Done
    /// periodically, not at a run's deletion: watch events of its pods may come later and would be cached again.
    pub fn remove_all_but(&self, runs: &HashSet<Owner>) {
        self.pods.remove_all_but(runs);
        self.nodes.remove_gone(|node| !self.pods.runs_on(node).is_empty());
        let definitions = self.definitions.state();
        let definitions = definitions.iter().filter_map(|it| it.meta().uid.as_deref());
        let existing: HashSet<&str> = runs.iter().map(|it| it.uid.as_str()).chain(definitions).collect();
        self.invalid_objects.retain(|uid| existing.contains(uid), &self.metrics);
        lock(&self.refusals).retain(|uid, _| existing.contains(uid.as_str()));
        lock(&self.heads).retain(|uid, _| existing.contains(uid.as_str()));
        lock(&self.failures).retain(|uid, _| existing.contains(uid.as_str()));
        self.metrics.runs.remove_all_but(&existing);
        self.write_conflicts.retain(&existing);
        self.panics.retain(&existing);
    }
}
