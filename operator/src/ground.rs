//! Where workers run: a cluster, or one laptop. What a reconcile needs of it; all else is the store's.

use std::sync::Arc;

use dalsegno_core::{EffectResult, EventSpec, Observed, ObservedHead};
use dalsegno_crds::{AgentRun, AgentRunStatus};
use dalsegno_gateway::Room;
use dalsegno_store::{RunRecord, Store};
use k8s_openapi::api::core::v1::Pod;

use crate::error::{Error, Result};

/// Where workers run. What a method says of a pod holds of whatever stands for one.
pub trait Ground {
    /// The store.
    fn store(&self) -> &Arc<dyn Store>;

    /// Room for the states that are read for attempts that go on.
    fn resumes(&self) -> &Room;

    /// Everything that a decision needs to know of the run. Reads, and never writes.
    async fn observe(&self, run: &AgentRun) -> Result<Observed>;

    /// UID of a namespace.
    async fn tenant(&self, namespace: &str) -> Result<String>;

    /// Creates the pod of a template with this hash, which is kept. A pod of ours that is there already is the one.
    async fn create_worker(&self, run: &AgentRun, pod: Pod, revision: String) -> Result<EffectResult>;

    /// Deletes a pod if it still has this UID; that it is gone, or another, is fine.
    async fn stop_worker(&self, namespace: &str, name: &str, uid: String) -> Result<()>;

    /// Deletes the AgentRun. Refused if it has changed since it was read; that it is gone is fine.
    async fn delete_run(&self, run: &AgentRun) -> Result<()>;

    /// The one status write. Refused if the object has changed since it was read.
    async fn write_status(&self, run: &AgentRun, status: AgentRunStatus) -> Result<()>;

    /// Tells a person, best effort: what is told stands in the status too.
    async fn tell(&self, run: &AgentRun, notices: &mut Vec<EventSpec>);

    /// Keeps what was found of the run's head, for `observe` to tell of again until the attempt has a pod. What is
    /// forgotten is looked at again.
    fn remember(&self, run: &AgentRun, head: &ObservedHead) {
        let _ = (run, head);
    }

    /// The effect of this name is about to be carried out.
    fn before(&self, effect: &'static str);

    /// The effect of this name was carried out.
    fn after(&self, effect: &'static str);

    /// An attempt was ended for this cause.
    fn ended(&self, cause: &str);

    /// The run's head was looked at, and the run cannot go on from it.
    fn head_is_damaged(&self);

    /// The store answered when it was asked, and did not carry out an effect.
    fn store_away(&self, error: &Error);

    /// A reconcile has come to rest on this row: what was kept as evidence for it may go.
    fn at_rest(&self, row: &RunRecord);
}
