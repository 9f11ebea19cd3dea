//! The controller of AgentDefinitions: has the API server try each template's pod, and says what came back.

use std::sync::Arc;
use std::time::Duration;

use dalsegno_core::{PodCreateError, worker};
use dalsegno_crds::{
    AgentDefinition, AgentDefinitionStatus, ConditionType, Reason, condition, find_condition, names,
};
use futures::{Stream, StreamExt};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::PostParams;
use kube::core::Status;
use kube::runtime::controller::{Action, Config, Controller};
use kube::runtime::reflector::Store as Cache;
use kube::runtime::watcher;
use kube::{Api, Resource as _, ResourceExt};

use crate::context::Context;
use crate::error::{Error, Result};
use crate::kept::Definition;
use crate::telemetry::chain;
use crate::unreadable;

/// The shortest and the longest pause between two tries: policies, quotas and the labels of a namespace change.
const PAUSE: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(300));

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
        .run(check, again, ctx)
        .for_each(|_| async {})
        .await;
}

fn again(definition: Arc<Definition>, error: &Error, _: Arc<Context>) -> Action {
    tracing::warn!(
        namespace = definition.meta().namespace,
        definition = definition.meta().name,
        error = chain(error),
        "a definition could not be checked; it is checked again"
    );
    Action::requeue(PAUSE.0)
}

/// Checks one definition.
pub(crate) async fn check(definition: Arc<Definition>, ctx: Arc<Context>) -> Result<Action> {
    let definition = match definition.read() {
        Ok(definition) => definition,
        Err(error) => return Ok(unreadable::tell(&ctx, definition.as_ref(), &error.to_string()).await),
    };
    ctx.unreadable.forget(&definition.uid().unwrap_or_default(), &ctx.metrics);
    let namespace = definition.namespace().ok_or(Error::Nameless("namespace"))?;
    let old = definition.status.clone().unwrap_or_default();
    let generation = definition.metadata.generation;
    let before = find_condition(&old.conditions, ConditionType::Ready);
    let stands = before.is_some() && old.observed_generation == generation;
    let is_accepted = stands && before.is_some_and(|it| it.status == "True");
    let (ready, reason, message) = match try_pod(&ctx, &definition, &namespace, is_accepted).await {
        Ok(answer) => answer,
        // Nothing was learned: what is known of this template stays.
        Err(error) if stands => return Err(error),
        Err(error) => (false, Reason::NotChecked, chain(&error)),
    };
    let now = Timestamp::from_second(Timestamp::now().as_second()).unwrap_or_default();
    let mut new = condition(ConditionType::Ready, ready, reason, Time(now));
    (new.message, new.observed_generation) = (message, generation);
    if let Some(before) = before.filter(|it| it.status == new.status) {
        new.last_transition_time = before.last_transition_time.clone();
    }
    let again = pause(new.last_transition_time.0, now);
    let status = AgentDefinitionStatus { conditions: vec![new], observed_generation: generation };
    if status != old {
        let api: Api<AgentDefinition> = Api::namespaced(ctx.client.clone(), &namespace);
        let mut changed = definition.clone();
        changed.status = Some(status);
        changed.metadata.managed_fields = None;
        match api.replace_status(&definition.name_any(), &PostParams::default(), &changed).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.is_not_found() => {}
            // Whatever else was changed, its status is not written yet.
            Err(kube::Error::Api(status)) if status.is_conflict() => {
                return Ok(Action::requeue(Duration::from_secs(1)));
            }
            Err(error) => return Err(Error::api("writing the definition's status")(error)),
        }
    }
    Ok(Action::requeue(again))
}

/// As long as the condition has been as it is: soon after a change, then more slowly.
fn pause(since: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(now.duration_since(since)).unwrap_or_default().clamp(PAUSE.0, PAUSE.1)
}

