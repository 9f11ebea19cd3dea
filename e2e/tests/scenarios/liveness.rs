//! Workers that are silent, slow or stuck.

use dalsegno_crds::{Cause, Class, ConditionType, Reason, Summary};
use dalsegno_e2e::StatusExt;
use dalsegno_e2e::wait::{consistently, eventually, secs};
use dalsegno_e2e::{Agent, Result, TestContext};
use serde_json::json;

/// The pod has a long grace period and the worker ignores SIGTERM, so that the worker still exists when it is resumed.
#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_worker_with_heartbeats_is_replaced_and_then_fenced_and_exits() -> Result {
    let ctx = TestContext::new("frozen").await?;
    let agent = Agent::new(json!({ "turns": 20, "turnSeconds": 0.4, "heartbeat": true, "onTerm": "ignore" }))
        .pod(json!({ "terminationGracePeriodSeconds": 120 }))
        .spec(json!({ "liveness": { "heartbeatTimeoutSeconds": 10 } }));
    let run = ctx.start("run", &agent).await?;
    run.wait_for_turn(3).await?;
    let processes = run.processes().await?;
    let frozen = processes.freeze().await?;
    run.wait_for_attempt(2, secs(30)).await?;

    let before = run.notes().await?.len();
    frozen.undo().await?;
    eventually("the old worker to be fenced", secs(20), async || {
        let notes = run.notes().await?;
        let fenced = notes.iter().skip(before).any(|note| note.attempt == 1 && note.note == "fenced");
        Ok(fenced.then_some(()))
    })
    .await?;
    eventually("the old worker to exit", secs(20), async || Ok((!processes.any_alive()).then_some(())))
        .await?;

    let status = run.wait_for_success().await?;
    let end = status.attempt_end(1)?;
    assert_eq!((end.cause, end.class, end.charged), (Cause::Silent, Class::Crash, true));
    run.expect_nothing_lost_or_repeated(20).await?;
    ctx.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_without_heartbeats_may_take_a_minute_for_a_turn() -> Result {
    let ctx = TestContext::new("slow").await?;
    let agent = Agent::new(json!({ "turns": 1, "turnSeconds": 60, "heartbeat": false }))
        .spec(json!({ "liveness": { "heartbeatTimeoutSeconds": 10 } }));
    let run = ctx.start("run", &agent).await?;
    run.wait_for_attempt(1, secs(30)).await?;
    let status = run.wait_for(Summary::Succeeded, secs(90)).await?;
    assert_eq!(status.attempt().number, 1);
    assert_eq!(status.recovery().recovery_attempts, 0);
    run.expect_nothing_lost_or_repeated(1).await?;
    ctx.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_with_heartbeats_but_without_commits_is_replaced_at_its_progress_deadline() -> Result {
    let ctx = TestContext::new("stuck").await?;
    let agent = Agent::new(json!({
        "turns": 6,
        "turnSeconds": 0.2,
        "heartbeat": true,
        "script": [{ "attempt": 1, "turn": 3, "at": "start", "do": "hang" }],
    }))
    .spec(json!({ "liveness": { "progressDeadlineSeconds": 5, "heartbeatTimeoutSeconds": 10 } }));
    let run = ctx.start("run", &agent).await?;
    let status = run.wait_for_success().await?;
    let end = status.attempt_end(1)?;
    assert_eq!((end.cause, end.charged), (Cause::ProgressDeadline, true));
    run.expect_nothing_lost_or_repeated(6).await?;
    ctx.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_never_attaches_is_replaced_uncharged_and_the_run_held_after_three_attempts() -> Result
{
    let ctx = TestContext::new("unattached").await?;
    let agent = Agent::new(json!({ "neverAttach": true }))
        .pod(json!({ "terminationGracePeriodSeconds": 1 }))
        .spec(json!({ "liveness": { "startDeadlineSeconds": 5 } }));
    let run = ctx.start("run", &agent).await?;
    let status = run.wait_for(Summary::Held, secs(90)).await?;
    assert_eq!(status.reason, Some(Reason::CannotStart));
    assert_eq!(status.causes(), [Cause::StartDeadline; 3]);
    assert_eq!(status.recovery().recovery_attempts, 0);
    consistently("no further pod", secs(3), async || ctx.audit.expect_pods(&run.name, 1..=3)).await?;
    ctx.end().await
}

/// The start deadline begins when the pod is scheduled.
#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_waits_for_a_node_is_not_replaced() -> Result {
    let ctx = TestContext::new("unscheduled").await?;
    let agent = Agent::new(json!({ "turns": 2, "turnSeconds": 0.1 }))
        .pod(json!({ "nodeSelector": { "e2e-node-of": ctx.namespace } }))
        .spec(json!({ "liveness": { "startDeadlineSeconds": 5 } }));
    let run = ctx.start("run", &agent).await?;
    run.wait_for(Summary::Pending, secs(30)).await?;
    consistently("one waiting pod", secs(10), async || ctx.audit.expect_pods(&run.name, [1])).await?;
    let (reason, _) = run.status().await?.reason_and_message(ConditionType::WorkerReady);
    assert_eq!(reason, Reason::Unschedulable.as_str());

    let label = format!("e2e-node-of={}", ctx.namespace);
    let node = dalsegno_e2e::cluster::SAFE_NODE;
    dalsegno_e2e::process::kubectl(["label", "node", node, &label]).await?;
    let ended = run.wait_for_success().await;
    dalsegno_e2e::process::kubectl(["label", "node", node, "e2e-node-of-"]).await?;
    assert_eq!(ended?.attempt().number, 1);
    ctx.end().await
}
