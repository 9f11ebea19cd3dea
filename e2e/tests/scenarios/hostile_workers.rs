//! Workers that send forged, repeated or oversized requests. The test plays the worker; the agent in the pod does not
//! attach.

use dalsegno_e2e::StatusExt;
use dalsegno_e2e::flood::{Length, flood};
use dalsegno_e2e::objects;
use dalsegno_e2e::worker::{self, Worker, commit};
use dalsegno_e2e::{Agent, Result, Run, TestContext};
use dalsegno_protocol::{AUDIENCE, Code, CommitResponse, CommitResult, Decision};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use serde_json::json;

/// Starts a run whose agent never attaches, so that the test can play the worker.
async fn start_idle<'c>(ctx: &'c TestContext, name: &str) -> Result<Run<'c>> {
    ctx.start(name, &Agent::new(json!({ "neverAttach": true }))).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_of_another_pod_run_namespace_or_audience_does_not_attach() -> Result {
    let ctx = TestContext::new("tokens").await?;
    let elsewhere = TestContext::new("tokens-elsewhere").await?;
    let (run, other, foreign) = (
        start_idle(&ctx, "run").await?,
        start_idle(&ctx, "other").await?,
        start_idle(&elsewhere, "run").await?,
    );
    let pod = run.pod().await?;
    let mut worker = Worker::for_pod(&ctx.client, &pod).await?;
    let valid_token = worker.token.clone();

    worker.token = worker::token(&ctx.client, &pod, "https://kubernetes.default.svc.cluster.local").await?;
    assert_eq!(worker.attach().await?.problem()?.code, Code::Unauthenticated, "another audience");
    worker.token = "nonsense".to_owned();
    assert_eq!(worker.attach().await?.problem()?.code, Code::Unauthenticated, "not a token");
    worker.token = worker::token(&ctx.client, &other.pod().await?, AUDIENCE).await?;
    assert_eq!(worker.attach().await?.problem()?.code, Code::Fenced, "a pod of another run");
    worker.token = worker::token(&elsewhere.client, &foreign.pod().await?, AUDIENCE).await?;
    assert_eq!(worker.attach().await?.problem()?.code, Code::Forbidden, "a pod of another namespace");
    let look_alike = look_alike(&ctx, &pod).await?;
    worker.token = worker::token(&ctx.client, &look_alike, AUDIENCE).await?;
    assert_eq!(
        worker.attach().await?.problem()?.code,
        Code::Fenced,
        "a pod that only looks like the run's pod"
    );

    worker.token = valid_token;
    assert_eq!(
        worker.attach_when_ready().await?.decision,
        Decision::Fresh,
        "the valid token should still be accepted"
    );
    assert_eq!(run.status().await?.attempt().number, 1);
    elsewhere.end().await?;
    ctx.end().await
}