/// Creates the pod with `dryRun=All`: Ready's status, reason and message. `is_accepted`: this template was.
///
/// # Errors
///
/// The API server did not judge it, or, of one that it had accepted, only its namespace: a full quota says nothing of a
/// template. Of any other it is what stands in the way now.
async fn try_pod(
    ctx: &Context,
    definition: &AgentDefinition,
    namespace: &str,
    is_accepted: bool,
) -> Result<(bool, Reason, String)> {
    let pod = match worker::dry_run_pod(definition, &ctx.gateway_url) {
        Ok(pod) => pod,
        Err(error) => return Ok((false, Reason::TemplateInvalid, error.to_string())),
    };
    let params = PostParams { dry_run: true, field_manager: Some(names::FIELD_MANAGER.to_owned()) };
    match ctx.pods_in(namespace).create(&params, &pod).await {
        Ok(_) => Ok((true, Reason::Accepted, String::new())),
        Err(kube::Error::Api(status))
            if is_judgement(&status) && !(is_accepted && is_of_namespace(&status)) =>
        {
            let invalid = matches!(status.code, 400 | 422);
            let reason = if invalid { Reason::TemplateInvalid } else { Reason::NotChecked };
            Ok((false, reason, status.message.clone()))
        }
        Err(error) => Err(Error::api("trying the pod of a template")(error)),
    }
}

/// Whether a refusal is a judgement on the pod, as any answer of the 400s is; the rest are faults.
fn is_judgement(refusal: &Status) -> bool {
    (400..500).contains(&refusal.code) && refusal.code != 429
}

