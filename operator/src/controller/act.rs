//! Act: performs the effects of a decision, one after the other. Makes no decision itself.

use std::time::{Duration, Instant};

use dalsegno_core::attribution::{self, Request};
use dalsegno_core::remedy::MAX_CALLS;
use dalsegno_core::{Announcement, Decision, Effect, EffectResult, EventSpec, ForkProgress, ObservedHead};
use dalsegno_crds::{AgentRun, names};
use dalsegno_model::{
    Attempt, BudgetReset, Created, Ending, ForkRequest, ForkState, Forked, NewRun, NextStep, Recorded,
    Rewind, Rewound, RunId, RunRecord, Sizes, Template,
};
use dalsegno_proof::verify::{self, Checkpoint};
use kube::ResourceExt;
use serde_json::Value;
use uuid::Uuid;

use super::error::{Error, Result};
use super::worker_runtime::{PodRef, WorkerRuntime};

/// Outcome of acting on a decision.
pub enum ActOutcome {
    /// An effect brought new facts: decide again.
    NewFacts(Vec<EffectResult>),
    /// Nothing is left to do.
    Converged {
        /// When to reconcile again, if nothing happens before.
        requeue: Option<Duration>,
    },
}

/// Performs the effects. If they bring new facts, returns those. Otherwise writes the status if it differs, and then
/// publishes the events: those of this decision, and the `pending` ones of earlier rounds.
///
/// A pod that cannot be deleted does not delay the status: its error is returned after the events.
pub async fn act(
    runtime: &impl WorkerRuntime,
    run: &AgentRun,
    decision: Decision,
    pending: &mut Vec<EventSpec>,
) -> Result<ActOutcome> {
    let (mut facts, mut cleanup_error) = (Vec::new(), None);
    for effect in decision.effects {
        let (name, is_cleanup) =
            (effect.name(), matches!(effect, Effect::StopWorker { .. } | Effect::ReleasePod { .. }));
        runtime.before_effect(name);
        match perform(runtime, run, effect).await {
            Ok(fact) => facts.extend(fact),
            Err(error) if is_cleanup => {
                cleanup_error = Some(error);
                continue;
            }
            Err(error) => return Err(error),
        }
        runtime.after_effect(name);
    }
    pending.extend(decision.events);
    if !facts.is_empty() {
        return Ok(ActOutcome::NewFacts(facts));
    }
    // Before the status: a hold that people see was announced.
    match &decision.announcement {
        Some(Announcement::Run(id, notice)) => {
            runtime.store().announce(*id, notice).await.map_err(Error::store("announcing the hold"))?;
        }
        Some(Announcement::Object(hold)) => {
            runtime.store().announce_object(hold).await.map_err(Error::store("announcing the hold"))?;
        }
        None => {}
    }
    if run.status.as_ref() != Some(&decision.status) {
        runtime.write_status(run, decision.status).await?;
    }
    runtime.publish_events(run, pending).await;
    match cleanup_error {
        Some(source) => Err(Error::PodCleanup { requeue: decision.requeue, source: Box::new(source) }),
        None => Ok(ActOutcome::Converged { requeue: decision.requeue }),
    }
}

