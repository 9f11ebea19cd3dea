//! What every reconcile shares: clients, caches that start work and prove nothing, and what the pulse found.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dalsegno_core::{ObservedHead, PodCreateError};
use dalsegno_crds::AgentRun;
use dalsegno_gateway::Room;
use dalsegno_store::Store;
use jiff::Timestamp;
use kube::runtime::events::{Recorder, Reporter};
use kube::runtime::reflector::{ObjectRef, Store as Cache};
use kube::{Api, Client, Resource as _};
use tokio::sync::mpsc::UnboundedSender;

use crate::client::bounded;
use crate::crash::CrashPoint;
use crate::kept::{Definition, Run};
use crate::nodes::NodeBook;
use crate::pods::{Owner, PodBook, RunKey};
use crate::sync::lock;
use crate::telemetry::Metrics;
use crate::unreadable::Unreadable;

/// How long the answer about an event may take. None is worth waiting for: what it tells stands in the status too.
pub const EVENT_PATIENCE: Duration = Duration::from_secs(3);

/// What every reconcile shares.
pub struct Context {
    /// The API server.
    pub client: Client,
    /// The store.
    pub store: Arc<dyn Store>,
    /// Where workers reach the gateway, without a slash at the end.
    pub gateway_url: String,
    /// Every pod of ours, as last seen.
    pub pods: PodBook,
    /// Every node, as last seen.
    pub nodes: NodeBook,
    /// Every AgentDefinition, as last seen.
    pub definitions: Cache<Definition>,
    /// The objects that cannot be read now.
    pub unreadable: Unreadable,
    /// Since when the API server has answered us.
    pub api: ApiHealth,
    /// Pods that the API server refused, by UID of the AgentRun.
    pub refusals: Mutex<HashMap<String, PodCreateError>>,
    /// What was found of runs' heads, by UID, until their attempts have a pod.
    pub heads: Mutex<HashMap<String, ObservedHead>>,
    /// Room for the states that are read for attempts that go on: in one process with a gateway, the gateway's.
    pub resumes: Room,
    /// How often in a row a reconcile failed, by UID.
    pub failures: Mutex<HashMap<String, u32>>,
    /// Wakes the controller for a run.
    pub wake: UnboundedSender<ObjectRef<Run>>,
    /// In whose name events are written.
    pub reporter: Reporter,
    /// Counts.
    pub metrics: Metrics,
    /// Dies on purpose.
    pub crash: CrashPoint,
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

    /// Writes events, and waits for none for long: whoever tells holds a run's slot meanwhile. A recorder keeps each of them
    /// for minutes, to count the ones that are told again; ours are told once, so that none outlives what it tells of.
    pub fn recorder(&self) -> Recorder {
        Recorder::new(bounded(self.client.clone(), EVENT_PATIENCE), self.reporter.clone())
    }

    /// Has the controller look at a run.
    pub fn look_at(&self, key: &RunKey) {
        // Without a controller there is nobody to wake.
        let _ = self.wake.send(ObjectRef::new(&key.name).within(&key.namespace));
    }

    /// Forgets what was kept of all runs but these, and of definitions and nodes that are gone. A deleted run's pods are heard
    /// of after it: what was forgotten at its end would be kept anew.
    pub fn forget_all_but(&self, runs: &HashSet<Owner>) {
        self.pods.forget_all_but(runs);
        self.nodes.forget_gone(|node| !self.pods.runs_on(node).is_empty());
        let definitions = self.definitions.state();
        let definitions = definitions.iter().filter_map(|it| it.meta().uid.as_deref());
        let there: HashSet<&str> = runs.iter().map(|it| it.uid.as_str()).chain(definitions).collect();
        self.unreadable.forget_all_but(|uid| there.contains(uid), &self.metrics);
        lock(&self.refusals).retain(|uid, _| there.contains(uid.as_str()));
        lock(&self.heads).retain(|uid, _| there.contains(uid.as_str()));
        lock(&self.failures).retain(|uid, _| there.contains(uid.as_str()));
    }
}

/// Since when the API server has answered us: what it did not tell us while it was away is no evidence.
#[derive(Debug, Default)]
pub struct ApiHealth(Mutex<Option<Timestamp>>);

impl ApiHealth {
    /// It answered, or did not.
    pub fn record(&self, answered: bool, now: Timestamp) {
        let mut since = lock(&self.0);
        *since = match (answered, *since) {
            (true, Some(since)) => Some(since),
            (true, None) => Some(now),
            (false, _) => None,
        };
    }

    /// Since when; `now` while it does not answer.
    pub fn answering_since(&self, now: Timestamp) -> Timestamp {
        lock(&self.0).unwrap_or(now)
    }
}
