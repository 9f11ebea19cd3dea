//! Tool calls whose outcome nobody knows.

use dalsegno_crds::{ConditionType, Reason, Summary};
use dalsegno_e2e::wait::{consistently, secs};
use dalsegno_e2e::worker::Worker;
use dalsegno_e2e::{Agent, Result, StatusExt, TestContext, operator};
use dalsegno_protocol::Code;
use kube::api::DeleteParams;
use serde_json::json;

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_only_a_person_can_judge_holds_the_run_before_any_pod_until_somebody_settles_it() -> Result
{
    let ctx = TestContext::new("ask").await?;
    let agent = Agent::new(json!({
        "turns": 5,
        "turnSeconds": 0.2,
        "callPolicy": "ask",
        "script": [{ "attempt": 1, "turn": 3, "at": "afterClaim", "do": "exit:1" }],
    }));
    let run = ctx.start("run", &agent).await?;
    let status = run.wait_for(Summary::Held, secs(60)).await?;
    assert_eq!(status.reason, Some(Reason::EffectUnknown));
    let (_, message) = status.reason_and_message(ConditionType::Held);
    assert!(message.contains("dalsegno settle"), "it should tell the way out: {message}");
    consistently("no pod after the first", secs(3), async || ctx.audit.expect_pods(&run.name, [1])).await?;

    let listed = operator::run(&["show", &run.key(), "--calls"]).await?;
    assert!(listed.contains("turn-3"), "the call should be listed by its name:\n{listed}");
    let reason = ["--outcome", "failed", "--reason", "it is not in the ledger", "--by", "a story"];
    operator::run(&[&["settle", &run.key(), "turn-3"], &reason[..]].concat()).await?;
    let status = run.wait_for_success().await?;
    assert_eq!(status.attempt().number, 2);
    run.expect_nothing_lost_or_repeated(5).await?;
    ctx.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_the_tool_refused_holds_the_run_until_a_person_says_how_the_call_ended() -> Result {
    let ctx = TestContext::new("refused-key").await?;
    let run = ctx.start("run", &Agent::new(json!({ "neverAttach": true }))).await?;
    let worker = Worker::for_pod(&ctx.client, &run.pod().await?).await?;
    worker.attach_when_ready().await?;
    let claim = json!({ "claimId": uuid::Uuid::from_u128(1), "policy": "retrySameKey", "key": "k-1" });
    assert_eq!(worker.post("calls/pay/claim", claim).await?.status, 200);
    let refused =
        json!({ "claimId": uuid::Uuid::from_u128(1), "outcome": "keyRefused", "result": { "status": 422 } });
    assert_eq!(worker.post("calls/pay/complete", refused).await?.status, 200);
    assert_eq!(worker.commit(1, json!({})).await?.problem()?.code, Code::UnsettledCalls);
    run.delete_pod(&DeleteParams::default()).await?;
    let status = run.wait_for(Summary::Held, secs(60)).await?;
    assert_eq!(status.reason, Some(Reason::KeyRefused));
    let (_, message) = status.reason_and_message(ConditionType::Held);
    assert!(message.contains("dalsegno settle"), "it should tell the way out: {message}");
    consistently("no pod after the first", secs(3), async || ctx.audit.expect_pods(&run.name, [1])).await?;

    let listed = operator::run(&["show", &run.key(), "--calls"]).await?;
    assert!(listed.contains("keyRefused") && listed.contains("a person must settle it"), "{listed}");
    let reason = ["--outcome", "completed", "--reason", "it is in the ledger", "--by", "a story"];
    operator::run(&[&["settle", &run.key(), "pay"], &reason[..]].concat()).await?;
    run.wait_until("to take the next attempt", secs(60), |status| status.summary != Some(Summary::Held))
        .await?;
    ctx.end().await
}

/// The tool did it, and the worker died before it could say so.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_the_worker_can_look_up_is_settled_by_the_next_attempt_and_not_made_again() -> Result {
    let ctx = TestContext::new("probe").await?;
    let agent = Agent::new(json!({
        "turns": 5,
        "turnSeconds": 0.2,
        "callPolicy": "probe",
        "script": [{ "attempt": 1, "turn": 3, "at": "afterTool", "do": "exit:1" }],
    }));
    let run = ctx.start("run", &agent).await?;
    assert_eq!(run.wait_for_success().await?.attempt().number, 2);
    run.expect_nothing_lost_or_repeated(5).await?;
    let entries = ctx.ledger.entries(&run.key()).await?;
    assert!(
        entries.iter().all(|entry| entry.deliveries == 1),
        "a probed call is not made again: {entries:?}"
    );
    ctx.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_whose_tool_honours_its_key_is_made_again_with_the_same_one_and_takes_effect_once() -> Result {
    let ctx = TestContext::new("same-key").await?;
    let agent = Agent::new(json!({
        "turns": 5,
        "turnSeconds": 0.2,
        "script": [{ "attempt": 1, "turn": 3, "at": "afterTool", "do": "exit:1" }],
    }));
    let run = ctx.start("run", &agent).await?;
    assert_eq!(run.wait_for_success().await?.attempt().number, 2);
    run.expect_nothing_lost_or_repeated(5).await?;
    let entries = ctx.ledger.entries(&run.key()).await?;
    let again: Vec<_> =
        entries.iter().filter(|entry| entry.deliveries == 2).map(|entry| entry.turn).collect();
    assert_eq!(again, [3], "{entries:?}");
    ctx.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_can_be_read_from_the_store_when_its_pod_and_its_object_are_gone() -> Result {
    let ctx = TestContext::new("show").await?;
    let run = ctx.start("run", &Agent::new(json!({ "turns": 4, "turnSeconds": 0.1 }))).await?;
    run.wait_for_success().await?;
    let told = |shown: &str| ["turn-4", "sha256:"].iter().all(|word| shown.contains(word));
    let shown = operator::run(&["show", &run.key(), "--turn", "4", "--calls"]).await?;
    assert!(told(&shown), "{shown}");
    run.delete(secs(30)).await?;
    let shown = operator::run(&["show", &run.key(), "--turn", "4", "--calls"]).await?;
    assert!(told(&shown), "{shown}");
    assert!(operator::run(&["show", &format!("{}/no-such-run", ctx.namespace)]).await.is_err());
    ctx.end().await
}
