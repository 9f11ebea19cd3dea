#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use std::sync::Mutex;

use axum::http::Method;
use serde_json::{Value, json};

use dalsegno_crds::names;

use super::*;
use crate::test_context::{Requests, TestContext};

fn definition() -> Value {
    let containers = json!([{ "name": names::WORKER_CONTAINER, "image": "agent" }]);
    json!({
        "apiVersion": "dalsegno.dev/v1alpha1", "kind": "AgentDefinition",
        "metadata": { "name": "nightly", "namespace": "shop", "uid": "uid-1", "generation": 1 },
        "spec": { "template": { "spec": { "containers": containers } } },
    })
}

/// A refusal of every pod.
fn refused(code: u16, message: &str) -> Vec<Value> {
    vec![
        json!({ "kind": "Status", "status": "Failure", "code": code, "message": message, "reason": "Refused",
                 "details": { "kind": "pods" } }),
    ]
}

/// Checks the definition with an API server that has these objects.
async fn run_check(definition: &Value, objects: Vec<Value>) -> (Result<Action>, Requests) {
    let store = Arc::new(dalsegno_store::sqlite::Sqlite::memory().await.unwrap());
    let TestContext { ctx, requests } = TestContext::new(store, objects);
    (check(Arc::new(serde_json::from_value(definition.clone()).unwrap()), ctx).await, requests)
}

/// Bodies of the requests to this resource.
fn sent(requests: &Requests, resource: &str) -> Vec<Value> {
    let requests = requests.lock().unwrap();
    requests.iter().filter(|(_, path, _)| path.ends_with(resource)).map(|(.., body)| body.clone()).collect()
}

/// Checks the definition and updates it. Returns the reason of its condition, and how often the status was written.
async fn check_and_update(definition: &mut Value, objects: Vec<Value>) -> (String, usize) {
    let (action, requests) = run_check(definition, objects).await;
    assert_eq!(action.unwrap(), Action::requeue(MIN_INTERVAL));
    assert_eq!(sent(&requests, "/pods").len(), 1, "one dry run");
    let mut written = sent(&requests, "/nightly/status");
    let times = written.len();
    if let Some(last) = written.pop() {
        *definition = last;
    }
    (definition["status"]["conditions"][0]["reason"].as_str().unwrap().to_owned(), times)
}

#[tokio::test]
async fn a_template_is_checked_repeatedly_and_its_status_is_written_only_when_it_changes() {
    let mut definition = definition();
    let mut verdict = async |objects| check_and_update(&mut definition, objects).await;
    let expect = |reason: Reason, times| (reason.to_string(), times);
    for times in [1, 0] {
        let policy = refused(422, "a policy refuses it");
        assert_eq!(verdict(policy).await, expect(Reason::TemplateInvalid, times));
    }
    for times in [1, 0] {
        assert_eq!(verdict(vec![]).await, expect(Reason::Accepted, times));
    }
    for times in [1, 0] {
        assert_eq!(verdict(refused(403, "violates PodSecurity")).await, expect(Reason::NotChecked, times));
    }
}

#[tokio::test]
async fn a_fault_of_the_api_server_does_not_change_the_verdict_on_the_same_template() {
    let mut accepted = definition();
    check_and_update(&mut accepted, vec![]).await;
    for code in [429, 500] {
        let (action, requests) = run_check(&accepted, refused(code, "later")).await;
        assert!(action.is_err() && sent(&requests, "/status").is_empty(), "{code}");
    }
    accepted["metadata"]["generation"] = json!(2);
    assert_eq!(check_and_update(&mut accepted, refused(500, "later")).await, ("NotChecked".to_owned(), 1));
}

#[tokio::test]
async fn a_status_write_that_conflicts_is_retried_soon() {
    let store = Arc::new(dalsegno_store::sqlite::Sqlite::memory().await.unwrap());
    for (code, pause) in [(409, Duration::from_secs(1)), (404, MIN_INTERVAL)] {
        let fault = Arc::new(Mutex::new(Some((Method::PUT, "/status", Some(code)))));
        let ctx = TestContext::with_fault(store.clone(), vec![], fault).ctx;
        let definition = serde_json::from_value(definition()).unwrap();
        assert_eq!(check(Arc::new(definition), ctx).await.unwrap(), Action::requeue(pause), "{code}");
    }
}

