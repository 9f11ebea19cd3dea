//! Act: does what was decided, one effect after the other. Writes, and never decides.

use std::time::Duration;

use dalsegno_core::{Decision, Effect, EffectResult, EventSpec, ObservedHead};
use dalsegno_crds::AgentRun;
use dalsegno_store::verify::{self, Checkpoint};
use dalsegno_store::{Created, NewRun, Recorded, Rewound, RunId};
use kube::ResourceExt;
use tokio::sync::OwnedSemaphorePermit;
use uuid::Uuid;

use crate::asked::{self, Wish};
use crate::error::{Error, Result};
use crate::ground::Ground;

/// What came of acting.
pub enum Acted {
    /// Something was learned: decide again on it.
    Learned(Vec<EffectResult>),
    /// Everything is as it shall be; look again after this long, if nothing happens before.
    Done(Option<Duration>),
}

/// Does the effects. If one of them taught something, that is the answer; else the status is written, if it differs,
/// and then the notices, of this decision and of those before it in `told`. A pod that cannot be deleted keeps nobody from
/// reading where the run stands: it is an error once all is told.
pub async fn act(
    ground: &impl Ground,
    run: &AgentRun,
    decision: Decision,
    told: &mut Vec<EventSpec>,
) -> Result<Acted> {
    let (mut facts, mut stray) = (Vec::new(), None);
    for effect in decision.effects {
        let (name, stops) = (effect.name(), matches!(effect, Effect::StopWorker { .. }));
        ground.before(name);
        match perform(ground, run, effect).await {
            Ok(fact) => facts.extend(fact),
            Err(error) if stops => {
                stray = Some(error);
                continue;
            }
            Err(error) => return Err(error),
        }
        ground.after(name);
    }
    told.extend(decision.events);
    if !facts.is_empty() {
        return Ok(Acted::Learned(facts));
    }
    if run.status.as_ref() != Some(&decision.status) {
        ground.write_status(run, decision.status).await?;
    }
    ground.tell(run, told).await;
    match stray {
        Some(source) => Err(Error::Stray { again: decision.requeue, source: Box::new(source) }),
        None => Ok(Acted::Done(decision.requeue)),
    }
}

/// Does one effect; answers what it taught.
pub async fn perform(ground: &impl Ground, run: &AgentRun, effect: Effect) -> Result<Option<EffectResult>> {
    let store = ground.store();
    let row = |row| Ok(Some(EffectResult::Row(row)));
    match effect {
        Effect::CreateRun { reset_generation, deadlines, on_prior } => {
            let namespace = run.namespace().ok_or(Error::Nameless("namespace"))?;
            let new = NewRun {
                id: Uuid::now_v7(),
                tenant: ground.tenant(&namespace).await?,
                namespace,
                name: run.name_any(),
                object_uid: run.uid().ok_or(Error::Nameless("UID"))?,
                reset_generation,
                deadlines,
                on_prior,
            };
            match store.create_run(&new).await.map_err(Error::store("taking the run up"))? {
                Created::Run(created) => row(created),
                Created::Prior(prior) => Ok(Some(EffectResult::Prior(prior))),
            }
        }
        Effect::EndAttempt { run: id, ending, then } => {
            tracing::info!(attempt = ending.attempt, cause = ending.cause.as_str(), class = ?ending.class, "ending the attempt");
            let ended = store.end_attempt(id, &ending, &then).await;
            let now = ended.map_err(Error::store("ending the attempt"))?;
            ground.ended(ending.cause.as_str());
            row(Box::new(now))
        }
        Effect::ReadTemplate(revision) => {
            let document = store.get_revision(&revision).await;
            Ok(Some(EffectResult::Template(revision, document.map_err(Error::store("reading a template"))?)))
        }
        Effect::VerifyHead(row) => {
            let _room = room(ground, row.id).await?;
            let found = verify::checkpoint(store.as_ref(), &row).await;
            let seen = ObservedHead::of(&row, found.map_err(Error::store("verifying the head"))?);
            if let Checkpoint::Corrupt(corruption) = &seen.found {
                tracing::error!(detail = corruption.detail, "the run cannot go on from its head");
                ground.head_is_damaged();
            }
            ground.remember(run, &seen);
            Ok(Some(EffectResult::Head(seen)))
        }
        Effect::Rewind(id, rewind) => {
            tracing::warn!(to = %rewind.to, reason = rewind.reason, "going back");
            match store.rewind(id, &rewind).await.map_err(Error::store("going back"))? {
                Rewound::Done(now) => row(now),
                // The row has changed since it was looked at.
                Rewound::Refused(_) => Err(Error::Stale),
            }
        }
        Effect::CreateWorker { run: id, attempt, pod, revision, document } => {
            // Each time: what was kept before may be gone, and whose it was may be over.
            let kept = store.put_revision(id, attempt, &revision, &document).await;
            Ok(Some(match kept.map_err(Error::store("keeping the template"))? {
                Recorded::Done(_) => ground.create_worker(run, *pod, revision).await?,
                // The row has changed since it was looked at.
                Recorded::Refused(row) => EffectResult::Row(row),
            }))
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
            let asked = asked::of(run, Wish::Cancel);
            row(Box::new(
                store.request_cancel(id, &asked).await.map_err(Error::store("requesting the cancel"))?,
            ))
        }
        Effect::ResetBudget { run: id, observed, to } => {
            let asked = asked::of(run, Wish::Reset);
            let granted = store.reset_budget(id, observed, to, &asked).await;
            row(Box::new(granted.map_err(Error::store("granting a budget"))?))
        }
        Effect::SetDeadlines(id, deadlines) => row(Box::new(
            store.set_deadlines(id, &deadlines).await.map_err(Error::store("setting the deadlines"))?,
        )),
        Effect::SetRetention(id, retention) => row(Box::new(
            store.set_retention(id, &retention).await.map_err(Error::store("setting the retention"))?,
        )),
        Effect::StopWorker { name, uid } => {
            ground.stop_worker(&run.namespace().unwrap_or_default(), &name, uid).await?;
            Ok(None)
        }
        Effect::DeleteRun => {
            ground.delete_run(run).await?;
            Ok(None)
        }
        Effect::MarkDeleted => {
            let uid = run.uid().ok_or(Error::Nameless("UID"))?;
            let asked = asked::of(run, Wish::Deletion);
            store.mark_deleted(&uid, &asked).await.map_err(Error::store("closing the row"))?;
            Ok(None)
        }
    }
}

