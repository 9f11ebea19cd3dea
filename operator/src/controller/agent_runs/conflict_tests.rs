#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use axum::http::Method;
use futures::stream;
use kube::runtime::reflector;
use serde_json::json;

use super::*;
use crate::test_context::{Fault, Requests, TestContext};

/// A cache that shows version 1 of a run that a definition is missing for. The controller has its status to write.
fn cached_run() -> (Arc<RawRun>, Cache<RawRun>, reflector::store::Writer<RawRun>) {
    let run: RawRun = serde_json::from_value(json!({
        "apiVersion": "dalsegno.dev/v1alpha1", "kind": "AgentRun", "spec": { "agentRef": { "name": "none" } },
        "metadata": { "name": "nightly", "namespace": "shop", "uid": "uid-1", "resourceVersion": "1",
                      "finalizers": [names::FINALIZER] },
    }))
    .unwrap();
    let (cache, mut writer) = reflector::store::<RawRun>();
    writer.apply_watcher_event(&watcher::Event::Init);
    writer.apply_watcher_event(&watcher::Event::InitApply(run.clone()));
    writer.apply_watcher_event(&watcher::Event::InitDone);
    (Arc::new(run), cache, writer)
}

fn status_writes(requests: &Requests) -> usize {
    requests.lock().unwrap().iter().filter(|(_, path, _)| path.ends_with("/status")).count()
}

#[tokio::test]
async fn a_stale_cache_causes_few_status_writes_and_a_new_version_is_written_at_once() {
    let fault = Fault::default();
    let store = Arc::new(dalsegno_store::sqlite::Sqlite::memory().await.unwrap());
    let TestContext { ctx, requests } = TestContext::with_fault(store, vec![], fault.clone());
    *fault.lock().unwrap() = Some((Method::PUT, "/status", Some(409)));
    let (run, cache, mut writer) = cached_run();
    let changes = stream::iter([Ok((*run).clone())]).chain(stream::pending());
    // Something else wakes the run ten times a second.
    let woken = ObjectRef::from_obj(run.as_ref());
    let ticks = tokio_stream_ticks(Duration::from_millis(100));
    let queue = ticks.map(move |()| woken.clone());
    let controller = RunController { runs: changes, queue, cache, concurrency: 4 };
    let controller = tokio::spawn(controller.run(ctx, std::future::pending()));
    tokio::time::sleep(Duration::from_secs(3)).await;
    let stale = status_writes(&requests);
    assert!((2..=8).contains(&stale), "{stale} writes of a stale status in 3 s");

    *fault.lock().unwrap() = None;
    let mut fresh = (*run).clone();
    fresh.meta_mut().resource_version = Some("2".into());
    writer.apply_watcher_event(&watcher::Event::Apply(fresh));
    tokio::time::sleep(Duration::from_millis(700)).await;
    assert!(status_writes(&requests) > stale, "the new version is written at the next look");
    controller.abort();
}

fn tokio_stream_ticks(every: Duration) -> impl Stream<Item = ()> + Send + 'static {
    stream::unfold(tokio::time::interval(every), |mut ticks| async move {
        ticks.tick().await;
        Some(((), ticks))
    })
}