/// Creates a pod that has the labels and annotations of the run's pod but is not owned by the run.
async fn look_alike(ctx: &TestContext, pod: &Pod) -> Result<Pod> {
    let manifest = json!({
        "metadata": {
            "name": format!("{}-twin", pod.name_any()),
            "labels": pod.labels(),
            "annotations": pod.annotations(),
        },
        "spec": { "containers": [{
            "name": "agent",
            "image": dalsegno_e2e::agent::IMAGE,
            "command": ["/no-such-program"],
        }] },
    });
    let twin = objects::create::<Pod>(&ctx.client, &ctx.namespace, manifest).await?;
    Ok(serde_json::from_value(serde_json::to_value(twin)?)?)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_without_the_capability_of_the_attached_process_is_refused() -> Result {
    let ctx = TestContext::new("capability").await?;
    let run = start_idle(&ctx, "run").await?;
    let worker = Worker::for_pod(&ctx.client, &run.pod().await?).await?;
    worker.attach_when_ready().await?;
    let other_process = worker.with_new_instance();
    assert_eq!(other_process.commit(1, json!({})).await?.problem()?.code, Code::Fenced);
    let with_pod_token = Worker { instance: worker.token.clone(), ..worker.clone() };
    assert_eq!(with_pod_token.commit(1, json!({})).await?.problem()?.code, Code::Unauthenticated);
    assert_eq!(worker.commit(1, json!({})).await?.status, 200);
    ctx.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_process_of_the_same_pod_is_refused_and_ends_the_attempt_as_a_crash() -> Result {
    let ctx = TestContext::new("second-process").await?;
    let run = start_idle(&ctx, "run").await?;
    let worker = Worker::for_pod(&ctx.client, &run.pod().await?).await?;
    worker.attach_when_ready().await?;
    worker.attach_when_ready().await?;
    assert_eq!(worker.with_new_instance().attach().await?.problem()?.code, Code::AttemptSpent);
    let limit = dalsegno_e2e::wait::secs(30);
    let status =
        run.wait_until("to take the next attempt", limit, |status| status.attempt().number == 2).await?;
    let end = status.attempt_end(1)?;
    assert_eq!((end.cause, end.charged), (dalsegno_crds::Cause::ProcessRestarted, true));
    assert_eq!(worker.commit(1, json!({})).await?.problem()?.code, Code::Fenced);
    ctx.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_turn_is_a_duplicate_with_the_same_bytes_and_a_conflict_with_other_bytes() -> Result {
    let ctx = TestContext::new("turns").await?;
    let run = start_idle(&ctx, "run").await?;
    let worker = Worker::for_pod(&ctx.client, &run.pod().await?).await?;
    worker.attach_when_ready().await?;
    let one = commit(json!({ "n": 1 })).to_string();
    let first: CommitResponse = worker.send("turns/1", one.clone()).await?.json()?;
    let again: CommitResponse = worker.send("turns/1", one.clone()).await?.json()?;
    assert_eq!((first.result, again.result), (CommitResult::Ok, CommitResult::Duplicate));
    assert_eq!(first.head, again.head);

    let other_bytes = one.replace("\"n\":1", "\"n\":2");
    assert_ne!(one, other_bytes);
    assert_eq!(
        worker.send("turns/1", other_bytes).await?.problem()?.code,
        Code::Conflict,
        "same id, other bytes"
    );
    assert_eq!(worker.commit(1, json!({ "n": 1 })).await?.problem()?.code, Code::Conflict, "another id");
    assert_eq!(worker.commit(3, json!({})).await?.problem()?.code, Code::Conflict, "turn n+2");
    assert_eq!(worker.commit(-1, json!({})).await?.problem()?.code, Code::Invalid, "turn -1");
    assert_eq!(worker.commit(0, json!({})).await?.problem()?.code, Code::Invalid, "turn 0");
    assert_eq!(
        worker.commit(2, json!({ "n": 2 })).await?.status,
        200,
        "the next turn should still be accepted"
    );
    ctx.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invalid_or_oversized_body_is_refused_and_the_gateway_keeps_working() -> Result {
    let ctx = TestContext::new("bodies").await?;
    let run = start_idle(&ctx, "run").await?;
    let worker = Worker::for_pod(&ctx.client, &run.pod().await?).await?;
    worker.attach_when_ready().await?;
    for malformed in ["", "{", "nonsense", "[]", "{\"commitId\":\"1\"}", "{\"commitId\":\"\\ud800\"}"] {
        let answer = worker.send("turns/1", malformed).await?;
        assert_eq!(answer.problem()?.code, Code::Invalid, "{malformed}");
    }
    let mut unknown = commit(json!({}));
    objects::merge(&mut unknown, &json!({ "stat": {} }));
    let refused = worker.send("turns/1", unknown.to_string()).await?.problem()?;
    assert_eq!(refused.code, Code::Invalid);
    assert!(refused.detail.contains("stat"), "{refused:?}");

    let id = uuid::Uuid::new_v4();
    let deep = format!("{{\"commitId\":\"{id}\",\"state\":{}{}}}", "[".repeat(100_000), "]".repeat(100_000));
    assert_eq!(worker.send("turns/1", deep).await?.problem()?.code, Code::Invalid);
    for length in [Length::Declared, Length::Chunked] {
        let answer = flood(&worker, "turns/1", 1 << 30, length).await?;
        assert_eq!(answer.status, 413, "{length:?}: {answer:?}");
    }
    assert_eq!(worker.commit(1, json!({})).await?.status, 200);
    assert_eq!(ctx.operator.restarts().await?, 0, "the gateway should not have been restarted");
    ctx.end().await
}