/// Room for the head and the open calls, as the gateway takes it for an attach.
async fn room(ground: &impl Ground, run: RunId) -> Result<Option<OwnedSemaphorePermit>> {
    let store = ground.store();
    let sizes = store.sizes(run).await.map_err(Error::store("asking how large the head is"))?;
    Ok(ground.resumes().take(&sizes).await)
}

fn recorded(answer: dalsegno_store::Result<Recorded>, doing: &'static str) -> Result<Option<EffectResult>> {
    let (Recorded::Done(row) | Recorded::Refused(row)) = answer.map_err(Error::store(doing))?;
    Ok(Some(EffectResult::Row(row)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a case that cannot go on has failed")]

    use std::time::Duration;

    use dalsegno_store::{AskedBy, Sizes};
    use futures::future::join_all;
    use k8s_openapi::api::core::v1::Pod;
    use kube::api::ObjectMeta;
    use serde_json::json;
    use tokio::time::timeout;

    use super::*;
    use crate::world::{self, Disk, begun, worked};

    const NAME: &str = "nightly";

    fn run() -> AgentRun {
        let run = json!({
            "apiVersion": "dalsegno.dev/v1alpha1", "kind": "AgentRun",
            "metadata": { "name": NAME, "namespace": "shop", "uid": NAME },
            "spec": { "agentRef": { "name": "triage" } },
        });
        serde_json::from_value(run).unwrap()
    }

    /// Makes the pod of the first attempt.
    fn create_worker(run: RunId) -> Effect {
        let metadata = ObjectMeta { name: Some(format!("{NAME}-1")), ..ObjectMeta::default() };
        Effect::CreateWorker {
            run,
            attempt: 1,
            pod: Box::new(Pod { metadata, ..Pod::default() }),
            revision: "sha256:aa".into(),
            document: "{}".into(),
        }
    }

    #[tokio::test]
    async fn a_template_is_kept_each_time_a_pod_is_made_whatever_was_kept_before() {
        let disk = Disk::new();
        let (ground, _) = world::context(disk.store().await, Vec::new());
        let id = begun(&*ground.store, NAME).await;
        for _ in 0..2 {
            let fact = perform(&*ground, &run(), create_worker(id)).await.unwrap();
            assert!(matches!(fact, Some(EffectResult::Pod(_))), "{fact:?}");
            let kept = ground.store.get_revision("sha256:aa").await.unwrap();
            assert_eq!(kept.as_deref(), Some("{}"));
            // As where a copy from before is put in the place of the database.
            disk.execute("DELETE FROM revisions").await;
        }
    }

    #[tokio::test]
    async fn no_pod_is_made_for_an_attempt_that_is_over() {
        let disk = Disk::new();
        let (ground, asked) = world::context(disk.store().await, Vec::new());
        let id = begun(&*ground.store, NAME).await;
        ground.store.mark_deleted(NAME, &AskedBy::default()).await.unwrap();
        let fact = perform(&*ground, &run(), create_worker(id)).await.unwrap();
        assert!(matches!(fact, Some(EffectResult::Row(_))), "{fact:?}");
        assert!(asked.lock().unwrap().is_empty());
    }

    #[tokio::test]
    async fn a_head_is_verified_once_there_is_room_for_its_state() {
        let disk = Disk::new();
        let (ground, _) = world::context(disk.store().await, Vec::new());
        let id = worked(&*ground.store, NAME, 1).await;
        let row = Box::new(ground.store.get_run(id).await.unwrap().unwrap());
        let run = run();
        let small = Sizes { state: Some(1 << 20), ..Sizes::default() };
        let others = join_all((0..16).map(|_| ground.resumes.take(&small))).await;
        let mut verifying = Box::pin(perform(&*ground, &run, Effect::VerifyHead(row)));
        assert!(timeout(Duration::from_millis(300), &mut verifying).await.is_err(), "there is none");
        drop(others);
        let fact = verifying.await.unwrap();
        assert!(matches!(fact, Some(EffectResult::Head(_))), "{fact:?}");
    }
}
