//! Act: does what was decided, one effect after the other. Writes, and never decides.

use dalsegno_core::{Decision, Effect, Fact, Level, Notice, Refusal};
use dalsegno_crds::{AgentRun, AgentRunStatus, names};
use dalsegno_store::{Created, NewRun, Recorded};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::api::{DeleteParams, PostParams, Preconditions};
use kube::runtime::controller::Action;
use kube::runtime::events::{Event, EventType};
use kube::{Api, Resource, ResourceExt};
use uuid::Uuid;

use crate::context::Context;
use crate::error::{Error, Result};
use crate::observe::is_not_found;
use crate::sync::lock;

/// What came of acting.
pub enum Acted {
    /// Something was learned: decide again on it.
    Learned(Vec<Fact>),
    /// Everything is as it shall be; look again then.
    Done(Action),
}

/// Does the effects. If one of them taught something, that is the answer; else the status is written, if it differs,
/// and then the notices, of this decision and of those before it in `told`.
pub async fn act(ctx: &Context, run: &AgentRun, decision: Decision, told: &mut Vec<Notice>) -> Result<Acted> {
    let mut facts = Vec::new();
    for effect in decision.effects {
        let name = effect.name();
        ctx.crash.pass("before", name);
        facts.extend(perform(ctx, run, effect).await?);
        ctx.crash.pass("after", name);
        ctx.metrics.effect(name);
    }
    told.extend(decision.notices);
    if !facts.is_empty() {
        return Ok(Acted::Learned(facts));
    }
    if run.status.as_ref() != Some(&decision.status) {
        ctx.crash.pass("before", "status");
        write_status(ctx, run, decision.status).await?;
        ctx.crash.pass("after", "status");
        ctx.metrics.effect("status");
    }
    tell(ctx, run, told).await;
    Ok(Acted::Done(decision.requeue.map_or_else(Action::await_change, Action::requeue)))
}

async fn perform(ctx: &Context, run: &AgentRun, effect: Effect) -> Result<Option<Fact>> {
    let store = &ctx.store;
    let row = |row| Ok(Some(Fact::Row(row)));
    match effect {
        Effect::CreateRun { reset_generation, deadlines, on_prior } => {
            let namespace = run.namespace().ok_or(Error::Nameless("namespace"))?;
            let new = NewRun {
                id: Uuid::now_v7(),
                tenant: namespace_uid(ctx, &namespace).await?,
                namespace,
                name: run.name_any(),
                object_uid: run.uid().ok_or(Error::Nameless("UID"))?,
                reset_generation,
                deadlines,
                on_prior,
            };
            match store.create_run(&new).await.map_err(Error::store("taking the run up"))? {
                Created::Run(created) => row(created),
                Created::Prior(prior) => Ok(Some(Fact::Prior(prior))),
            }
        }
        Effect::EndAttempt { run: id, ending, then } => {
            tracing::info!(attempt = ending.attempt, cause = ending.cause, class = ?ending.class, "ending the attempt");
            ctx.metrics.ended(&ending.cause);
            row(Box::new(
                store.end_attempt(id, &ending, &then).await.map_err(Error::store("ending the attempt"))?,
            ))
        }
        Effect::ReadTemplate(revision) => {
            let document = template(ctx, &revision).await?;
            Ok(Some(Fact::Template(revision, document)))
        }
        Effect::CreateWorker { pod, revision, document } => {
            create_worker(ctx, run, *pod, revision, document).await
        }
        Effect::RecordPod { run: id, attempt, pod } => {
            recorded(store.record_pod(id, attempt, &pod).await, "recording the pod")
        }
        Effect::RecordScheduled { run: id, attempt, node } => {
            recorded(store.record_scheduled(id, attempt, &node).await, "recording the node")
        }
        Effect::RecordIdentity { run: id, attempt, identity } => {
            recorded(store.record_identity(id, attempt, &identity).await, "recording the image")
        }
        Effect::RequestCancel(id) => {
            row(Box::new(store.request_cancel(id).await.map_err(Error::store("requesting the cancel"))?))
        }
        Effect::ResetBudget { run: id, observed, to } => row(Box::new(
            store.reset_budget(id, observed, to).await.map_err(Error::store("granting a budget"))?,
        )),
        Effect::SetDeadlines(id, deadlines) => row(Box::new(
            store.set_deadlines(id, &deadlines).await.map_err(Error::store("setting the deadlines"))?,
        )),
        Effect::StopWorker { name, uid } => {
            stop(ctx, &run.namespace().unwrap_or_default(), &name, uid).await?;
            Ok(None)
        }
        Effect::MarkDeleted => {
            let uid = run.uid().ok_or(Error::Nameless("UID"))?;
            store.mark_deleted(&uid).await.map_err(Error::store("closing the row"))?;
            Ok(None)
        }
    }
}

fn recorded(answer: dalsegno_store::Result<Recorded>, doing: &'static str) -> Result<Option<Fact>> {
    let (Recorded::Done(row) | Recorded::Refused(row)) = answer.map_err(Error::store(doing))?;
    Ok(Some(Fact::Row(row)))
}

