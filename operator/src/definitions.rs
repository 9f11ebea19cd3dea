//! The controller of AgentDefinitions: has the API server try each template's pod, and says what came back.

use std::sync::Arc;
use std::time::Duration;

use dalsegno_crds::{
    AgentDefinition, AgentDefinitionStatus, ConditionType, Reason, condition, find_condition, names,
};
use futures::{Stream, StreamExt};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{ObjectMeta, PostParams};
use kube::runtime::controller::{Action, Config, Controller};
use kube::runtime::reflector::Store as Cache;
use kube::runtime::watcher;
use kube::{Api, ResourceExt};

use crate::context::Context;
use crate::error::{Error, Result};
use crate::kept::Definition;
use crate::unreadable;

/// A quota or a policy may let the pod pass later.
const TRY_AGAIN: Duration = Duration::from_secs(60);

/// Checks definitions until `stop` is ready.
pub async fn run(
    ctx: Arc<Context>,
    definitions: impl Stream<Item = watcher::Result<Definition>> + Send + 'static,
    cache: Cache<Definition>,
    stop: impl Future<Output = ()> + Send + Sync + 'static,
) {
    Controller::for_stream(definitions, cache)
        .with_config(Config::default().concurrency(4))
        .graceful_shutdown_on(stop)
        .run(check, |_, _, _| Action::requeue(TRY_AGAIN), ctx)
        .for_each(|_| async {})
        .await;
}

/// Checks one definition.
pub(crate) async fn check(definition: Arc<Definition>, ctx: Arc<Context>) -> Result<Action> {
    let definition = match definition.read() {
        Ok(definition) => definition,
        Err(error) => {
            unreadable::tell(&ctx, definition.as_ref(), &error.to_string()).await;
            return Ok(Action::await_change());
        }
    };
    let namespace = definition.namespace().ok_or(Error::Nameless("namespace"))?;
    let old = definition.status.clone().unwrap_or_default();
    if old.observed_generation == definition.metadata.generation
        && find_condition(&old.conditions, ConditionType::Ready)
            .is_some_and(|it| it.reason != Reason::NotChecked.as_str())
    {
        return Ok(Action::await_change());
    }
    let (ready, reason, message) = try_pod(&ctx, &definition, &namespace).await;
    let now = Timestamp::from_second(Timestamp::now().as_second()).unwrap_or_default();
    let mut new =
        condition(ConditionType::Ready, ready, reason, message, definition.metadata.generation, Time(now));
    if let Some(before) =
        find_condition(&old.conditions, ConditionType::Ready).filter(|it| it.status == new.status)
    {
        new.last_transition_time = before.last_transition_time.clone();
    }
    let status =
        AgentDefinitionStatus { conditions: vec![new], observed_generation: definition.metadata.generation };
    if status != old {
        let api: Api<AgentDefinition> = Api::namespaced(ctx.client.clone(), &namespace);
        let mut changed = definition.clone();
        changed.status = Some(status);
        changed.metadata.managed_fields = None;
        match api.replace_status(&definition.name_any(), &PostParams::default(), &changed).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.is_conflict() || status.is_not_found() => {}
            Err(error) => return Err(Error::api("writing the definition's status")(error)),
        }
    }
    Ok(if reason == Reason::NotChecked { Action::requeue(TRY_AGAIN) } else { Action::await_change() })
}

/// Creates the pod with `dryRun=All`.
async fn try_pod(ctx: &Context, definition: &AgentDefinition, namespace: &str) -> (bool, Reason, String) {
    let template = match definition.spec.agent.template.pod_template() {
        Ok(template) => template,
        Err(error) => return (false, Reason::TemplateInvalid, error.to_string()),
    };
    let meta = template.metadata.unwrap_or_default();
    let pod = Pod {
        metadata: ObjectMeta {
            // A generated name would be another in each refusal that names the pod, and so the status.
            name: Some(format!("dry-run-{}", definition.uid().unwrap_or_default())),
            labels: meta.labels,
            annotations: meta.annotations,
            ..ObjectMeta::default()
        },
        spec: Some(PodSpec { restart_policy: Some("Never".to_owned()), ..template.spec.unwrap_or_default() }),
        status: None,
    };
    let params = PostParams { dry_run: true, field_manager: Some(names::FIELD_MANAGER.to_owned()) };
    match ctx.pods_in(namespace).create(&params, &pod).await {
        Ok(_) => (true, Reason::Accepted, String::new()),
        Err(kube::Error::Api(status)) if matches!(status.code, 400 | 422) => {
            (false, Reason::TemplateInvalid, status.message.clone())
        }
        Err(error) => (false, Reason::NotChecked, error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a case that cannot go on has failed")]

    use serde_json::{Value, json};

    use super::*;
    use crate::world;

    #[tokio::test]
    async fn each_try_names_the_same_pod_so_that_a_refusal_reads_as_the_one_before() {
        let store = Arc::new(dalsegno_store::sqlite::Sqlite::memory().await.unwrap());
        let (ctx, asked) = world::context(store, vec![]);
        let containers = json!([{ "name": names::WORKER_CONTAINER, "image": "agent" }]);
        let definition = json!({
            "apiVersion": "dalsegno.dev/v1alpha1", "kind": "AgentDefinition",
            "metadata": { "name": "nightly", "namespace": "shop", "uid": "uid-1" },
            "spec": { "template": { "spec": { "containers": containers } } },
        });
        let definition: Arc<Definition> = Arc::new(serde_json::from_value(definition).unwrap());
        for _ in 0..2 {
            check(definition.clone(), ctx.clone()).await.unwrap();
        }
        let asked = asked.lock().unwrap();
        let pods = asked.iter().filter(|(_, path, _)| path.ends_with("/pods"));
        let names: Vec<_> =
            pods.map(|(.., pod)| (&pod["metadata"]["name"], &pod["metadata"]["generateName"])).collect();
        assert_eq!(names, [(&json!("dry-run-uid-1"), &Value::Null); 2]);
    }
}
