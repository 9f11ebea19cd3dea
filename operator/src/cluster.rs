//! The ground of a cluster: pods, statuses and events at its API server.

use std::sync::Arc;

use dalsegno_core::{EffectResult, EventLevel, EventSpec, Observed, ObservedHead, PodCreateError};
use dalsegno_crds::{AgentRun, AgentRunStatus, names};
use dalsegno_gateway::Room;
use dalsegno_store::{RunRecord, Store};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::api::{DeleteParams, PostParams, Preconditions};
use kube::runtime::events::{Event, EventType};
use kube::{Api, Resource, ResourceExt};

use crate::context::Context;
use crate::error::{Error, Result};
use crate::ground::Ground;
use crate::observe::{is_not_found, observe};
use crate::pods::Owner;
use crate::sync::lock;
use crate::telemetry::chain;

impl Ground for Context {
    fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    fn resumes(&self) -> &Room {
        &self.resumes
    }

    async fn observe(&self, run: &AgentRun) -> Result<Observed> {
        observe(self, run).await
    }

    async fn tenant(&self, name: &str) -> Result<String> {
        let api: Api<Namespace> = Api::all(self.client.clone());
        let namespace = api.get(name).await.map_err(Error::api("looking at the namespace"))?;
        namespace.metadata.uid.ok_or(Error::Nameless("namespace UID"))
    }

    async fn create_worker(&self, run: &AgentRun, pod: Pod, revision: String) -> Result<EffectResult> {
        let uid = run.uid().unwrap_or_default();
        let api = self.pods_in(&run.namespace().unwrap_or_default());
        match api
            .create(
                &PostParams { field_manager: Some(names::FIELD_MANAGER.to_owned()), ..PostParams::default() },
                &pod,
            )
            .await
        {
            Ok(pod) => {
                lock(&self.refusals).remove(&uid);
                lock(&self.heads).remove(&uid);
                Ok(EffectResult::Pod(Box::new(pod)))
            }
            Err(kube::Error::Api(status)) if status.is_already_exists() => {
                let found = api
                    .get_opt(&pod.name_any())
                    .await
                    .map_err(Error::api("looking at the pod that is there"))?;
                let Some(found) = found else {
                    return Err(Error::Stale);
                };
                let ours = found
                    .owner_references()
                    .iter()
                    .any(|owner| owner.controller == Some(true) && owner.uid == uid);
                Ok(if ours { EffectResult::Pod(Box::new(found)) } else { EffectResult::NameTaken })
            }
            // Whether it judges this pod or fails at it, as when a webhook is broken: a person shall read why there is none.
            Err(kube::Error::Api(status)) => {
                let mut refusals = lock(&self.refusals);
                let times =
                    refusals.get(&uid).filter(|it| it.revision == revision).map_or(0, |it| it.times) + 1;
                let refusal = PodCreateError {
                    code: status.code,
                    message: status.message.clone(),
                    times,
                    at: Timestamp::now(),
                    revision,
                };
                refusals.insert(uid, refusal.clone());
                Ok(EffectResult::PodNotCreated(refusal))
            }
            Err(error) => Err(Error::api("creating the worker's pod")(error)),
        }
    }

    async fn stop_worker(&self, namespace: &str, name: &str, uid: String) -> Result<()> {
        let params = DeleteParams {
            preconditions: Some(Preconditions { uid: Some(uid), resource_version: None }),
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
            Err(kube::Error::Api(status)) if status.is_conflict() => Err(Error::Stale),
            Err(error) => Err(Error::api("deleting an AgentRun whose time is over")(error)),
        }
    }

    async fn write_status(&self, run: &AgentRun, status: AgentRunStatus) -> Result<()> {
        self.before("status");
        let mut new = run.clone();
        new.status = Some(status);
        new.metadata.managed_fields = None;
        let api = self.runs(&run.namespace().unwrap_or_default());
        match api.replace_status(&run.name_any(), &PostParams::default(), &new).await {
            Err(kube::Error::Api(status)) if status.is_conflict() => return Err(Error::Stale),
            Err(error) if !is_not_found(&error) => return Err(Error::api("writing the status")(error)),
            Ok(_) | Err(_) => {}
        }
        self.after("status");
        Ok(())
    }

