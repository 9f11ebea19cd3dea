//! The end of a run, and ends of a worker that are not the end of the run.

use dalsegno_crds::{Cause, ConditionType, Reason, RunOutcome, Summary};
use dalsegno_e2e::StatusExt;
use dalsegno_e2e::wait::{consistently, secs};
use dalsegno_e2e::{Agent, Result, Run, TestContext};
use serde_json::json;

/// Checks that the run succeeds in its first attempt and gets no second pod.
async fn expect_final_success(ctx: &TestContext, run: &Run<'_>, turns: i32) -> Result {
    let status = run.wait_for_success().await?;
    assert!(status.is_true(ConditionType::Finished) && status.is_true(ConditionType::Succeeded));
    assert_eq!(status.result.as_ref().map(|result| result.outcome), Some(RunOutcome::Succeeded));
    assert!(status.completion_time.is_some());
    consistently("no second pod", secs(4), async || ctx.audit.expect_pods(&run.name, [1])).await?;
    assert_eq!(run.status().await?.recovery().recovery_attempts, 0);
    run.expect_nothing_lost_or_repeated(turns).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_succeeds_if_the_answer_to_its_finishing_commit_is_lost() -> Result {
    let ctx = TestContext::new("lost-answer").await?;
    let agent = Agent::new(json!({
        "turns": 5,
        "turnSeconds": 0.2,
        "script": [{ "attempt": 1, "turn": 5, "at": "beforeCommit", "do": "loseAnswer" }],
    }));
    let run = ctx.start("run", &agent).await?;
    expect_final_success(&ctx, &run, 5).await?;
    ctx.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_ends_before_the_operator_sees_its_pod_succeeds() -> Result {
    let ctx = TestContext::new("brief").await?;
    let run = ctx.start("run", &Agent::new(json!({ "turns": 1, "turnSeconds": 0 }))).await?;
    expect_final_success(&ctx, &run, 1).await?;
    ctx.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_succeeds_if_its_worker_exits_1_after_the_finish() -> Result {
    let ctx = TestContext::new("exit-after").await?;
    let agent = Agent::new(json!({
        "turns": 4,
        "turnSeconds": 0.2,
        "script": [{ "attempt": 1, "turn": 4, "at": "afterCommit", "do": "exit:1" }],
    }));
    let run = ctx.start("run", &agent).await?;
    expect_final_success(&ctx, &run, 4).await?;
    ctx.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_finish_in_a_separate_call_ends_the_run() -> Result {
    let ctx = TestContext::new("separate").await?;
    let agent = Agent::new(json!({ "turns": 4, "turnSeconds": 0.2, "finishSeparately": true }));
    let run = ctx.start("run", &agent).await?;
    expect_final_success(&ctx, &run, 4).await?;
    ctx.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_whose_agent_finishes_as_failed_is_not_retried() -> Result {
    let ctx = TestContext::new("gives-up").await?;
    let agent = Agent::new(json!({ "turns": 3, "turnSeconds": 0.2, "finishOutcome": "failed" }));
    let run = ctx.start("run", &agent).await?;
    let status = run.wait_for(Summary::Failed, secs(60)).await?;
    assert_eq!(status.reason, Some(Reason::AgentFailed));
    assert!(status.is_true(ConditionType::Finished) && !status.is_true(ConditionType::Succeeded));
    consistently("no second pod", secs(4), async || ctx.audit.expect_pods(&run.name, [1])).await?;
    ctx.end().await
}

/// The operator deletes a pod that still runs 30 s after the finish.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_hangs_after_its_finish_is_deleted_and_the_run_stays_succeeded() -> Result {
    let ctx = TestContext::new("hangs-after").await?;
    let agent = Agent::new(json!({
        "turns": 3,
        "turnSeconds": 0.2,
        // The answer to a heartbeat would end the worker.
        "heartbeat": false,
        "script": [{ "attempt": 1, "turn": 3, "at": "afterCommit", "do": "hang" }],
    }));
    let run = ctx.start("run", &agent).await?;
    run.wait_for_success().await?;
    for hanging in run.pods().await? {
        run.wait_for_end_of(&hanging, secs(60)).await?;
    }
    assert_eq!(run.status().await?.summary, Some(Summary::Succeeded));
    run.expect_nothing_lost_or_repeated(3).await?;
    ctx.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_exits_0_without_an_attach_is_charged_and_the_message_names_the_contract() -> Result {
    let ctx = TestContext::new("never-attached").await?;
    let agent = Agent::new(json!({ "neverAttach": true, "script": [{ "at": "start", "do": "exit:0" }] }))
        .spec(json!({ "recovery": { "maxAttemptsWithoutProgress": 2 } }));
    let run = ctx.start("run", &agent).await?;
    let status = run.wait_for(Summary::Held, secs(60)).await?;
    assert_eq!(status.reason, Some(Reason::RecoveryLoop));
    assert_eq!(status.causes(), [Cause::NeverAttached, Cause::NeverAttached]);
    let (_, message) = status.reason_and_message(ConditionType::Held);
    assert!(message.contains("docs/reference/contract.md"), "{message}");
    ctx.audit.expect_pods(&run.name, 1..=2)?;
    ctx.end().await
}
