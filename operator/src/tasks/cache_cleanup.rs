//! Removes cached data of runs, definitions and nodes that are gone.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use kube::runtime::reflector;
use tokio::sync::oneshot;

use crate::cache::pods::Owner;
use crate::cache::raw_object::RawRun;
use crate::controller::context::Context;
use crate::controller::error::Result;
use crate::controller::worker_runtime::{PodRef, WorkerRuntime as _};
use crate::log::error_chain;

/// Interval between two cleanups.
const INTERVAL: Duration = Duration::from_secs(60);

/// Cleans up periodically until cancelled. Starts once the cache of runs is filled.
pub async fn run(ctx: Arc<Context>, runs: reflector::Store<RawRun>, filled: oneshot::Receiver<()>) {
    let _ = filled.await;
    let mut ticks = tokio::time::interval(INTERVAL);
    loop {
        ticks.tick().await;
        let runs = runs.state().iter().map(|run| Owner::of(run.as_ref())).collect();
        if let Err(error) = release_pods(&ctx, &runs).await {
            tracing::warn!(error = error_chain(&error), "the pods of deleted runs will be released later");
            continue;
        }
        ctx.remove_all_but(&runs);
    }
}

/// Removes the finalizer of pods whose AgentRun is gone: one that was created just before the deletion of its AgentRun, whose
/// cleanup did not see it.
async fn release_pods(ctx: &Context, runs: &HashSet<Owner>) -> Result<()> {
    for pod in ctx.pods.held_of_all_but(runs) {
        let namespace = pod.pod.metadata.namespace.as_deref().unwrap_or_default();
        ctx.release_pod(PodRef { namespace, name: pod.name(), uid: pod.uid() }).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use dalsegno_store::sqlite::Sqlite;
    use kube::runtime::watcher;
    use serde_json::json;

    use super::*;
    use crate::mutex::lock;
    use crate::test_context::TestContext;

    #[tokio::test]
    async fn data_of_runs_that_are_gone_is_removed_once_the_cache_of_runs_is_filled() {
        let ctx = TestContext::new(Arc::new(Sqlite::memory().await.expect("a store")), vec![]).ctx;
        let (runs, mut cache) = reflector::store::<RawRun>();
        let run = json!({ "apiVersion": "dalsegno.dev/v1alpha1", "kind": "AgentRun", "spec": {},
                          "metadata": { "name": "nightly", "namespace": "shop", "uid": "kept" } });
        cache.apply_watcher_event(&watcher::Event::Apply(serde_json::from_value(run).expect("a run")));
        for uid in ["kept", "gone"] {
            lock(&ctx.failures).insert(uid.to_owned(), 1);
        }
        let left = || lock(&ctx.failures).len();
        let (notify, filled) = oneshot::channel();
        let mut cleaning = pin!(super::run(ctx.clone(), runs, filled));
        let moment = Duration::from_millis(50);
        let early = tokio::time::timeout(moment, &mut cleaning).await;
        assert!(early.is_err() && left() == 2);
        let _ = notify.send(());
        let later = tokio::time::timeout(moment, cleaning).await;
        assert!(later.is_err() && left() == 1);
        assert!(lock(&ctx.failures).contains_key("kept"));
    }
}
