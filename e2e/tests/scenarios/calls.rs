//! Tool calls with an unknown outcome.

use dalsegno_crds::{ConditionType, Reason, Summary};
use dalsegno_e2e::wait::{consistently, secs};
use dalsegno_e2e::worker::Worker;
use dalsegno_e2e::{Agent, Result, StatusExt, TestContext, operator, process};
use dalsegno_protocol::Code;
use kube::api::DeleteParams;
use serde_json::json;

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_call_with_policy_ask_holds_the_run_before_the_next_pod_until_a_person_settles_it()
-> Result {
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
    let shown = message.split('`').find(|it| it.contains(" /dalsegno settle "));
    let shown = shown.ok_or_else(|| anyhow::anyhow!("the message should have a command: {message}"))?;
    consistently("no pod after the first", secs(3), async || ctx.audit.expect_pods(&run.name, [1])).await?;

    let listed = operator::run(&["show", &run.key(), "--calls"]).await?;
    assert!(listed.contains("turn-3"), "the call should be listed by its id:\n{listed}");
    let waits = listed.lines().nth(1).unwrap_or_default();
    assert!(waits.starts_with("held") && waits.contains(shown), "why it waits should come first:\n{listed}");
    // As a person pastes it, in a shell.
    let pasted = format!("USER=tester; {}", shown.replace("--outcome completed", "--outcome failed"));
    process::run("sh", ["-c", &pasted]).await?;
    let status = run.wait_for_success().await?;
    assert_eq!(status.attempt().number, 2);
    run.expect_nothing_lost_or_repeated(5).await?;
    ctx.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_key_holds_the_run_until_a_person_settles_the_call() -> Result {
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
    assert!(message.contains("dalsegno settle"), "the message should name the remedy: {message}");
    consistently("no pod after the first", secs(3), async || ctx.audit.expect_pods(&run.name, [1])).await?;

    let listed = operator::run(&["show", &run.key(), "--calls"]).await?;
    assert!(listed.contains("keyRefused") && listed.contains("settle"), "{listed}");
    let reason = ["--outcome", "completed", "--reason", "it is in the ledger", "--by", "a test"];
    operator::run(&[&["settle", &run.key(), "pay"], &reason[..]].concat()).await?;
    run.wait_until("to take the next attempt", secs(60), |status| status.summary != Some(Summary::Held))
        .await?;
    ctx.end().await
}

/// The tool took effect, and the worker died before it could record the result.
#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_call_with_policy_probe_is_settled_by_the_next_attempt_and_not_repeated() -> Result {
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
        "a probed call should not be repeated: {entries:?}"
    );
    ctx.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_call_with_policy_retry_same_key_is_repeated_and_takes_effect_once() -> Result {
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
    let repeated: Vec<_> =
        entries.iter().filter(|entry| entry.deliveries == 2).map(|entry| entry.turn).collect();
    assert_eq!(repeated, [3], "{entries:?}");
    ctx.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_can_be_shown_from_the_store_after_its_pod_and_its_object_are_deleted() -> Result {
    let ctx = TestContext::new("show").await?;
    let run = ctx.start("run", &Agent::new(json!({ "turns": 4, "turnSeconds": 0.1 }))).await?;
    run.wait_for_success().await?;
    let is_complete = |shown: &str| ["turn-4", "sha256:"].iter().all(|text| shown.contains(text));
    let shown = operator::run(&["show", &run.key(), "--turn", "4", "--calls"]).await?;
    assert!(is_complete(&shown), "{shown}");
    run.delete(secs(30)).await?;
    let shown = operator::run(&["show", &run.key(), "--turn", "4", "--calls"]).await?;
    assert!(is_complete(&shown), "{shown}");
    assert!(operator::run(&["show", &format!("{}/no-such-run", ctx.namespace)]).await.is_err());
    ctx.end().await
}