#[tokio::test]
async fn an_exhausted_quota_or_a_terminating_namespace_does_not_change_an_accepted_template() {
    for why in ["exceeded quota: pods", "unable to create new content because it is being terminated"] {
        let mut accepted = definition();
        check_and_update(&mut accepted, vec![]).await;
        let (action, requests) = run_check(&accepted, refused(403, why)).await;
        assert!(action.is_err() && sent(&requests, "/status").is_empty(), "{why}");
        accepted["metadata"]["generation"] = json!(2);
        assert_eq!(check_and_update(&mut accepted, refused(403, why)).await, ("NotChecked".to_owned(), 1));
        assert_eq!(accepted["status"]["conditions"][0]["message"], why);

        let mut refused_before = definition();
        check_and_update(&mut refused_before, refused(403, "a webhook is unavailable")).await;
        assert_eq!(
            check_and_update(&mut refused_before, refused(403, why)).await,
            ("NotChecked".to_owned(), 1)
        );
        assert_eq!(
            refused_before["status"]["conditions"][0]["message"], why,
            "the reason that there is no pod now"
        );
    }
}

#[tokio::test]
async fn the_dry_run_pod_has_our_additions_and_the_same_name_each_time() {
    let mut definition = definition();
    definition["spec"]["template"]["spec"]["volumes"] = json!([{ "name": "dalsegno", "emptyDir": {} }]);
    let mut tried = Vec::new();
    for _ in 0..2 {
        tried.extend(sent(&run_check(&definition, vec![]).await.1, "/pods"));
    }
    assert_eq!(tried[0], tried[1], "so that refusals are identical");
    assert_eq!(tried[0]["metadata"]["name"], "dry-run-uid-1-1");
    let volumes = &tried[0]["spec"]["volumes"];
    assert_eq!(
        [&volumes[0]["name"], &volumes[1]["name"]],
        ["dalsegno"; 2],
        "the API server rejects the duplicate"
    );
}

#[tokio::test]
async fn a_field_that_this_program_does_not_know_reaches_the_api_server() {
    let mut definition = definition();
    definition["spec"]["template"]["spec"]["futureField"] = json!(1);
    let tried = sent(&run_check(&definition, vec![]).await.1, "/pods");
    assert_eq!(tried[0]["spec"]["futureField"], 1);
}

#[test]
fn a_definition_is_checked_after_a_minute_and_less_often_the_longer_it_is_unchanged() {
    let now = Timestamp::now();
    let after = |seconds: i64| interval(now - jiff::SignedDuration::from_secs(seconds), now).as_secs();
    assert_eq!([-5, 0, 59, 60, 200, 300, 86_400].map(after), [60, 60, 60, 60, 200, 300, 300]);
}

#[tokio::test]
async fn a_panic_in_a_check_is_reported_and_the_definition_waits_until_somebody_changes_it() {
    let store = Arc::new(dalsegno_store::sqlite::Sqlite::memory().await.unwrap());
    let mut ctx = TestContext::new(store, vec![]).ctx;
    let requests = Requests::default();
    let sent_to = requests.clone();
    // The request for a pod panics in the check that sent it.
    let service = tower::service_fn(move |request: axum::http::Request<kube::client::Body>| {
        let requests = sent_to.clone();
        async move {
            let (head, body) = request.into_parts();
            let path = head.uri.path().to_owned();
            let body: Value = serde_json::from_slice(&body.collect_bytes().await.unwrap()).unwrap();
            requests.lock().unwrap().push((head.method, path.clone(), body.clone()));
            assert!(!path.ends_with("/pods"), "no pods today");
            let body = kube::client::Body::from(body.to_string().into_bytes());
            Ok::<_, std::convert::Infallible>(axum::http::Response::new(body))
        }
    });
    Arc::get_mut(&mut ctx).unwrap().client = kube::Client::new(service, "shop");
    let mut definition = definition();
    let check = async |definition: &Value| {
        let definition = Arc::new(serde_json::from_value(definition.clone()).unwrap());
        check_caught(definition, ctx.clone()).await.unwrap()
    };
    assert_eq!(check(&definition).await, Action::requeue(Duration::from_secs(60)));
    let [event] = sent(&requests, "/events").try_into().unwrap();
    assert_eq!(
        (&event["reason"], &event["regarding"]["name"]),
        (&json!("ReconcilePanicked"), &json!("nightly"))
    );
    assert!(event["note"].as_str().unwrap().contains("no pods today"), "{event}");
    check(&definition).await;
    assert_eq!(sent(&requests, "/pods").len(), 1, "it waits");
    definition["metadata"]["generation"] = json!(2);
    assert_eq!(check(&definition).await, Action::requeue(Duration::from_secs(120)));
    assert_eq!(sent(&requests, "/pods").len(), 2);
}