fn is_of_namespace(refusal: &Status) -> bool {
    PodCreateError::namespace_reason(refusal.code, &refusal.message).is_some()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a case that cannot go on has failed")]

    use std::sync::Mutex;

    use axum::http::Method;
    use serde_json::{Value, json};

    use super::*;
    use crate::world::{self, Asked};

    fn definition() -> Value {
        let containers = json!([{ "name": names::WORKER_CONTAINER, "image": "agent" }]);
        json!({
            "apiVersion": "dalsegno.dev/v1alpha1", "kind": "AgentDefinition",
            "metadata": { "name": "nightly", "namespace": "shop", "uid": "uid-1", "generation": 1 },
            "spec": { "template": { "spec": { "containers": containers } } },
        })
    }

    /// A refusal of each pod.
    fn refused(code: u16, message: &str) -> Vec<Value> {
        vec![
            json!({ "kind": "Status", "status": "Failure", "code": code, "message": message, "reason": "Refused",
                     "details": { "kind": "pods" } }),
        ]
    }

    /// Checks the definition before an API server that has these objects.
    async fn checked(definition: &Value, objects: Vec<Value>) -> (Result<Action>, Asked) {
        let store = Arc::new(dalsegno_store::sqlite::Sqlite::memory().await.unwrap());
        let (ctx, asked) = world::context(store, objects);
        (check(Arc::new(serde_json::from_value(definition.clone()).unwrap()), ctx).await, asked)
    }

    /// Bodies of the requests to this resource.
    fn sent(asked: &Asked, resource: &str) -> Vec<Value> {
        let asked = asked.lock().unwrap();
        asked.iter().filter(|(_, path, _)| path.ends_with(resource)).map(|(.., body)| body.clone()).collect()
    }

    /// Checks the definition, which takes what is written; answers its reason, and how often it was written.
    async fn judged(definition: &mut Value, objects: Vec<Value>) -> (String, usize) {
        let (action, asked) = checked(definition, objects).await;
        assert_eq!(action.unwrap(), Action::requeue(PAUSE.0));
        assert_eq!(sent(&asked, "/pods").len(), 1, "it was tried");
        let mut written = sent(&asked, "/nightly/status");
        let times = written.len();
        if let Some(last) = written.pop() {
            *definition = last;
        }
        (definition["status"]["conditions"][0]["reason"].as_str().unwrap().to_owned(), times)
    }

    #[tokio::test]
    async fn a_template_is_judged_again_and_again_and_written_only_where_the_judgement_is_another() {
        let mut definition = definition();
        let mut judge = async |objects| judged(&mut definition, objects).await;
        let expect = |reason: Reason, times| (reason.to_string(), times);
        for times in [1, 0] {
            let policy = refused(422, "a policy refuses it");
            assert_eq!(judge(policy).await, expect(Reason::TemplateInvalid, times));
        }
        for times in [1, 0] {
            assert_eq!(judge(vec![]).await, expect(Reason::Accepted, times));
        }
        for times in [1, 0] {
            assert_eq!(judge(refused(403, "violates PodSecurity")).await, expect(Reason::NotChecked, times));
        }
    }

    #[tokio::test]
    async fn an_api_server_that_does_not_judge_changes_no_judgement_of_the_same_template() {
        let mut accepted = definition();
        judged(&mut accepted, vec![]).await;
        for code in [429, 500] {
            let (action, asked) = checked(&accepted, refused(code, "later")).await;
            assert!(action.is_err() && sent(&asked, "/status").is_empty(), "{code}");
        }
        accepted["metadata"]["generation"] = json!(2);
        assert_eq!(judged(&mut accepted, refused(500, "later")).await, ("NotChecked".to_owned(), 1));
    }

    #[tokio::test]
    async fn a_status_that_meets_another_change_is_written_again_soon() {
        let store = Arc::new(dalsegno_store::sqlite::Sqlite::memory().await.unwrap());
        for (code, pause) in [(409, Duration::from_secs(1)), (404, PAUSE.0)] {
            let fault = Arc::new(Mutex::new(Some((Method::PUT, "/status", Some(code)))));
            let (ctx, _) = world::context_with(store.clone(), vec![], fault);
            let definition = serde_json::from_value(definition()).unwrap();
            assert_eq!(check(Arc::new(definition), ctx).await.unwrap(), Action::requeue(pause), "{code}");
        }
    }

    #[tokio::test]
    async fn a_namespace_without_room_or_on_its_way_out_takes_nothing_from_a_template_that_was_accepted() {
        for why in ["exceeded quota: pods", "unable to create new content because it is being terminated"] {
            let mut accepted = definition();
            judged(&mut accepted, vec![]).await;
            let (action, asked) = checked(&accepted, refused(403, why)).await;
            assert!(action.is_err() && sent(&asked, "/status").is_empty(), "{why}");
            accepted["metadata"]["generation"] = json!(2);
            assert_eq!(judged(&mut accepted, refused(403, why)).await, ("NotChecked".to_owned(), 1));
            assert_eq!(accepted["status"]["conditions"][0]["message"], why);

            let mut refused_before = definition();
            judged(&mut refused_before, refused(403, "a webhook is away")).await;
            assert_eq!(judged(&mut refused_before, refused(403, why)).await, ("NotChecked".to_owned(), 1));
            assert_eq!(
                refused_before["status"]["conditions"][0]["message"], why,
                "what stands in the way now"
            );
        }
    }

    #[tokio::test]
    async fn the_pod_that_is_tried_has_what_is_added_to_the_template_and_the_same_name_each_time() {
        let mut definition = definition();
        definition["spec"]["template"]["spec"]["volumes"] = json!([{ "name": "dalsegno", "emptyDir": {} }]);
        let mut tried = Vec::new();
        for _ in 0..2 {
            tried.extend(sent(&checked(&definition, vec![]).await.1, "/pods"));
        }
        assert_eq!(tried[0], tried[1], "a refusal reads as the one before");
        assert_eq!(tried[0]["metadata"]["name"], "dry-run-uid-1-1");
        let volumes = &tried[0]["spec"]["volumes"];
        assert_eq!(
            [&volumes[0]["name"], &volumes[1]["name"]],
            ["dalsegno"; 2],
            "it is for the API server to refuse"
        );
    }

    #[test]
    fn a_definition_is_tried_after_a_minute_and_more_slowly_the_longer_it_has_been_as_it_is() {
        let now = Timestamp::now();
        let after = |seconds: i64| pause(now - jiff::SignedDuration::from_secs(seconds), now).as_secs();
        assert_eq!([-5, 0, 59, 60, 200, 300, 86_400].map(after), [60, 60, 60, 60, 200, 300, 300]);
    }
}
