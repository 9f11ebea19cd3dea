//! The worker runtime of a cluster: pods at the Kubernetes API server.

use std::sync::Arc;

use dalsegno_core::{EffectResult, EventSpec, Observed, ObservedHead, PodCreateError};
use dalsegno_crds::{AgentRun, AgentRunStatus, names};
use dalsegno_gateway::StateReadBudget;
use dalsegno_model::{RunRecord, Store};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::api::{DeleteParams, PostParams, Preconditions};
use kube::core::Status;
use kube::{Api, ResourceExt};

use super::context::Context;
use super::error::{Error, Result};
use super::observe::observe;
use super::publish;
use super::worker_runtime::{PodRef, WorkerRuntime};
use crate::cache::pods::Owner;
use crate::log::error_chain;
use crate::mutex::lock;

/// Name of the status write among the effects.
const STATUS: &str = "status";

impl WorkerRuntime for Context {
    fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    fn state_reads(&self) -> &StateReadBudget {
        &self.state_reads
    }

    async fn observe(&self, run: &AgentRun) -> Result<Observed> {
        observe(self, run).await
    }

    async fn namespace_uid(&self, name: &str) -> Result<String> {
        let api: Api<Namespace> = Api::all(self.client.clone());
        let namespace = api.get(name).await.map_err(Error::api("reading the namespace"))?;
        namespace.metadata.uid.ok_or(Error::MissingMetadata("namespace UID"))
    }

    async fn create_worker(&self, run: &AgentRun, pod: Pod, revision: String) -> Result<EffectResult> {
        let uid = run.uid().unwrap_or_default();
        let api = self.pods_in(&run.namespace().unwrap_or_default());
        let params =
            PostParams { field_manager: Some(names::FIELD_MANAGER.to_owned()), ..PostParams::default() };
        match api.create(&params, &pod).await {
            Ok(pod) => {
                lock(&self.refusals).remove(&uid);
                lock(&self.heads).remove(&uid);
                Ok(EffectResult::Pod(Box::new(pod)))
            }
            Err(kube::Error::Api(status)) if status.is_already_exists() => {
                let found =
                    api.get_opt(&pod.name_any()).await.map_err(Error::api("reading the existing pod"))?;
                let Some(found) = found else {
                    return Err(Error::Conflict);
                };
                let is_ours = found
                    .owner_references()
                    .iter()
                    .any(|owner| owner.controller == Some(true) && owner.uid == uid);
                Ok(if is_ours { EffectResult::Pod(Box::new(found)) } else { EffectResult::NameTaken })
            }
            // Also a fault, such as a broken webhook: the status must say why there is no pod.
            Err(kube::Error::Api(status)) => {
                Ok(EffectResult::PodNotCreated(self.record_refusal(uid, &status, revision)))
            }
            Err(error) => Err(Error::api("creating the worker's pod")(error)),
        }
    }

    async fn stop_worker(&self, pod: PodRef<'_>) -> Result<()> {
        let PodRef { namespace, name, uid } = pod;
        let params = DeleteParams {
            preconditions: Some(Preconditions { uid: Some(uid.to_owned()), resource_version: None }),
            ..DeleteParams::background()
        };
        match self.pods_in(namespace).delete(name, &params).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => Ok(()),
            Err(error) => Err(Error::api("deleting a pod")(error)),
        }
    }

    async fn delete_run(&self, run: &AgentRun) -> Result<()> {
        let seen = Preconditions { uid: run.uid(), resource_version: run.resource_version() };
        let params = DeleteParams { preconditions: Some(seen), ..DeleteParams::background() };
        match self.runs(&run.namespace().unwrap_or_default()).delete(&run.name_any(), &params).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
            Err(kube::Error::Api(status)) if status.is_conflict() => Err(Error::Conflict),
            Err(error) => Err(Error::api("deleting an AgentRun whose time to live is over")(error)),
        }
    }

    async fn write_status(&self, run: &AgentRun, status: AgentRunStatus) -> Result<()> {
        self.before_effect(STATUS);
        publish::write_status(self, run, status).await?;
        self.after_effect(STATUS);
        Ok(())
    }

    async fn publish_events(&self, run: &AgentRun, events: &mut Vec<EventSpec>) {
        publish::publish_events(self, run, events).await;
    }

    fn cache_head(&self, run: &AgentRun, head: &ObservedHead) {
        lock(&self.heads).insert(run.uid().unwrap_or_default(), head.clone());
    }

    fn before_effect(&self, effect: &'static str) {
        self.failpoint.pass("before", effect);
    }

    fn after_effect(&self, effect: &'static str) {
        self.failpoint.pass("after", effect);
        self.metrics.count_effect(effect);
    }

    fn attempt_ended(&self, cause: &str) {
        self.metrics.count_attempt_ended(cause);
    }

    fn head_corrupt(&self) {
        self.metrics.count_damage("head");
    }

    fn store_unavailable(&self, error: &Error) {
        self.metrics.count_lookup("unknown");
        tracing::warn!(error = error_chain(error), "the store did not perform an effect");
    }

    fn converged(&self, row: &RunRecord) {
        // A pod that is gone is evidence until its end is recorded.
        let run = Owner { namespace: row.namespace.clone(), uid: row.object_uid.clone() };
        self.pods.remove_gone(&run, row.attempt.pod_uid.as_deref());
    }
}

impl Context {
    /// Records that the API server refused a pod, and how often in a row for this template.
    fn record_refusal(&self, uid: String, status: &Status, revision: String) -> PodCreateError {
        let mut refusals = lock(&self.refusals);
        let before = refusals.get(&uid).filter(|it| it.revision == revision).map_or(0, |it| it.times);
        let refusal = PodCreateError {
            code: status.code,
            message: status.message.clone(),
            times: before + 1,
            at: Timestamp::now(),
            revision,
        };
        refusals.insert(uid, refusal.clone());
        refusal
    }
}
