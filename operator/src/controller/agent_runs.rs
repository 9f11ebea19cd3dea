//! One reconcile of an AgentRun: the finalizer, and the delay until the next one, also after errors.

use std::sync::Arc;
use std::time::Duration;

use dalsegno_core::attribution::{self, Request};
use dalsegno_core::decide::RECHECK_INTERVAL;
use dalsegno_core::resync::next_look;
use dalsegno_core::{Effect, pod};
use dalsegno_crds::names;
use jiff::Timestamp;
use kube::runtime::controller::Action;
use kube::runtime::finalizer::{self, Event, finalizer};
use kube::{Api, Resource, ResourceExt};
use tokio::time::timeout;
use tracing::Instrument;

use super::catch_panic::catch_panic;
use super::context::Context;
use super::error::{Error, Result};
use super::queue_health::RECONCILE_TIMEOUT;
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
pub(super) const MAX_BACKOFF: Duration = Duration::from_secs(30);

/// Reconciles a run, or cleans up after it. Returns when to reconcile it again if nothing wakes it before. Always ends, also
/// by a panic or after a call that does not end.
pub(super) async fn reconcile_run(run: Arc<RawRun>, ctx: Arc<Context>) -> Duration {
    let reconciling = timeout(RECONCILE_TIMEOUT, reconcile_with_finalizer(run.clone(), ctx.clone()));
    match catch_panic(&ctx, run.as_ref(), reconciling).await {
        Ok(Ok(Ok(delay))) => delay,
        Ok(Ok(Err(error))) => delay_after(&error, &run, &ctx),
        Ok(Err(_)) => {
            ctx.metrics.observe_reconcile(RECONCILE_TIMEOUT, false);
            delay_after(&Error::TimedOut(RECONCILE_TIMEOUT), &run, &ctx)
        }
        Err(pause) => pause,
    }
}

/// Reconciles a run, or cleans up after it if it is being deleted. An invalid object is reported and stops no other.
pub(super) async fn reconcile_with_finalizer(run: Arc<RawRun>, ctx: Arc<Context>) -> Result<Duration> {
    let parsed = run.parse();
    if let Err(error) = &parsed
        && run.meta().deletion_timestamp.is_none()
    {
        report(&ctx, run.as_ref(), &error.to_string()).await;
        return Ok(RECHECK_INTERVAL);
    }
    let uid = run.uid().unwrap_or_default();
    ctx.invalid_objects.remove(&uid, &ctx.metrics);
    let namespace = run.namespace().unwrap_or_default();
    let span = tracing::info_span!("reconcile", namespace, run = run.name_any());
    let started = std::time::Instant::now();
    let api = Api::<RawRun>::namespaced(ctx.client.clone(), &namespace);
    let mut requeue = None;
    let outcome = finalizer(&api, names::FINALIZER, run, |event| async {
        match event {
            Event::Apply(_) => {
                if let Ok(run) = &parsed {
                    requeue = reconcile(run, ctx.as_ref()).await?;
                }
            }
            Event::Cleanup(run) => clean_up(&run, &ctx).await?,
        }
        Ok(Action::await_change())
    })
    .instrument(span)
    .await;
    ctx.metrics.observe_reconcile(started.elapsed(), outcome.is_ok());
    match outcome {
        Ok(_) => {
            lock(&ctx.failures).remove(&uid);
            ctx.write_conflicts.remove(&uid);
            let resync = next_look(&uid, Timestamp::now());
            Ok(requeue.map_or(resync, |requeue| requeue.min(resync)))
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
async fn clean_up(run: &RawRun, ctx: &Context) -> Result<()> {
    let uid = run.uid().unwrap_or_default();
    let effect = Effect::MarkDeleted.name();
    ctx.failpoint.pass("before", effect);
    let by = attribution::of(run.meta(), Request::Deletion, None);
    ctx.store.mark_deleted(&uid, &by).await.map_err(Error::store("closing the row"))?;
    ctx.failpoint.pass("after", effect);
    for seen in ctx.pods.of(&Owner::of(run)).into_iter().filter(|it| !it.gone) {
        let namespace = run.namespace().unwrap_or_default();
        let pod_ref = PodRef { namespace: &namespace, name: seen.name(), uid: seen.uid() };
        ctx.stop_worker(pod_ref).await?;
        if pod::is_external(&seen.pod.metadata) {
            ctx.release_pod(pod_ref).await?;
        }
    }
    Ok(())
}

/// How long a run waits after a failed reconcile.
fn delay_after(error: &Error, run: &RawRun, ctx: &Context) -> Duration {
    if matches!(error, Error::Conflict) {
        return ctx.write_conflicts.record(run);
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
    delay
}

#[cfg(test)]
mod tests;