/// A stored template; that there is none is believed only of an answer.
async fn template(ctx: &Context, revision: &str) -> Result<Option<String>> {
    if let Some(known) = lock(&ctx.revisions).get(revision) {
        return Ok(Some(known.clone()));
    }
    let document = ctx.store.get_revision(revision).await.map_err(Error::store("reading a template"))?;
    if let Some(document) = &document {
        lock(&ctx.revisions).insert(revision.to_owned(), document.clone());
    }
    Ok(document)
}

/// Keeps the template, then creates the pod. A pod of ours that is there already is the one.
async fn create_worker(
    ctx: &Context,
    run: &AgentRun,
    pod: Pod,
    revision: String,
    document: String,
) -> Result<Option<Fact>> {
    let uid = run.uid().unwrap_or_default();
    let known = lock(&ctx.revisions).contains_key(&revision);
    if !known {
        ctx.store.put_revision(&revision, &document).await.map_err(Error::store("keeping the template"))?;
        lock(&ctx.revisions).insert(revision.clone(), document);
    }
    let api = ctx.pods_in(&run.namespace().unwrap_or_default());
    match api
        .create(
            &PostParams { field_manager: Some(names::FIELD_MANAGER.to_owned()), ..PostParams::default() },
            &pod,
        )
        .await
    {
        Ok(pod) => {
            lock(&ctx.refusals).remove(&uid);
            Ok(Some(Fact::Pod(Box::new(pod))))
        }
        Err(kube::Error::Api(status)) if status.is_already_exists() => {
            let found =
                api.get_opt(&pod.name_any()).await.map_err(Error::api("looking at the pod that is there"))?;
            let Some(found) = found else {
                return Err(Error::Stale);
            };
            let ours = found
                .owner_references()
                .iter()
                .any(|owner| owner.controller == Some(true) && owner.uid == uid);
            Ok(Some(if ours { Fact::Pod(Box::new(found)) } else { Fact::NameTaken }))
        }
        // Any answer of the 400s is a judgement on this pod; the rest are faults.
        Err(kube::Error::Api(status)) if (400..500).contains(&status.code) && status.code != 429 => {
            let mut refusals = lock(&ctx.refusals);
            let times = refusals.get(&uid).filter(|it| it.revision == revision).map_or(0, |it| it.times) + 1;
            let refusal = Refusal {
                code: status.code,
                message: status.message.clone(),
                times,
                at: Timestamp::now(),
                revision,
            };
            refusals.insert(uid, refusal.clone());
            Ok(Some(Fact::Refused(refusal)))
        }
        Err(error) => Err(Error::api("creating the worker's pod")(error)),
    }
}

/// Deletes a pod if it still has this UID; that it is gone, or another, is fine.
pub async fn stop(ctx: &Context, namespace: &str, name: &str, uid: String) -> Result<()> {
    let params = DeleteParams {
        preconditions: Some(Preconditions { uid: Some(uid), resource_version: None }),
        ..DeleteParams::background()
    };
    match ctx.pods_in(namespace).delete(name, &params).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => Ok(()),
        Err(error) => Err(Error::api("deleting a pod")(error)),
    }
}

/// The one status write, refused by the API server if the object has changed since it was read.
async fn write_status(ctx: &Context, run: &AgentRun, status: AgentRunStatus) -> Result<()> {
    let mut new = run.clone();
    new.status = Some(status);
    new.metadata.managed_fields = None;
    let api = ctx.runs(&run.namespace().unwrap_or_default());
    match api.replace_status(&run.name_any(), &PostParams::default(), &new).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.is_conflict() => Err(Error::Stale),
        Err(error) if is_not_found(&error) => Ok(()),
        Err(error) => Err(Error::api("writing the status")(error)),
    }
}

/// Events, best effort: what they tell stands in the status too.
async fn tell(ctx: &Context, run: &AgentRun, notices: &mut Vec<Notice>) {
    let reference = run.object_ref(&());
    for notice in notices.drain(..) {
        tracing::info!(reason = notice.reason, note = notice.note, "told");
        let event = Event {
            type_: match notice.level {
                Level::Normal => EventType::Normal,
                Level::Warning => EventType::Warning,
            },
            reason: notice.reason.clone(),
            note: Some(truncated(notice.note)),
            action: notice.action,
            secondary: None,
        };
        if let Err(error) = ctx.recorder.publish(&event, &reference).await {
            tracing::warn!(%error, "an event could not be written");
        }
    }
}

/// The API server takes notes of up to 1,024 bytes.
fn truncated(mut note: String) -> String {
    if note.len() > 1_000 {
        let end = (0..=1_000).rev().find(|at| note.is_char_boundary(*at)).unwrap_or_default();
        note.truncate(end);
        note.push('…');
    }
    note
}

async fn namespace_uid(ctx: &Context, name: &str) -> Result<String> {
    let api: Api<Namespace> = Api::all(ctx.client.clone());
    let namespace = api.get(name).await.map_err(Error::api("looking at the namespace"))?;
    namespace.metadata.uid.ok_or(Error::Nameless("namespace UID"))
}