    async fn tell(&self, run: &AgentRun, notices: &mut Vec<EventSpec>) {
        if notices.is_empty() {
            return;
        }
        let (recorder, reference) = (self.recorder(), run.object_ref(&()));
        let mut failed = false;
        for notice in notices.drain(..) {
            // Not what it says: that may repeat a worker's last words, which are for those who may read its events.
            tracing::info!(reason = notice.reason, "telling");
            // Where one is not taken the next is not either, and each would be waited for.
            if failed {
                continue;
            }
            let event = Event {
                type_: match notice.level {
                    EventLevel::Normal => EventType::Normal,
                    EventLevel::Warning => EventType::Warning,
                },
                reason: notice.reason.clone(),
                note: Some(truncated(notice.note)),
                action: notice.action,
                secondary: None,
            };
            if let Err(error) = recorder.publish(&event, &reference).await {
                failed = true;
                tracing::warn!(%error, "an event could not be written, and none after it is");
            }
        }
    }

    fn remember(&self, run: &AgentRun, head: &ObservedHead) {
        lock(&self.heads).insert(run.uid().unwrap_or_default(), head.clone());
    }

    fn before(&self, effect: &'static str) {
        self.crash.pass("before", effect);
    }

    fn after(&self, effect: &'static str) {
        self.crash.pass("after", effect);
        self.metrics.effect(effect);
    }

    fn ended(&self, cause: &str) {
        self.metrics.ended(cause);
    }

    fn head_is_damaged(&self) {
        self.metrics.damage("head");
    }

    fn store_away(&self, error: &Error) {
        self.metrics.looked_up("unknown");
        tracing::warn!(error = chain(error), "the store did not carry out an effect");
    }

    fn at_rest(&self, row: &RunRecord) {
        // What was seen of a pod is evidence until its end is recorded.
        let run = Owner { namespace: row.namespace.clone(), uid: row.object_uid.clone() };
        self.pods.forget_gone(&run, row.attempt.pod_uid.as_deref());
    }
}

/// The API server takes notes of up to 1,024 bytes.
pub fn truncated(mut note: String) -> String {
    if note.len() > 1_000 {
        let end = (0..=1_000).rev().find(|at| note.is_char_boundary(*at)).unwrap_or_default();
        note.truncate(end);
        note.push('…');
    }
    note
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a case that cannot go on has failed")]

    use std::convert::Infallible;
    use std::future::pending;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use axum::http::{Request, Response};
    use kube::Client;
    use kube::client::Body;
    use serde_json::json;

    use super::*;
    use crate::context::EVENT_PATIENCE;
    use crate::world;

    #[tokio::test]
    async fn events_of_which_the_api_server_says_nothing_are_waited_for_once_and_not_for_long() {
        let store = Arc::new(dalsegno_store::sqlite::Sqlite::memory().await.unwrap());
        let (mut ctx, _) = world::context(store, vec![]);
        let asked = Arc::new(AtomicUsize::new(0));
        let count = asked.clone();
        let silent = tower::service_fn(move |_: Request<Body>| {
            count.fetch_add(1, Ordering::Relaxed);
            pending::<std::result::Result<Response<Body>, Infallible>>()
        });
        Arc::get_mut(&mut ctx).unwrap().client = Client::new(silent, "shop");
        let run = json!({ "apiVersion": "dalsegno.dev/v1alpha1", "kind": "AgentRun", "spec": {},
                          "metadata": { "name": "nightly", "namespace": "shop", "uid": "uid-1" } });
        let run = serde_json::from_value(run).unwrap();
        let notice = |reason: &str| EventSpec {
            level: EventLevel::Normal,
            reason: reason.to_owned(),
            note: String::new(),
            action: "Watch".to_owned(),
        };
        let mut notices = ["Starting", "Running", "Done"].map(notice).to_vec();
        let telling = ctx.tell(&run, &mut notices);
        tokio::time::timeout(EVENT_PATIENCE * 2, telling).await.expect("it comes to an end");
        assert_eq!((asked.load(Ordering::Relaxed), notices.len()), (1, 0));
    }
}
