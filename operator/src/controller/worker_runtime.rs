//! Where workers run: a Kubernetes cluster, or one machine.

use std::sync::Arc;

use dalsegno_core::approvals::ApprovalEffect;
use dalsegno_core::{EffectResult, EventSpec, Observed, ObservedHead};
use dalsegno_crds::{AgentRun, AgentRunStatus};
use dalsegno_gateway::StateReadBudget;
use dalsegno_model::{Ending, RunRecord, Store};
use serde_json::Value;

use super::error::{Error, Result};

/// One pod. Another pod of the same name has another UID.
#[derive(Clone, Copy, Debug)]
pub struct PodRef<'a> {
    pub namespace: &'a str,
    pub name: &'a str,
    pub uid: &'a str,
}

/// What a reconcile needs besides the store. A runtime without pods presents its processes as pods.
pub trait WorkerRuntime {
    /// The store.
    fn store(&self) -> &Arc<dyn Store>;

    /// Limits the memory of states that are read. Shared with the gateway of the same process.
    fn state_reads(&self) -> &StateReadBudget;

    /// Observes everything that a decision needs to know of the run. Only reads.
    async fn observe(&self, run: &AgentRun) -> Result<Observed>;

    /// UID of a namespace.
    async fn namespace_uid(&self, namespace: &str) -> Result<String>;

    /// Creates the pod of an attempt, given as JSON. `revision` is the hash of its template. If the pod exists already and is ours, the
    /// result is that pod.
    async fn create_worker(&self, run: &AgentRun, pod: Value, revision: String) -> Result<EffectResult>;

    /// Deletes the pod with this name and UID. Succeeds if the pod is gone or has another UID.
    async fn stop_worker(&self, pod: PodRef<'_>) -> Result<()>;

    /// Removes the finalizer of the pod with this name and UID. Succeeds if the pod is gone or has another UID.
    async fn release_pod(&self, pod: PodRef<'_>) -> Result<()>;

    /// Performs what a decision wants for an approval of the run.
    async fn approval(&self, run: &AgentRun, effect: ApprovalEffect) -> Result<Option<EffectResult>>;

    /// Deletes the AgentRun. Succeeds if it is gone; fails with [`Error::Conflict`] if it has changed since it was read.
    async fn delete_run(&self, run: &AgentRun) -> Result<()>;

    /// Writes the status. Fails with [`Error::Conflict`] if the object has changed since it was read.
    async fn write_status(&self, run: &AgentRun, status: AgentRunStatus) -> Result<()>;

    /// Publishes events, best effort: the status has the same information. Empties the list.
    async fn publish_events(&self, run: &AgentRun, events: &mut Vec<EventSpec>);

    /// Caches the result of verifying the run's head, so that `observe` returns it until the attempt has a pod. A result
    /// that is lost is computed again.
    fn cache_head(&self, run: &AgentRun, head: &ObservedHead) {
        let _ = (run, head);
    }

    /// An effect is about to be performed.
    fn before_effect(&self, effect: &'static str);

    /// An effect was performed.
    fn after_effect(&self, effect: &'static str);

    /// An attempt was ended like this. `row`: the run afterwards.
    fn attempt_ended(&self, row: &RunRecord, ending: &Ending);

    /// The run's head was verified, and the run cannot continue from it.
    fn head_corrupt(&self);

    /// The store answered a read, but failed to perform an effect.
    fn store_unavailable(&self, error: &Error);

    /// A reconcile converged on this row: cached evidence of earlier attempts can be dropped.
    fn converged(&self, row: &RunRecord);
}
