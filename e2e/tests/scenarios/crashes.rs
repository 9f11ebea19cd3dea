//! Crashes: the agent caused the death, so it is charged, with the cause that the evidence shows.

use dalsegno_crds::{Cause, Class, Summary};
use dalsegno_e2e::StatusExt;
use dalsegno_e2e::wait::secs;
use dalsegno_e2e::{Agent, Result, TestContext};
use serde_json::json;

/// The first attempt performs `action` in turn 4. The run must be charged once and resumed.
async fn crashes_once(test: &str, action: &str, cause: Cause, exit_code: Option<i32>) -> Result {
    let ctx = TestContext::new(test).await?;
    let agent = Agent::new(json!({
        "turns": 8,
        "turnSeconds": 0.2,
        "script": [{ "attempt": 1, "turn": 4, "at": "start", "do": action }],
    }));
    let run = ctx.start("run", &agent).await?;

    let status = run.wait_for_success().await?;
    let end = status.attempt_end(1)?;
    assert_eq!((end.cause, end.class, end.charged), (cause, Class::Crash, true), "{end:?}");
    assert_eq!(end.exit_code, exit_code);
    assert_eq!(end.turn_at_end, 3);
    assert_eq!(status.attempt().resumed_from_turn, Some(3));
    let recovery = status.recovery();
    assert_eq!((recovery.recovery_attempts, recovery.disruptions), (1, 0));
    assert_eq!(recovery.attempts_without_progress, 0, "the attempt made progress: three turns");
    run.expect_nothing_lost_or_repeated(8).await?;
    ctx.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_exits_1_is_charged_and_resumed() -> Result {
    crashes_once("exit-1", "exit:1", Cause::ExitedWithError, Some(1)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_runs_out_of_memory_is_charged_as_oom_killed() -> Result {
    crashes_once("oom", "oom", Cause::OOMKilled, Some(137)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_exits_0_without_a_finish_is_charged_as_a_crash() -> Result {
    crashes_once("no-finish", "exit:0", Cause::ExitedWithoutFinish, Some(0)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_reports_its_own_crash_is_charged_with_its_report() -> Result {
    crashes_once("reported", "selfReport:crash", Cause::WorkerReported, Some(1)).await
}

/// A SIGKILL from outside is neither an OOM kill nor a disruption of the pod. The exit code is the only evidence.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_is_killed_in_its_container_is_charged_with_its_exit_code() -> Result {
    let ctx = TestContext::new("killed").await?;
    let run = ctx.start("run", &Agent::new(json!({ "turns": 10, "turnSeconds": 0.3 }))).await?;
    run.wait_for_turn(3).await?;
    run.processes().await?.kill().await?;

    let status = run.wait_for_success().await?;
    let end = status.attempt_end(1)?;
    assert_eq!((end.cause, end.charged, end.exit_code), (Cause::ExitedWithError, true, Some(137)));
    run.expect_nothing_lost_or_repeated(10).await?;
    ctx.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_reports_a_fatal_error_is_held_at_once_with_its_message() -> Result {
    let ctx = TestContext::new("fatal").await?;
    let agent = Agent::new(json!({
        "turns": 8,
        "turnSeconds": 0.2,
        "script": [{ "turn": 3, "at": "start", "do": "fatal:the licence has expired" }],
    }));
    let run = ctx.start("run", &agent).await?;

    let status = run.wait_for(Summary::Held, secs(60)).await?;
    assert_eq!(status.reason, Some(dalsegno_crds::Reason::WorkerFatal));
    let (_, message) = status.reason_and_message(dalsegno_crds::ConditionType::Held);
    assert!(message.contains("the licence has expired"), "{message}");
    ctx.audit.expect_pods(&run.name, [1])?;
    ctx.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_without_recovery_attempts_and_with_the_policy_fail_fails_with_its_first_crash() -> Result {
    let ctx = TestContext::new("exhausted").await?;
    let agent = Agent::new(json!({
        "turns": 8,
        "turnSeconds": 0.2,
        "script": [{ "turn": 3, "at": "start", "do": "exit:1" }],
    }))
    .spec(json!({ "recovery": { "maxRecoveryAttempts": 0, "onExhausted": "Fail" } }));
    let run = ctx.start("run", &agent).await?;

    let status = run.wait_for(Summary::Failed, secs(60)).await?;
    assert_eq!(status.reason, Some(dalsegno_crds::Reason::RecoveryFailed));
    assert_eq!(status.turn(), 2, "the committed turns should stay");
    ctx.audit.expect_pods(&run.name, [1])?;
    ctx.end().await
}