/// Performs one effect. Returns the fact that it brought, if any.
pub async fn perform(
    runtime: &impl WorkerRuntime,
    run: &AgentRun,
    effect: Effect,
) -> Result<Option<EffectResult>> {
    let store = runtime.store();
    match effect {
        Effect::CreateRun {
            reset_generation,
            rewind_generation,
            is_fork,
            is_external,
            deadlines,
            on_prior,
        } => {
            let namespace = run.namespace().ok_or(Error::MissingMetadata("namespace"))?;
            let new = NewRun {
                id: Uuid::now_v7(),
                tenant: runtime.namespace_uid(&namespace).await?,
                namespace,
                name: run.name_any(),
                object_uid: run.uid().ok_or(Error::MissingMetadata("UID"))?,
                reset_generation,
                rewind_generation,
                is_fork,
                is_external,
                deadlines,
                on_prior,
            };
            Ok(Some(match store.create_run(&new).await.map_err(Error::store("creating the run"))? {
                Created::Run(row) => EffectResult::Row(row),
                Created::Prior(prior) => EffectResult::Prior(prior),
            }))
        }
        Effect::EndAttempt { run: id, ending, then } => end_attempt(runtime, id, &ending, &then).await,
        Effect::ForgiveEnd(id, forgiveness) => {
            tracing::info!(
                attempt = forgiveness.attempt,
                cause = forgiveness.cause.as_str(),
                "taking back a charge"
            );
            updated(store.forgive_end(id, &forgiveness).await, "taking back a charge")
        }
        Effect::ReadTemplate(revision) => {
            let document = store.get_revision(&revision).await;
            Ok(Some(EffectResult::Template(revision, document.map_err(Error::store("reading a template"))?)))
        }
        Effect::ReadCallsToSettle(id) => {
            let calls = store.calls_to_settle(id, MAX_CALLS).await;
            Ok(Some(EffectResult::CallsToSettle(calls.map_err(Error::store("reading the calls to settle"))?)))
        }
        Effect::VerifyHead(row) => verify_head(runtime, run, *row).await,
        Effect::Rewind(id, rewind) => rewind_run(runtime, id, &rewind).await,
        Effect::RequestRewind(id, request) => {
            tracing::warn!(generation = request.generation, turn = request.to_turn, "a rewind was requested");
            updated(store.request_rewind(id, &request).await, "rewinding the run")
        }
        Effect::StepBack(id, step) => {
            Ok(Some(match store.step_back(id, &step).await.map_err(Error::store("going back one turn"))? {
                Rewound::Done(row) => {
                    tracing::warn!(from = %step.from, "attempts keep dying at this checkpoint: going back one turn");
                    EffectResult::Row(row)
                }
                Rewound::Refused(_) => EffectResult::StepBackRefused,
            }))
        }
        Effect::Fork(id, request) => fork_run(runtime, id, &request).await,
        Effect::CreateWorker { run: id, attempt, pod, revision, document } => {
            // Stored before each pod, even if it was stored before: the attempt may be over by now, or the database may
            // have been restored from a backup.
            let template = Template { hash: revision, document };
            let stored = store.put_revision(id, attempt, &template).await;
            Ok(Some(match stored.map_err(Error::store("storing the template"))? {
                Recorded::Done(row) => {
                    runtime.create_worker(run, with_nonce(pod, &row.attempt), template.hash).await?
                }
                // The row has changed since it was read.
                Recorded::Refused(row) => EffectResult::Row(row),
            }))
        }
        Effect::RecordPod { run: id, attempt, pod } => {
            recorded(store.record_pod(id, attempt, &pod).await, "recording the pod")
        }
        Effect::RecordScheduled { run: id, attempt, node } => {
            recorded(store.record_scheduled(id, attempt, &node).await, "recording the node")
        }
        Effect::RecordStarted { run: id, attempt } => {
            recorded(store.record_started(id, attempt).await, "recording the start of a worker")
        }
        Effect::RecordIdentity { run: id, attempt, identity } => {
            recorded(store.record_identity(id, attempt, &identity).await, "recording the image")
        }
        Effect::RequestCancel(id) => {
            let by = attribution::of(&run.metadata, Request::OperatingMode, attribution::observed(run));
            updated(store.request_cancel(id, &by).await, "requesting the cancel")
        }
        Effect::Suspend(id) => {
            let by = attribution::of(&run.metadata, Request::OperatingMode, attribution::observed(run));
            updated(store.suspend(id, &by).await, "suspending the run")
        }
        Effect::Resume(id) => {
            let by = attribution::of_resume(run);
            updated(store.resume(id, &by).await, "resuming the run")
        }
        Effect::SettleTime(id) => updated(store.settle_time(id).await, "settling waits by the clock"),
        Effect::ParkUnattended { run: id, attempt } => {
            tracing::info!(attempt, "parking the run: its worker has opened a wait and does not park");
            updated(store.park_unattended(id, attempt).await, "parking the run")
        }
        Effect::ResetBudget { run: id, observed, to } => {
            let reset = BudgetReset {
                observed,
                to,
                requested_by: attribution::of(&run.metadata, Request::Reset, attribution::observed(run)),
            };
            updated(store.reset_budget(id, &reset).await, "granting a budget")
        }
        Effect::SetDeadlines(id, deadlines) => {
            updated(store.set_deadlines(id, &deadlines).await, "setting the deadlines")
        }
        Effect::SetLimits(id, limits) => updated(store.set_limits(id, &limits).await, "setting the limits"),
        Effect::SetRetention(id, retention) => {
            updated(store.set_retention(id, &retention).await, "setting the retention")
        }
        Effect::Approval(effect) => runtime.approval(run, *effect).await,
        Effect::StopWorker { name, uid } => {
            let namespace = run.namespace().unwrap_or_default();
            runtime.stop_worker(PodRef { namespace: &namespace, name: &name, uid: &uid }).await?;
            Ok(None)
        }
        Effect::ReleasePod { name, uid } => {
            let namespace = run.namespace().unwrap_or_default();
            runtime.release_pod(PodRef { namespace: &namespace, name: &name, uid: &uid }).await?;
            Ok(None)
        }
        Effect::DeleteRun => {
            runtime.delete_run(run).await?;
            Ok(None)
        }
        Effect::MarkDeleted => {
            let uid = run.uid().ok_or(Error::MissingMetadata("UID"))?;
            let by = attribution::of(&run.metadata, Request::Deletion, None);
            store.mark_deleted(&uid, &by).await.map_err(Error::store("closing the row"))?;
            Ok(None)
        }
    }
}

