//! Workers that lie, stammer or flood: what the gateway answers them. The story plays them; the pods keep still.

use dalsegno_e2e::StatusExt;
use dalsegno_e2e::flood::{Length, flood};
use dalsegno_e2e::objects;
use dalsegno_e2e::worker::{self, Worker, commit};
use dalsegno_e2e::{Agent, Result, Run, TestContext};
use dalsegno_protocol::{AUDIENCE, Code, CommitResponse, CommitResult, Decision};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use serde_json::json;

async fn mute<'c>(ctx: &'c TestContext, name: &str) -> Result<Run<'c>> {
    ctx.start(name, &Agent::new(json!({ "neverAttach": true }))).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_of_another_pod_run_namespace_or_audience_does_not_attach() -> Result {
    let ctx = TestContext::new("tokens").await?;
    let elsewhere = TestContext::new("tokens-elsewhere").await?;
    let (run, other, foreign) =
        (mute(&ctx, "run").await?, mute(&ctx, "other").await?, mute(&elsewhere, "run").await?);
    let pod = run.pod().await?;
    let mut worker = Worker::for_pod(&ctx.client, &pod).await?;
    let right = worker.token.clone();

    worker.token = worker::token(&ctx.client, &pod, "https://kubernetes.default.svc.cluster.local").await?;
    assert_eq!(worker.attach().await?.problem()?.code, Code::Unauthenticated, "another audience");
    worker.token = "nonsense".to_owned();
    assert_eq!(worker.attach().await?.problem()?.code, Code::Unauthenticated, "no token at all");
    worker.token = worker::token(&ctx.client, &other.pod().await?, AUDIENCE).await?;
    assert_eq!(worker.attach().await?.problem()?.code, Code::Fenced, "a pod of another run");
    worker.token = worker::token(&elsewhere.client, &foreign.pod().await?, AUDIENCE).await?;
    assert_eq!(worker.attach().await?.problem()?.code, Code::Forbidden, "a pod of another namespace");
    let look_alike = look_alike(&ctx, &pod).await?;
    worker.token = worker::token(&ctx.client, &look_alike, AUDIENCE).await?;
    assert_eq!(worker.attach().await?.problem()?.code, Code::Fenced, "a pod that only looks like the run's");

    worker.token = right;
    assert_eq!(
        worker.attach_when_ready().await?.decision,
        Decision::Fresh,
        "the right one is heard all the same"
    );
    assert_eq!(run.status().await?.attempt().number, 1);
    elsewhere.end().await?;
    ctx.end().await
}

/// A pod with the labels and annotations of the run's own, made by somebody else.
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
    let run = mute(&ctx, "run").await?;
    let worker = Worker::for_pod(&ctx.client, &run.pod().await?).await?;
    worker.attach_when_ready().await?;
    let stranger = worker.with_new_instance();
    assert_eq!(stranger.commit(1, json!({})).await?.problem()?.code, Code::Fenced);
    let bearer_of_attach = Worker { instance: worker.token.clone(), ..worker.clone() };
    assert_eq!(bearer_of_attach.commit(1, json!({})).await?.problem()?.code, Code::Unauthenticated);
    assert_eq!(worker.commit(1, json!({})).await?.status, 200);
    ctx.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_process_of_the_same_pod_is_refused_and_the_attempt_has_crashed() -> Result {
    let ctx = TestContext::new("second-process").await?;
    let run = mute(&ctx, "run").await?;
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
async fn the_same_turn_again_is_a_duplicate_with_the_same_bytes_and_a_conflict_with_others() -> Result {
    let ctx = TestContext::new("turns").await?;
    let run = mute(&ctx, "run").await?;
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
    assert_eq!(worker.commit(2, json!({ "n": 2 })).await?.status, 200, "the next one is taken all the same");
    ctx.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_is_no_request_is_refused_and_costs_nobody_else_anything() -> Result {
    let ctx = TestContext::new("bodies").await?;
    let run = mute(&ctx, "run").await?;
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
    assert_eq!(ctx.operator.restarts().await?, 0, "the gateway should have come through it");
    ctx.end().await
}
