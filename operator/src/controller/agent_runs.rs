//! The controller of AgentRuns: what triggers a reconcile, the finalizer, and the backoff after errors.

use std::sync::Arc;
use std::time::Duration;

use dalsegno_core::Effect;
use dalsegno_crds::names;
use futures::{Stream, StreamExt};
use kube::runtime::controller::{Action, Config, Controller};
use kube::runtime::finalizer::{self, Event, finalizer};
use kube::runtime::reflector::{ObjectRef, Store as Cache};
use kube::runtime::watcher;
use kube::{Api, Resource, ResourceExt};
use tracing::Instrument;

use super::attribution::{self, Request};
use super::context::Context;
use super::error::{Error, Result};
use super::reconcile::reconcile;
use super::report_invalid::report;
use super::worker_runtime::{PodRef, WorkerRuntime};
use crate::cache::pods::Owner;
use crate::cache::raw_object::RawRun;
use crate::log::error_chain;
use crate::mutex::lock;

/// Delay after the first failed reconcile; it doubles with each failure.
const INITIAL_BACKOFF: Duration = Duration::from_millis(500);
/// Longest delay after a failed reconcile.
const MAX_BACKOFF: Duration = Duration::from_secs(30);
/// Delay after a conflict.
const CONFLICT_RETRY: Duration = Duration::from_millis(50);

/// The controller and its inputs.
pub struct RunController<R, Q> {
    /// Changes of AgentRuns.
    pub runs: R,
    /// Runs that something else wants reconciled.
    pub queue: Q,
    /// All AgentRuns, as the changes leave them.
    pub cache: Cache<RawRun>,
    /// Number of runs that are reconciled at the same time.
    pub concurrency: u16,
}

impl<R, Q> RunController<R, Q>
where
    R: Stream<Item = watcher::Result<RawRun>> + Send + 'static,
    Q: Stream<Item = ObjectRef<RawRun>> + Send + 'static,
{
    /// Reconciles AgentRuns until `stop` is ready, and then until the reconciles under way have ended.
    pub async fn run(self, ctx: Arc<Context>, stop: impl Future<Output = ()> + Send + Sync + 'static) {
        Controller::for_stream(self.runs, self.cache)
            .with_config(Config::default().concurrency(self.concurrency))
            .reconcile_on(self.queue)
            .graceful_shutdown_on(stop)
            .run(reconcile_with_finalizer, error_policy, ctx)
            .for_each(|_| async {})
            .await;
    }
}

/// Reconciles a run, or cleans up after it if it is being deleted. An invalid object is reported and stops no other.
///
/// It always ends, since requests to the API server ([`crate::kube_client`]) and calls of the store have timeouts.
pub(super) async fn reconcile_with_finalizer(run: Arc<RawRun>, ctx: Arc<Context>) -> Result<Action> {
    let parsed = run.parse();
    if let Err(error) = &parsed
        && run.meta().deletion_timestamp.is_none()
    {
        return Ok(report(&ctx, run.as_ref(), &error.to_string()).await);
    }
    let uid = run.uid().unwrap_or_default();
    ctx.invalid_objects.remove(&uid, &ctx.metrics);
    let namespace = run.namespace().unwrap_or_default();
    let span = tracing::info_span!("reconcile", namespace, run = run.name_any());
    let started = std::time::Instant::now();
    let api = Api::<RawRun>::namespaced(ctx.client.clone(), &namespace);
    let outcome = finalizer(&api, names::FINALIZER, run, |event| async {
        match event {
            Event::Apply(_) => {
                let Ok(run) = &parsed else { return Ok(Action::await_change()) };
                let requeue = reconcile(run, ctx.as_ref()).await?;
                Ok(requeue.map_or_else(Action::await_change, Action::requeue))
            }
            Event::Cleanup(run) => clean_up(&run, &ctx).await,
        }
    })
    .instrument(span)
    .await;
    ctx.metrics.observe_reconcile(started.elapsed(), outcome.is_ok());
    match outcome {
        Ok(action) => {
            lock(&ctx.failures).remove(&uid);
            Ok(action)
        }
        Err(finalizer::Error::ApplyFailed(error) | finalizer::Error::CleanupFailed(error)) => {
            if let Error::Store { source, .. } = &error {
                ctx.metrics.count_store_error("run", source);
            }
            Err(error)
        }
        Err(error) => Err(Error::Finalizer(error.to_string())),
    }
}

/// Cleans up after a run whose AgentRun is being deleted: fences and closes the row, deletes the pods by UID. It needs only
/// the metadata, and waits for no kubelet.
async fn clean_up(run: &RawRun, ctx: &Context) -> Result<Action> {
    let uid = run.uid().unwrap_or_default();
    let effect = Effect::MarkDeleted.name();
    ctx.failpoint.pass("before", effect);
    let by = attribution::of(run, Request::Deletion);
    ctx.store.mark_deleted(&uid, &by).await.map_err(Error::store("closing the row"))?;
    ctx.failpoint.pass("after", effect);
    for pod in ctx.pods.of(&Owner::of(run)).into_iter().filter(|it| !it.gone) {
        let namespace = run.namespace().unwrap_or_default();
        ctx.stop_worker(PodRef { namespace: &namespace, name: pod.name(), uid: pod.uid() }).await?;
    }
    Ok(Action::await_change())
}

fn error_policy(run: Arc<RawRun>, error: &Error, ctx: Arc<Context>) -> Action {
    if matches!(error, Error::Conflict) {
        return Action::requeue(CONFLICT_RETRY);
    }
    let failures = {
        let mut failures = lock(&ctx.failures);
        let failures = failures.entry(run.meta().uid.clone().unwrap_or_default()).or_default();
        *failures = failures.saturating_add(1);
        *failures
    };
    let backoff = INITIAL_BACKOFF.saturating_mul(1 << (failures - 1).min(10)).min(MAX_BACKOFF);
    let delay = match error {
        Error::PodCleanup { requeue: Some(requeue), .. } => backoff.min(*requeue),
        _ => backoff,
    };
    tracing::warn!(
        namespace = run.meta().namespace,
        run = run.meta().name,
        error = error_chain(error),
        failures,
        "a reconcile failed and will be retried"
    );
    Action::requeue(delay)
}

#[cfg(test)]
mod tests;