/// The pod with the attempt's nonce, which proves that the operator created it.
fn with_nonce(mut pod: Value, attempt: &Attempt) -> Value {
    if let Some(nonce) = &attempt.pod_nonce {
        pod["metadata"]["annotations"][names::ANNOTATION_NONCE] = nonce.as_str().into();
    }
    pod
}

async fn end_attempt(
    runtime: &impl WorkerRuntime,
    run: RunId,
    ending: &Ending,
    then: &NextStep,
) -> Result<Option<EffectResult>> {
    tracing::info!(attempt = ending.attempt, cause = ending.cause.as_str(), class = ?ending.class, "ending the attempt");
    let ended = runtime.store().end_attempt(run, ending, then).await;
    let row = ended.map_err(Error::store("ending the attempt"))?;
    runtime.attempt_ended(&row, ending);
    Ok(Some(EffectResult::Row(Box::new(row))))
}

/// Verifies that the state at the head can be rebuilt, within the same memory limit as an attach of the gateway.
async fn verify_head(
    runtime: &impl WorkerRuntime,
    run: &AgentRun,
    row: RunRecord,
) -> Result<Option<EffectResult>> {
    let store = runtime.store();
    let sizes = store.sizes(row.id).await.map_err(Error::store("reading the size of the head"))?;
    let _permit = runtime.state_reads().acquire(&sizes).await;
    let checked = verify::checkpoint(store.as_ref(), &row).await;
    let head = ObservedHead::of(&row, checked.map_err(Error::store("verifying the head"))?);
    if let Checkpoint::Corrupt(corruption) = &head.found {
        tracing::error!(detail = corruption.detail, "the run cannot continue from its head");
        runtime.head_corrupt();
    }
    runtime.cache_head(run, &head);
    Ok(Some(EffectResult::Head(head)))
}

async fn rewind_run(
    runtime: &impl WorkerRuntime,
    run: RunId,
    rewind: &Rewind,
) -> Result<Option<EffectResult>> {
    tracing::warn!(to = %rewind.to, reason = rewind.reason, "rewinding the run");
    match runtime.store().rewind(run, rewind).await.map_err(Error::store("rewinding the run"))? {
        Rewound::Done(row) => Ok(Some(EffectResult::Row(row))),
        // The row has changed since it was read.
        Rewound::Refused(_) => Err(Error::Conflict),
    }
}

/// Name of one step of a fork for metrics and crash tests.
const FORK_STEP: &str = "fork-step";

/// Longest time that one reconcile copies for a fork.
const FORK_TIME: Duration = Duration::from_secs(2);

/// Copies for a fork until it is done or refused, or the time is up. The state is read within the same memory limit as
/// an attach of the gateway.
async fn fork_run(
    runtime: &impl WorkerRuntime,
    run: RunId,
    request: &ForkRequest,
) -> Result<Option<EffectResult>> {
    let store = runtime.store();
    let (started, mut parent) = (Instant::now(), None);
    loop {
        let sizes = match parent {
            Some(parent) => store.sizes(parent).await.map_err(Error::store("reading the size of a fork"))?,
            None => Sizes::default(),
        };
        let _permit = runtime.state_reads().acquire(&sizes).await;
        runtime.before_effect(FORK_STEP);
        let forked = store.fork(run, request).await.map_err(Error::store("forking a run"))?;
        runtime.after_effect(FORK_STEP);
        match forked {
            Forked::Refused(refusal) => {
                return Ok(Some(EffectResult::Fork(ForkProgress::Refused(refusal))));
            }
            Forked::Step(row) => {
                let fork = row.fork.as_ref().filter(|fork| fork.state == ForkState::Copying);
                let Some(fork) = fork.filter(|_| row.finish.is_none()) else {
                    return Ok(Some(EffectResult::Row(row)));
                };
                if started.elapsed() > FORK_TIME {
                    return Ok(Some(EffectResult::Fork(ForkProgress::Copying)));
                }
                parent = fork.parent;
            }
        }
    }
}

