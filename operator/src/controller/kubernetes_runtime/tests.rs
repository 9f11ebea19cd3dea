#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use dalsegno_core::CaBundle;
use dalsegno_crds::{Cause, Summary};
use jiff::SignedDuration;
use serde_json::json;

use super::*;
use crate::certificates::bundle::GatewayTrust;
use crate::controller::reconcile::reconcile;
use crate::test_context::TestContext;

fn run(name: &str) -> AgentRun {
    let template = json!({ "spec": { "containers": [{ "name": "agent", "image": "agent" }] } });
    let run = json!({
        "apiVersion": "dalsegno.dev/v1alpha1", "kind": "AgentRun",
        "metadata": { "name": name, "namespace": "shop", "uid": name },
        "spec": { "agent": { "template": template } },
    });
    serde_json::from_value(run).unwrap()
}

#[tokio::test]
async fn of_the_runs_that_a_quota_refuses_one_tries_again_and_the_others_write_nothing() {
    let namespace = json!({ "metadata": { "name": "shop", "uid": "uid-of-shop" } });
    let refusal = json!({ "kind": "Status", "status": "Failure", "code": 403, "reason": "Forbidden",
                          "message": "exceeded quota: runs, used: pods=9", "details": { "kind": "pods" } });
    let store = Arc::new(dalsegno_store::sqlite::Sqlite::memory().await.unwrap());
    let TestContext { ctx, requests } = TestContext::new(store, vec![namespace, refusal]);
    let mut runs: Vec<AgentRun> = (0..20).map(|it| run(&format!("run-{it}"))).collect();
    let tries = || {
        let requests = requests.lock().unwrap();
        requests.iter().filter(|(method, path, _)| method == "POST" && path.ends_with("/pods")).count()
    };
    // The next try is refused too. The pause after it lasts an hour, so no run tries again during this test.
    let prolong_pause = || {
        let now = Timestamp::now();
        assert!(ctx.quotas.may_try("shop", now + SignedDuration::from_secs(3)));
        let later = now + SignedDuration::from_hours(1);
        let refused = PodCreateError::first(403, "exceeded quota: runs, used: pods=9", String::new(), later);
        ctx.quotas.refused(&RunKey { namespace: "shop".into(), name: "run-0".into() }, &refused);
    };
    let mut requeues = Vec::new();
    for run in &mut runs {
        requeues.push(reconcile(run, ctx.as_ref()).await.unwrap());
        if requeues.len() == 1 {
            prolong_pause();
        }
        let requests = requests.lock().unwrap();
        let (.., written) = requests.iter().rfind(|(_, path, _)| path.ends_with("/status")).unwrap();
        run.status = serde_json::from_value(written["status"].clone()).unwrap();
        assert_eq!(run.status.as_ref().unwrap().reason, Some(Reason::QuotaExceeded));
    }
    assert_eq!(tries(), 1);
    assert!(requeues[0].is_some(), "the first one tries again");
    assert!(requeues[1..].iter().all(Option::is_none), "the others are woken: {requeues:?}");

    let before = requests.lock().unwrap().len();
    for run in &runs[1..] {
        assert_eq!(reconcile(run, ctx.as_ref()).await.unwrap(), None);
    }
    assert_eq!(requests.lock().unwrap().len(), before, "a run that waits costs no request");
}

/// A pod with the name of this attempt's pod. Its owner is a deleted AgentRun with this name.
fn existing_pod(number: i32, owner: &str) -> Value {
    let owner = json!({ "apiVersion": "dalsegno.dev/v1alpha1", "kind": "AgentRun", "name": owner,
                        "uid": "deleted", "controller": true });
    json!({ "kind": "Pod",
            "metadata": { "name": format!("nightly-{number}"), "uid": format!("old-{number}"),
                          "ownerReferences": [owner] } })
}

