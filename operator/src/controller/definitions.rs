//! The controller of AgentDefinitions: tries each template's pod at the API server by a dry run, and writes the result into
//! the status.

use std::sync::Arc;
use std::time::{Duration, Instant};

use dalsegno_core::{PodCreateError, worker};
use dalsegno_crds::{
    AgentDefinition, AgentDefinitionStatus, ConditionType, Reason, condition, find_condition,
};
use futures::{Stream, StreamExt};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::api::PostParams;
use kube::core::Status;
use kube::runtime::controller::{Action, Config, Controller};
use kube::runtime::reflector::Store as Cache;
use kube::runtime::watcher;
use kube::{Api, Resource as _, ResourceExt};

use super::catch_panic::catch_panic;
use super::context::Context;
use super::create_pod::create_pod;
use super::error::{Error, Result};
use super::report_invalid::report;
use crate::cache::raw_object::RawDefinition;
use crate::log::error_chain;

/// Shortest interval between two checks of a definition.
const MIN_INTERVAL: Duration = Duration::from_secs(60);
/// Longest interval. Checks repeat because policies, quotas and the labels of a namespace change.
const MAX_INTERVAL: Duration = Duration::from_secs(300);
/// Delay after a conflict of the status write.
const CONFLICT_RETRY: Duration = Duration::from_secs(1);

/// Status, reason and message of the condition Ready.
struct Verdict {
    ready: bool,
    reason: Reason,
    message: String,
}

/// Checks definitions until `stop` is ready.
pub async fn run(
    ctx: Arc<Context>,
    definitions: impl Stream<Item = watcher::Result<RawDefinition>> + Send + 'static,
    cache: Cache<RawDefinition>,
    stop: impl Future<Output = ()> + Send + Sync + 'static,
) {
    Controller::for_stream(definitions, cache)
        .with_config(Config::default().concurrency(4))
        .graceful_shutdown_on(stop)
        .run(check_caught, error_policy, ctx)
        .for_each(|_| async {})
        .await;
}

fn error_policy(definition: Arc<RawDefinition>, error: &Error, _: Arc<Context>) -> Action {
    tracing::warn!(
        namespace = definition.meta().namespace,
        definition = definition.meta().name,
        error = error_chain(error),
        "a definition could not be checked; the check will be retried"
    );
    Action::requeue(MIN_INTERVAL)
}

/// Checks one definition. A panic ends only this check: the controller would pass it on, and end with it.
async fn check_caught(definition: Arc<RawDefinition>, ctx: Arc<Context>) -> Result<Action> {
    if let Some(pause) = ctx.panics.pause(definition.as_ref(), Instant::now()) {
        return Ok(Action::requeue(pause));
    }
    match catch_panic(&ctx, definition.as_ref(), check(definition.clone(), ctx.clone())).await {
        Ok(checked) => checked,
        Err(pause) => Ok(Action::requeue(pause)),
    }
}

/// Checks one definition: observes its pod by a dry run, and writes the status if it differs.
pub(super) async fn check(definition: Arc<RawDefinition>, ctx: Arc<Context>) -> Result<Action> {
    let definition = match definition.parse() {
        Ok(definition) => definition,
        Err(error) => return Ok(report(&ctx, definition.as_ref(), &error.to_string()).await),
    };
    ctx.invalid_objects.remove(&definition.uid().unwrap_or_default(), &ctx.metrics);
    let namespace = definition.namespace().ok_or(Error::MissingMetadata("namespace"))?;
    let old = definition.status.clone().unwrap_or_default();
    let generation = definition.metadata.generation;
    let before = find_condition(&old.conditions, ConditionType::Ready);
    let is_current = before.is_some() && old.observed_generation == generation;
    let was_accepted = is_current && before.is_some_and(|it| it.status == "True");
    let verdict = match dry_run(&ctx, &definition, &namespace, was_accepted).await {
        Ok(verdict) => verdict,
        // No verdict: the one about this template stays.
        Err(error) if is_current => return Err(error),
        Err(error) => Verdict { ready: false, reason: Reason::NotChecked, message: error_chain(&error) },
    };
    let now = Timestamp::from_second(Timestamp::now().as_second()).unwrap_or_default();
    let ready = ready_condition(verdict, before, generation, now);
    let next = interval(ready.last_transition_time.0, now);
    let status = AgentDefinitionStatus { conditions: vec![ready], observed_generation: generation };
    if status != old {
        match write_status(&ctx, &definition, &namespace, status).await {
            Ok(()) => {}
            Err(Error::Conflict) => return Ok(Action::requeue(CONFLICT_RETRY)),
            Err(error) => return Err(error),
        }
    }
    Ok(Action::requeue(next))
}