fn updated(row: dalsegno_model::Result<RunRecord>, operation: &'static str) -> Result<Option<EffectResult>> {
    Ok(Some(EffectResult::Row(Box::new(row.map_err(Error::store(operation))?))))
}

fn recorded(
    outcome: dalsegno_model::Result<Recorded>,
    operation: &'static str,
) -> Result<Option<EffectResult>> {
    let (Recorded::Done(row) | Recorded::Refused(row)) = outcome.map_err(Error::store(operation))?;
    Ok(Some(EffectResult::Row(row)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a panic fails the test")]

    use std::time::Duration;

    use dalsegno_model::{RequestedBy, Sizes};
    use futures::future::join_all;
    use serde_json::json;
    use tokio::time::timeout;

    use super::*;
    use crate::test_context::{Disk, TestContext, create_run, create_worked_run};

    const NAME: &str = "nightly";

    fn run() -> AgentRun {
        let run = json!({
            "apiVersion": "dalsegno.dev/v1alpha1", "kind": "AgentRun",
            "metadata": { "name": NAME, "namespace": "shop", "uid": NAME },
            "spec": { "agentRef": { "name": "triage" } },
        });
        serde_json::from_value(run).unwrap()
    }

    /// The effect that creates the pod of the first attempt.
    fn create_worker(run: RunId) -> Effect {
        Effect::CreateWorker {
            run,
            attempt: 1,
            pod: json!({ "metadata": { "name": format!("{NAME}-1") } }),
            revision: "sha256:aa".into(),
            document: "{}".into(),
        }
    }

    #[tokio::test]
    async fn the_template_is_stored_before_each_pod_even_if_it_was_stored_before() {
        let disk = Disk::new();
        let runtime = TestContext::new(disk.store().await, Vec::new()).ctx;
        let id = create_run(&*runtime.store, NAME).await;
        for _ in 0..2 {
            let fact = perform(&*runtime, &run(), create_worker(id)).await.unwrap();
            let Some(EffectResult::Pod(pod)) = fact else { panic!("{fact:?}") };
            let row = runtime.store.get_run(id).await.unwrap().unwrap();
            let nonce = row.attempt.pod_nonce.filter(|it| !it.is_empty());
            assert!(nonce.is_some(), "the pod has a nonce");
            assert_eq!(pod.annotations().get(names::ANNOTATION_NONCE), nonce.as_ref(), "the same each time");
            let stored = runtime.store.get_revision("sha256:aa").await.unwrap();
            assert_eq!(stored.as_deref(), Some("{}"));
            // As after a restore of the database from a backup.
            disk.execute("DELETE FROM revisions").await;
        }
    }

    #[tokio::test]
    async fn no_pod_is_created_for_an_attempt_that_is_over() {
        let disk = Disk::new();
        let TestContext { ctx: runtime, requests } = TestContext::new(disk.store().await, Vec::new());
        let id = create_run(&*runtime.store, NAME).await;
        runtime.store.mark_deleted(NAME, &RequestedBy::default()).await.unwrap();
        let fact = perform(&*runtime, &run(), create_worker(id)).await.unwrap();
        assert!(matches!(fact, Some(EffectResult::Row(_))), "{fact:?}");
        assert!(requests.lock().unwrap().is_empty());
    }

    #[tokio::test]
    async fn a_head_is_verified_only_within_the_memory_limit_of_state_reads() {
        let disk = Disk::new();
        let runtime = TestContext::new(disk.store().await, Vec::new()).ctx;
        let id = create_worked_run(&*runtime.store, NAME, 1).await;
        let row = Box::new(runtime.store.get_run(id).await.unwrap().unwrap());
        let run = run();
        let small = Sizes { state: Some(1 << 20), ..Sizes::default() };
        // The smallest budget has 8 MiB for small states.
        let others = join_all((0..8).map(|_| runtime.state_reads.acquire(&small))).await;
        let mut verifying = Box::pin(perform(&*runtime, &run, Effect::VerifyHead(row)));
        assert!(timeout(Duration::from_millis(300), &mut verifying).await.is_err(), "no permit is free");
        drop(others);
        let fact = verifying.await.unwrap();
        assert!(matches!(fact, Some(EffectResult::Head(_))), "{fact:?}");
    }
}