/// Reconciles the run once. Returns the names of the pods that were created, and the written status.
async fn reconcile_among(pods: Vec<Value>) -> (Vec<String>, AgentRunStatus) {
    let namespace = json!({ "metadata": { "name": "shop", "uid": "uid-of-shop" } });
    let store = Arc::new(dalsegno_store::sqlite::Sqlite::memory().await.unwrap());
    let objects = [vec![namespace], pods.clone()].concat();
    let TestContext { ctx, requests } = TestContext::new(store, objects);
    reconcile(&run("nightly"), ctx.as_ref()).await.unwrap();
    let requests = requests.lock().unwrap();
    let taken = |name: &Value| pods.iter().any(|it| it["metadata"]["name"] == *name);
    let created = requests.iter().filter(|(method, path, body)| {
        method == "POST" && path.ends_with("/pods") && !taken(&body["metadata"]["name"])
    });
    let created = created.map(|(.., body)| body["metadata"]["name"].as_str().unwrap().to_owned()).collect();
    let (.., written) = requests.iter().rfind(|(_, path, _)| path.ends_with("/status")).unwrap();
    (created, serde_json::from_value(written["status"].clone()).unwrap())
}

#[tokio::test]
async fn a_run_that_was_deleted_and_created_again_25_times_passes_over_the_pods_that_still_exist() {
    let (created, status) = reconcile_among((1..=25).map(|it| existing_pod(it, "nightly")).collect()).await;
    assert_eq!(created, ["nightly-26"]);
    let recovery = status.recovery.unwrap();
    assert_eq!((status.summary, recovery.recovery_attempts), (Some(Summary::Pending), 0));
    assert!(recovery.history.iter().all(|it| it.cause == Cause::NameInUse), "{:?}", recovery.history);
}

#[tokio::test]
async fn a_run_whose_names_strangers_have_is_held_and_says_when_it_tries_again() {
    let (created, status) = reconcile_among((1..=25).map(|it| existing_pod(it, "daily")).collect()).await;
    assert_eq!(created, [""; 0]);
    assert_eq!((status.summary, status.reason), (Some(Summary::Held), Some(Reason::NameCollision)));
    assert!(status.recovery.unwrap().next_attempt_time.is_some());
}

#[tokio::test]
async fn an_existing_pod_without_the_nonce_of_the_attempt_is_a_strangers() {
    let existing = |nonce: &str| {
        let owner = json!({ "apiVersion": "dalsegno.dev/v1alpha1", "kind": "AgentRun", "name": "nightly",
                            "uid": "nightly", "controller": true });
        json!({ "metadata": { "name": "nightly-1", "uid": "pod", "ownerReferences": [owner],
                              "annotations": { names::ANNOTATION_NONCE: nonce } } })
    };
    let exists = json!({ "kind": "Status", "status": "Failure", "code": 409, "reason": "AlreadyExists",
                         "message": "it exists", "details": { "kind": "pods" } });
    for (nonce, is_ours) in [("n-1", true), ("n-2", false)] {
        let store = Arc::new(dalsegno_store::sqlite::Sqlite::memory().await.unwrap());
        let ctx = TestContext::new(store, vec![existing(nonce), exists.clone()]).ctx;
        let pod = json!({ "metadata": { "name": "nightly-1",
                                        "annotations": { names::ANNOTATION_NONCE: "n-1" } } });
        let result = ctx.create_worker(&run("nightly"), pod, "sha256:aa".into()).await.unwrap();
        match (result, is_ours) {
            (EffectResult::Pod(_), true) | (EffectResult::NameTaken(NameHolder::AnotherOwner), false) => {}
            (other, _) => panic!("{nonce}: {other:?}"),
        }
    }
}

/// The CA may become known between the decision and the pod's creation.
#[tokio::test]
async fn no_pod_is_created_without_the_ca_of_the_gateway_even_if_it_is_known_by_now() {
    let store = Arc::new(dalsegno_store::sqlite::Sqlite::memory().await.unwrap());
    let TestContext { mut ctx, requests } = TestContext::new(store, Vec::new());
    let gateway = GatewayTrust::new("https://gateway");
    gateway.set(CaBundle { pem: "a certificate".into(), ids: "aa".into() });
    Arc::get_mut(&mut ctx).unwrap().gateway = gateway;
    let pod = |annotations: Value| json!({ "metadata": { "name": "nightly-1", "annotations": annotations } });
    let refused = ctx.create_worker(&run("nightly"), pod(json!({})), "sha256:aa".into()).await;
    assert!(matches!(refused, Err(Error::NoCa)), "{refused:?}");
    assert!(requests.lock().unwrap().is_empty());
    let with_ca = pod(json!({ names::ANNOTATION_CA: "a certificate" }));
    ctx.create_worker(&run("nightly"), with_ca, "sha256:aa".into()).await.unwrap();
}
