#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use std::convert::Infallible;
use std::sync::Mutex;

use axum::http::{Method, Request, Response};
use dalsegno_crds::names;
use kube::Client;
use kube::client::Body;
use kube::runtime::reflector;
use serde_json::{Value, json};

use super::*;
use crate::controller::queue_health::RECONCILE_TIMEOUT;
use crate::test_context::{Fault, Requests, TestContext};

/// A run that has had a worker, or has not.
fn run(namespace: &str, name: &str, had_worker: bool) -> RawRun {
    let template = json!({ "spec": { "containers": [{ "name": "agent", "image": "agent" }] } });
    let status = if had_worker { json!({ "startTime": "2026-05-01T00:00:00Z" }) } else { json!({}) };
    serde_json::from_value(json!({
        "apiVersion": "dalsegno.dev/v1alpha1", "kind": "AgentRun", "status": status,
        "spec": { "agent": { "template": template } },
        "metadata": { "name": name, "namespace": namespace, "uid": format!("{namespace}-{name}"),
                      "resourceVersion": "1", "finalizers": [names::FINALIZER] },
    }))
    .unwrap()
}

/// A filled cache of these runs.
fn cache_of(runs: &[RawRun]) -> (Cache<RawRun>, reflector::store::Writer<RawRun>) {
    let (cache, mut writer) = reflector::store::<RawRun>();
    writer.apply_watcher_event(&watcher::Event::Init);
    for run in runs {
        writer.apply_watcher_event(&watcher::Event::InitApply(run.clone()));
    }
    writer.apply_watcher_event(&watcher::Event::InitDone);
    (cache, writer)
}

/// Emits these runs, after a delay each.
fn changes(runs: Vec<(RawRun, Duration)>) -> impl Stream<Item = watcher::Result<RawRun>> + Send + 'static {
    let emitted = stream::iter(runs).then(|(run, delay)| async move {
        tokio::time::sleep(delay).await;
        Ok(run)
    });
    emitted.chain(stream::pending())
}

