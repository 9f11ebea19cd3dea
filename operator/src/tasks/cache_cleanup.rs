//! Removes cached data of runs, definitions and nodes that are gone.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use kube::runtime::reflector;
use tokio::sync::oneshot;

use crate::cache::pods::Owner;
use crate::cache::raw_object::RawRun;
use crate::controller::context::Context;
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
        let mut kept = owners(&runs);
        let to_try_again = release_pods(&ctx, &kept).await;
        // Runs may have been created meanwhile. The pods of those that are gone since then are released the next time.
        kept.extend(owners(&runs));
        kept.extend(to_try_again);
        ctx.remove_all_but(&kept);
    }
}

fn owners(runs: &reflector::Store<RawRun>) -> HashSet<Owner> {
    runs.state().iter().map(|run| Owner::of(run.as_ref())).collect()
}

/// Removes the finalizer of pods whose AgentRun is gone: one that was created just before the deletion of its AgentRun, whose
/// cleanup did not see it. Returns the runs of the pods that could not be released: their cached pods are needed again.
async fn release_pods(ctx: &Context, runs: &HashSet<Owner>) -> Vec<Owner> {
    let mut failed = Vec::new();
    for (run, pod) in ctx.pods.held_of_all_but(runs) {
        let pod = PodRef { namespace: &run.namespace, name: pod.name(), uid: pod.uid() };
        if let Err(error) = ctx.release_pod(pod).await {
            let error = error_chain(&error);
            tracing::warn!(namespace = pod.namespace, pod = pod.name, error, "a pod will be released later");
            failed.push(run);
        }
    }
    failed
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use axum::http::Method;
    use dalsegno_crds::names;
    use dalsegno_store::sqlite::Sqlite;
    use futures::{StreamExt as _, stream};
    use k8s_openapi::api::core::v1::Pod;
    use kube::runtime::watcher;
    use serde_json::json;

    use super::*;
    use crate::cache::pods;
    use crate::mutex::lock;
    use crate::test_context::{Fault, TestContext};

    /// A pod of a run whose AgentRun is gone. It has the finalizer.
    fn held(name: &str, run: &str) -> Pod {
        let metadata = json!({
            "name": name, "namespace": "shop", "uid": format!("{name}-uid"), "finalizers": [names::POD_FINALIZER],
            "labels": { names::LABEL_RUN: run, names::LABEL_RUN_UID: run, names::LABEL_ATTEMPT: "1" },
        });
        serde_json::from_value(json!({ "metadata": metadata, "spec": { "containers": [] } })).expect("a pod")
    }

    #[tokio::test]
    async fn a_pod_that_cannot_be_released_is_kept_and_stops_no_other_one() {
        let fault = Fault::default();
        *fault.lock().expect("a fault") = Some((Method::PATCH, "/pods/refused", Some(403)));
        let store = Arc::new(Sqlite::memory().await.expect("a store"));
        let TestContext { ctx, requests } = TestContext::with_fault(store, vec![], fault);
        let pods: Vec<Pod> = ["first", "refused", "last"].map(|name| held(name, name)).into();
        let events = stream::iter(pods).map(|pod| Ok(watcher::Event::Apply(pod)));
        pods::watch(ctx.pods.clone(), events).collect::<Vec<_>>().await;
        let (runs, _cache) = reflector::store::<RawRun>();
        let (notify, filled) = oneshot::channel();
        let _ = notify.send(());
        let cleaning = super::run(ctx.clone(), runs, filled);
        assert!(tokio::time::timeout(Duration::from_millis(200), cleaning).await.is_err());
        let requests = requests.lock().expect("requests");
        let mut patched: Vec<_> = requests.iter().map(|(_, path, _)| path.rsplit('/').next()).collect();
        patched.sort_unstable();
        assert_eq!(patched, [Some("first"), Some("last"), Some("refused")]);
        let left = ctx.pods.held_of_all_but(&HashSet::new());
        assert_eq!(left.iter().map(|(run, _)| run.uid.as_str()).collect::<Vec<_>>(), ["refused"]);
    }

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