/// The condition Ready. Its transition time changes only with its status.
fn ready_condition(
    verdict: Verdict,
    before: Option<&Condition>,
    generation: Option<i64>,
    now: Timestamp,
) -> Condition {
    let Verdict { ready, reason, message } = verdict;
    let mut new = condition(ConditionType::Ready, ready, reason, Time(now));
    (new.message, new.observed_generation) = (message, generation);
    if let Some(before) = before.filter(|it| it.status == new.status) {
        new.last_transition_time = before.last_transition_time.clone();
    }
    new
}

/// Writes the status, guarded by the resource version. Succeeds if the definition is gone.
async fn write_status(
    ctx: &Context,
    definition: &AgentDefinition,
    namespace: &str,
    status: AgentDefinitionStatus,
) -> Result<()> {
    let api: Api<AgentDefinition> = Api::namespaced(ctx.client.clone(), namespace);
    let mut changed = definition.clone();
    changed.status = Some(status);
    changed.metadata.managed_fields = None;
    match api.replace_status(&definition.name_any(), &PostParams::default(), &changed).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
        Err(kube::Error::Api(status)) if status.is_conflict() => Err(Error::Conflict),
        Err(error) => Err(Error::api("writing the definition's status")(error)),
    }
}

/// Time until the next check: as long as the condition has not changed, within the limits. So it is checked soon after a
/// change, and then less and less often.
fn interval(since: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(now.duration_since(since)).unwrap_or_default().clamp(MIN_INTERVAL, MAX_INTERVAL)
}

/// Creates the pod with `dryRun=All`. `was_accepted`: the API server has accepted this template before.
///
/// # Errors
///
/// The API server gave no verdict on the template. For a template that it has accepted before, a refusal because of the
/// namespace alone, such as an exhausted quota, is no verdict either; for any other it is the reason that there is no pod.
async fn dry_run(
    ctx: &Context,
    definition: &AgentDefinition,
    namespace: &str,
    was_accepted: bool,
) -> Result<Verdict> {
    let refused = |reason, message| Ok(Verdict { ready: false, reason, message });
    let pod = match worker::dry_run_pod(definition, &ctx.gateway.address()) {
        Ok(pod) => pod,
        Err(error) => return refused(Reason::TemplateInvalid, error.to_string()),
    };
    match create_pod(&ctx.client, namespace, &pod, true).await {
        Ok(_) => Ok(Verdict { ready: true, reason: Reason::Accepted, message: String::new() }),
        Err(kube::Error::Api(status))
            if is_verdict(&status) && !(was_accepted && is_about_namespace(&status)) =>
        {
            let is_invalid = matches!(status.code, 400 | 422);
            let reason = if is_invalid { Reason::TemplateInvalid } else { Reason::NotChecked };
            refused(reason, status.message.clone())
        }
        Err(error) => Err(Error::api("trying the pod of a template")(error)),
    }
}

/// Whether a refusal is a verdict on the pod: any 4xx but 429. The others are faults.
fn is_verdict(refusal: &Status) -> bool {
    (400..500).contains(&refusal.code) && refusal.code != 429
}

fn is_about_namespace(refusal: &Status) -> bool {
    PodCreateError::namespace_reason(refusal.code, &refusal.message).is_some()
}

#[cfg(test)]
mod tests;