/// An API server whose admission webhook takes 30 s for each pod of the namespace `slow`. Adds the paths of all other
/// pods that are created.
fn slow_webhook(created: Arc<Mutex<Vec<String>>>) -> Client {
    let service = tower::service_fn(move |request: Request<Body>| {
        let created = created.clone();
        async move {
            let (head, body) = request.into_parts();
            let path = head.uri.path().to_owned();
            let body = body.collect_bytes().await.unwrap();
            let mut object: Value = serde_json::from_slice(&body).unwrap_or(Value::Null);
            let is_pod = head.method == Method::POST && path.ends_with("/pods");
            if is_pod && path.contains("/slow/") {
                tokio::time::sleep(Duration::from_secs(30)).await;
            } else if is_pod {
                created.lock().unwrap().push(path.clone());
            }
            let mut code = 200;
            if head.method == Method::GET && !path.contains("/namespaces/") || path.contains("/pods/") {
                object = json!({ "kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404 });
                code = 404;
            } else if head.method == Method::GET {
                let name = path.rsplit('/').next().unwrap();
                object = json!({ "metadata": { "name": name, "uid": format!("uid of {name}") } });
            } else if is_pod {
                object["metadata"]["uid"] = format!("uid of {}", object["metadata"]["name"]).into();
            }
            let body = Body::from(object.to_string().into_bytes());
            Ok::<_, Infallible>(Response::builder().status(code).body(body).unwrap())
        }
    });
    Client::new(service, "slow")
}

#[tokio::test]
async fn a_recovery_is_served_within_10_s_although_100_runs_wait_behind_a_slow_webhook() {
    let store = Arc::new(dalsegno_store::sqlite::Sqlite::memory().await.unwrap());
    let mut ctx = TestContext::new(store, vec![]).ctx;
    let created = Arc::new(Mutex::new(Vec::new()));
    Arc::get_mut(&mut ctx).unwrap().client = slow_webhook(created.clone());
    let mut runs: Vec<RawRun> = (0..100).map(|it| run("slow", &format!("refused-{it}"), true)).collect();
    runs.push(run("other", "urgent", true));
    let (cache, _writer) = cache_of(&runs);
    // The recovery comes last, when the slots are taken.
    let mut changed: Vec<_> = runs.into_iter().map(|run| (run, Duration::ZERO)).collect();
    changed.last_mut().unwrap().1 = Duration::from_secs(1);
    let controller =
        RunController { runs: changes(changed), queue: stream::pending(), cache, concurrency: 16 };
    let controller = tokio::spawn(controller.run(ctx, std::future::pending()));
    let served = async {
        while created.lock().unwrap().is_empty() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), served).await.expect("the recovery is served");
    assert_eq!(*created.lock().unwrap(), ["/api/v1/namespaces/other/pods"]);
    controller.abort();
}

#[test]
fn a_run_that_is_woken_from_a_wait_or_a_suspend_comes_after_a_recovery() {
    let of = |summary: &str| {
        let mut object = serde_json::to_value(run("shop", "nightly", true)).unwrap();
        object["status"]["summary"] = summary.into();
        priority_by_status(&serde_json::from_value(object).unwrap())
    };
    for (summary, expected) in [
        ("Waiting", Priority::WakeUp),
        ("Suspended", Priority::WakeUp),
        ("Held", Priority::Recovery),
        ("BackingOff", Priority::Recovery),
    ] {
        assert_eq!(of(summary), expected, "{summary}");
    }
    assert_eq!(priority_by_status(&run("shop", "nightly", false)), Priority::FirstStart);
}

/// The requests so far whose path ends like this.
fn count(requests: &Requests, end: &str) -> usize {
    requests.lock().unwrap().iter().filter(|(_, path, _)| path.ends_with(end)).count()
}

/// Waits for so many requests whose path ends like this, also on a slow machine.
async fn until_sent(requests: &Requests, end: &str, times: usize) {
    let sent = async {
        while count(requests, end) < times {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), sent).await.unwrap_or_else(|_| panic!("{times} of {end}"));
}

#[tokio::test]
async fn a_stale_cache_causes_few_status_writes_and_a_new_version_is_written_at_once() {
    let fault = Fault::default();
    let store = Arc::new(dalsegno_store::sqlite::Sqlite::memory().await.unwrap());
    let TestContext { ctx, requests } = TestContext::with_fault(store, vec![], fault.clone());
    *fault.lock().unwrap() = Some((Method::PUT, "/status", Some(409)));
    let mut stale: Value = serde_json::to_value(run("shop", "nightly", false)).unwrap();
    stale["spec"] = json!({ "agentRef": { "name": "none" } });
    let stale: RawRun = serde_json::from_value(stale).unwrap();
    let (cache, mut writer) = cache_of(std::slice::from_ref(&stale));
    // Something else wakes the run ten times a second.
    let woken = ObjectRef::from_obj(&stale);
    let queue = stream::unfold(tokio::time::interval(Duration::from_millis(100)), move |mut ticks| {
        let woken = woken.clone();
        async move {
            ticks.tick().await;
            Some((woken, ticks))
        }
    });
    let runs = changes(vec![(stale.clone(), Duration::ZERO)]);
    let controller = RunController { runs, queue: queue.boxed(), cache, concurrency: 4 };
    let started = Instant::now();
    let controller = tokio::spawn(controller.run(ctx.clone(), std::future::pending()));
    until_sent(&requests, "/status", 8).await;
    let pauses = Duration::from_millis(50 + 100 + 200 + 400 + 800 + 1_600 + 3_200);
    assert!(started.elapsed() >= pauses, "8 writes of a stale status in {:?}", started.elapsed());
    let writes = count(&requests, "/status");
    let metrics = crate::test_context::render_metrics(&ctx.metrics);
    assert!(metrics.contains(&format!("status_conflicts_total {writes}\n")), "{metrics}");

    // The pause of the stale version is over in 5 s.
    let paused = Instant::now();
    *fault.lock().unwrap() = None;
    let mut fresh = stale;
    fresh.meta_mut().resource_version = Some("2".into());
    writer.apply_watcher_event(&watcher::Event::Apply(fresh));
    until_sent(&requests, "/status", writes + 1).await;
    assert!(paused.elapsed() < Duration::from_millis(4_500), "the new version is written at the next look");
    controller.abort();
}

#[tokio::test]
async fn a_run_is_looked_at_again_at_the_time_it_asked_for_and_after_a_stop_no_more() {
    let store = Arc::new(dalsegno_store::sqlite::Sqlite::memory().await.unwrap());
    let fault = Fault::default();
    let TestContext { ctx, requests } = TestContext::with_fault(store, vec![], fault.clone());
    *fault.lock().unwrap() = Some((Method::GET, "/agentdefinitions/none", Some(500)));
    let mut failing: Value = serde_json::to_value(run("shop", "nightly", false)).unwrap();
    failing["spec"] = json!({ "agentRef": { "name": "none" } });
    let failing: RawRun = serde_json::from_value(failing).unwrap();
    let (cache, _writer) = cache_of(std::slice::from_ref(&failing));
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let runs = changes(vec![(failing, Duration::ZERO)]);
    let controller = RunController { runs, queue: stream::pending(), cache, concurrency: 4 };
    let started = Instant::now();
    let controller = tokio::spawn(controller.run(ctx, async {
        let _ = stopped.await;
    }));
    for (look, earliest) in [(1, 0), (2, 500), (3, 1_500)] {
        until_sent(&requests, "/agentdefinitions/none", look).await;
        assert!(started.elapsed() >= Duration::from_millis(earliest), "look {look}: {:?}", started.elapsed());
    }
    let _ = stop.send(());
    tokio::time::timeout(Duration::from_secs(20), controller).await.expect("it ends").unwrap();
}

/// An API server that has every namespace and accepts every write. The request for the namespace `broken` panics in the
/// reconcile that sent it.
fn panicking_server(requests: Requests) -> Client {
    let service = tower::service_fn(move |request: Request<Body>| {
        let requests = requests.clone();
        async move {
            let (head, body) = request.into_parts();
            let path = head.uri.path().to_owned();
            let body = body.collect_bytes().await.unwrap();
            let mut object: Value = serde_json::from_slice(&body).unwrap_or(json!({}));
            requests.lock().unwrap().push((head.method.clone(), path.clone(), object.clone()));
            assert!(path != "/api/v1/namespaces/broken", "no such namespace");
            let name = path.rsplit('/').next().unwrap().to_owned();
            if object["metadata"]["uid"].is_null() {
                object["metadata"] = json!({ "name": name, "uid": format!("uid of {name}") });
            }
            let body = Body::from(object.to_string().into_bytes());
            Ok::<_, Infallible>(Response::builder().status(200).body(body).unwrap())
        }
    });
    Client::new(service, "shop")
}

#[tokio::test]
async fn a_panic_in_one_reconcile_is_reported_on_its_run_and_stops_no_other() {
    let store = Arc::new(dalsegno_store::sqlite::Sqlite::memory().await.unwrap());
    let mut ctx = TestContext::new(store, vec![]).ctx;
    let requests = Requests::default();
    Arc::get_mut(&mut ctx).unwrap().client = panicking_server(requests.clone());
    let defective = run("broken", "defective", true);
    let (cache, mut writer) = cache_of(&[defective.clone(), run("shop", "other", true)]);
    // The defective run is woken ten times, and the other one after that.
    let mut changed = vec![(defective.clone(), Duration::from_millis(50)); 10];
    changed.push((run("shop", "other", true), Duration::ZERO));
    let (wake, woken) = futures::channel::mpsc::unbounded();
    let controller = RunController { runs: changes(changed), queue: woken, cache, concurrency: 1 };
    let controller = tokio::spawn(controller.run(ctx.clone(), std::future::pending()));
    until_sent(&requests, "/namespaces/shop/pods", 1).await;
    assert_eq!(count(&requests, "/namespaces/broken"), 1, "a wake-up does not shorten the pause");
    let events =
        |it: &(Method, String, Value)| it.1.ends_with("/namespaces/broken/events").then(|| it.2.clone());
    let events: Vec<Value> = requests.lock().unwrap().iter().filter_map(events).collect();
    let [event] = events.try_into().unwrap();
    assert_eq!((&event["type"], &event["reason"]), (&json!("Warning"), &json!("ReconcilePanicked")));
    assert_eq!(event["regarding"]["name"], "defective");
    assert!(event["note"].as_str().unwrap().contains("no such namespace"), "{event}");
    let metrics = crate::test_context::render_metrics(&ctx.metrics);
    assert!(metrics.contains("reconcile_panics_total 1\n"), "{metrics}");

    // Somebody changes the run.
    let mut changed = defective;
    changed.meta_mut().generation = Some(2);
    writer.apply_watcher_event(&watcher::Event::Apply(changed.clone()));
    wake.unbounded_send(ObjectRef::from_obj(&changed)).unwrap();
    until_sent(&requests, "/namespaces/broken", 2).await;
    assert!(!controller.is_finished());
    controller.abort();
}

/// Starts a controller with one slot and two runs, at an API server without answers. Returns when one of them waits.
async fn hanging() -> (Arc<Context>, tokio::task::JoinHandle<()>) {
    let store = Arc::new(dalsegno_store::sqlite::Sqlite::memory().await.unwrap());
    let mut ctx = TestContext::new(store, vec![]).ctx;
    let silent = tower::service_fn(|_: Request<Body>| {
        std::future::pending::<std::result::Result<Response<Body>, Infallible>>()
    });
    Arc::get_mut(&mut ctx).unwrap().client = Client::new(silent, "shop");
    let runs = [run("shop", "hangs", true), run("shop", "waits", true)];
    let (cache, _writer) = cache_of(&runs);
    let changed = runs.into_iter().map(|run| (run, Duration::ZERO)).collect();
    let controller =
        RunController { runs: changes(changed), queue: stream::pending(), cache, concurrency: 1 };
    let controller = tokio::spawn(controller.run(ctx.clone(), std::future::pending()));
    while ctx.queue_health.oldest(std::time::Instant::now()).is_zero() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    (ctx, controller)
}

#[tokio::test]
async fn an_operator_whose_reconciles_do_not_end_is_wedged_and_its_queue_ages() {
    let (ctx, controller) = hanging().await;
    let later = |minutes| std::time::Instant::now() + Duration::from_mins(minutes);
    assert_eq!(ctx.queue_health.failure(later(16)), None, "the reconcile would have been cut off");
    assert!(ctx.queue_health.oldest(later(16)) >= Duration::from_mins(16));
    let why = ctx.queue_health.failure(later(20)).unwrap();
    assert!(why.contains("does not end"), "{why}");
    controller.abort();
}

#[tokio::test]
async fn a_reconcile_that_hangs_is_cut_off_counted_and_its_slot_goes_to_the_next_run() {
    let (ctx, controller) = hanging().await;
    tokio::time::pause();
    tokio::time::advance(RECONCILE_TIMEOUT + Duration::from_secs(1)).await;
    tokio::time::resume();
    let cut_off = async {
        while lock(&ctx.failures).is_empty() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), cut_off).await.expect("it is cut off");
    let metrics = crate::test_context::render_metrics(&ctx.metrics);
    assert!(metrics.contains("reconciles_total{outcome=\"error\"} 1\n"), "{metrics}");
    let now = Instant::now().into_std();
    assert!(ctx.queue_health.oldest(now).is_zero(), "the other run has the slot");
    assert_eq!(ctx.queue_health.failure(now), None);
    controller.abort();
}
