//! The worker runtime of a cluster: pods at the Kubernetes API server.

use std::sync::Arc;
use std::time::Duration;

use dalsegno_core::approvals::ApprovalEffect;
use dalsegno_core::{EffectResult, EventSpec, NameHolder, Observed, ObservedHead, PodCreateError, pod};
use dalsegno_crds::{AgentRun, AgentRunStatus, Reason, names};
use dalsegno_gateway::StateReadBudget;
use dalsegno_model::{Ending, RunRecord, Store};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::core::Status;
use kube::{Api, Resource as _, ResourceExt};
use serde::Deserialize as _;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::approvals;
use super::context::Context;
use super::create_pod::create_pod;
use super::error::{Error, Result};
use super::observe::observe;
use super::publish;
use super::worker_runtime::{PodRef, WorkerRuntime};
use crate::cache::pods::{Owner, RunKey};
use crate::log::error_chain;
use crate::mutex::lock;

/// Timeout of creating a pod. An admission webhook that takes longer counts as a refusal: it must not keep the slots of
/// other runs. The API server itself waits 10 s for a webhook unless the webhook says otherwise.
const POD_TIMEOUT: Duration = Duration::from_secs(10);
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

    async fn create_worker(&self, run: &AgentRun, pod: Value, revision: String) -> Result<EffectResult> {
        // The pod may have been decided on before the CA was known.
        let needs_ca = ObjectMeta::deserialize(&pod["metadata"]).is_ok_and(|it| !pod::is_external(&it));
        if needs_ca
            && self.gateway.has_tls()
            && pod["metadata"]["annotations"][names::ANNOTATION_CA].is_null()
        {
            return Err(Error::NoCa);
        }
        let uid = run.uid().unwrap_or_default();
        let key = RunKey { namespace: run.namespace().unwrap_or_default(), name: run.name_any() };
        if !self.quotas.may_try(&key.namespace, Timestamp::now()) {
            return self.quota_exceeded(&key);
        }
        let creating = create_pod(&self.client, &key.namespace, &pod, false);
        let Ok(created) = timeout(POD_TIMEOUT, creating).await else {
            let message = format!("no answer within {POD_TIMEOUT:?}; an admission webhook may be slow");
            let status = Status { code: 504, message, ..Status::default() };
            return Ok(EffectResult::PodNotCreated(self.record_refusal(uid, &status, revision)));
        };
        match created {
            Ok(pod) => {
                lock(&self.refusals).remove(&uid);
                self.quotas.has_room(&key.namespace).iter().for_each(|run| self.enqueue(run));
                lock(&self.heads).remove(&uid);
                Ok(EffectResult::Pod(Box::new(pod)))
            }
            Err(kube::Error::Api(status)) if status.is_already_exists() => {
                let name = pod["metadata"]["name"].as_str().unwrap_or_default();
                let found = self.pods_in(&key.namespace).get_opt(name).await;
                let found = found.map_err(Error::api("reading the existing pod"))?;
                let Some(found) = found else {
                    return Err(Error::Conflict);
                };
                let owner = found.owner_references().iter().find(|owner| owner.controller == Some(true));
                let is_controlled = owner.is_some_and(|owner| owner.uid == uid);
                // The pod to create has no nonce if the attempt has none.
                let nonce = pod["metadata"]["annotations"][names::ANNOTATION_NONCE].as_str();
                let has_nonce = nonce.is_none() || pod::nonce(&found) == nonce;
                // Of all AgentRuns of this name only one exists, and it is not the pod's.
                let is_namesake = |owner: &OwnerReference| {
                    owner.kind == AgentRun::kind(&()) && owner.name == key.name && owner.uid != uid
                };
                Ok(if is_controlled && has_nonce {
                    EffectResult::Pod(Box::new(found))
                } else if owner.is_some_and(is_namesake) {
                    EffectResult::NameTaken(NameHolder::DeletedRun)
                } else {
                    EffectResult::NameTaken(NameHolder::AnotherOwner)
                })
            }
            // A quota concerns all runs of the namespace, and the pause is the namespace's.
            Err(kube::Error::Api(status))
                if PodCreateError::namespace_reason(status.code, &status.message)
                    == Some(Reason::QuotaExceeded) =>
            {
                let error = PodCreateError::first(status.code, &status.message, revision, Timestamp::now());
                self.quotas.refused(&key, &error);
                self.quota_exceeded(&key)
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

    async fn release_pod(&self, pod: PodRef<'_>) -> Result<()> {
        let PodRef { namespace, name, uid } = pod;
        let patch = json!({ "metadata": { "uid": uid, "$deleteFromPrimitiveList/finalizers": [names::POD_FINALIZER] } });
        let params =
            PatchParams { field_manager: Some(names::FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        match self.pods_in(namespace).patch_metadata(name, &params, &Patch::Strategic(patch)).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => Ok(()),
            Err(error) => Err(Error::api("removing the finalizer of a pod")(error)),
        }
    }

    async fn approval(&self, run: &AgentRun, effect: ApprovalEffect) -> Result<Option<EffectResult>> {
        approvals::perform(self, run, effect).await
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
        if self.write_conflicts.must_wait(run) {
            return Err(Error::Conflict);
        }
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

    fn attempt_ended(&self, row: &RunRecord, ending: &Ending) {
        self.metrics.count_attempt_ended(ending.cause.as_str());
        let mut attempts = std::iter::once(&row.attempt).chain(&row.past);
        let pod = attempts.find(|it| it.number == ending.attempt).and_then(|it| it.pod_uid.as_deref());
        let owner = Owner { namespace: row.namespace.clone(), uid: row.object_uid.clone() };
        if let Some(seen) = pod.and_then(|uid| self.pods.end_seen(&owner, uid)) {
            self.metrics.runs.observe_fence(seen.elapsed());
        }
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
        self.metrics.runs.observe_recovery(row);
    }
}

impl Context {
    /// Another run of the namespace tries, or the quota has just refused a pod.
    fn quota_exceeded(&self, run: &RunKey) -> Result<EffectResult> {
        let quota = self.quotas.wait(run, Timestamp::now()).ok_or(Error::Conflict)?;
        Ok(EffectResult::QuotaExceeded(quota))
    }

    /// Records that the API server refused a pod, and how often in a row for this template.
    fn record_refusal(&self, uid: String, status: &Status, revision: String) -> PodCreateError {
        let refusal = PodCreateError::first(status.code, &status.message, revision, Timestamp::now());
        let mut refusals = lock(&self.refusals);
        let refusal = refusal.after(refusals.get(&uid));
        refusals.insert(uid, refusal.clone());
        refusal
    }
}

#[cfg(test)]
mod tests;
