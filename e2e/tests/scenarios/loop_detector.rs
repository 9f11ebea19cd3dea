//! The loop detector: a run that keeps crashing without progress is held, and a run with progress is not.

use dalsegno_crds::{Cause, ConditionType, Reason, Summary};
use dalsegno_e2e::StatusExt;
use dalsegno_e2e::wait::{consistently, secs};
use dalsegno_e2e::{Agent, Definition, Result, TestContext};
use serde_json::json;

/// An image without the scripted agent.
const OTHER_IMAGE: &str = "registry.dalsegno.test/dalsegno-example-rust:dev";

/// A limit that is reached within seconds.
fn three_attempts() -> serde_json::Value {
    json!({ "recovery": { "maxAttemptsWithoutProgress": 3 } })
}

#[tokio::test(flavor = "multi_thread")]
async fn three_attempts_without_progress_hold_the_run_with_cause_turn_log_and_remedy() -> Result {
    let ctx = TestContext::new("loop").await?;
    // The first attempt makes progress (two turns), so it does not count.
    let agent = Agent::new(json!({
        "turns": 6,
        "turnSeconds": 0.2,
        "script": [{ "turn": 3, "at": "start", "do": "exit:1" }],
    }))
    .spec(three_attempts());
    let run = ctx.start("run", &agent).await?;
    let status = run.wait_for(Summary::Held, secs(60)).await?;
    assert_eq!(status.reason, Some(Reason::RecoveryLoop));
    assert_eq!(status.recovery().attempts_without_progress, 3);
    assert_eq!(status.recovery().recovery_attempts, 4);
    assert_eq!(status.causes(), [Cause::ExitedWithError; 4]);
    assert!(status.is_true(ConditionType::Held) && status.is_true(ConditionType::Stalled));
    assert!(!status.is_true(ConditionType::Ready));
    let (_, message) = status.reason_and_message(ConditionType::Held);
    for expected in ["ExitedWithError", "turn 2", "action Exit(1)", "resetGeneration"] {
        assert!(message.contains(expected), "the message should contain {expected:?}: {message}");
    }
    consistently("no further pod", secs(5), async || ctx.audit.expect_pods(&run.name, 1..=4)).await?;
    ctx.end().await
}

/// A bad deployment: the definition is changed to a program that is not an agent.
#[tokio::test(flavor = "multi_thread")]
async fn a_held_run_resumes_with_a_fixed_agent_and_a_higher_reset_generation() -> Result {
    let ctx = TestContext::new("fixed").await?;
    let good = Definition::new().spec(json!({ "agentVersion": "1.0" }));
    let broken =
        good.clone().container(json!({ "image": OTHER_IMAGE, "command": ["/ledger", "no-address"] }));
    ctx.create_definition("agent", &good).await?;
    let agent = Agent::from_definition("agent", json!({ "turns": 20, "turnSeconds": 0.3 }));
    let run = ctx.start("run", &agent.spec(three_attempts())).await?;
    run.wait_for_turn(4).await?;
    ctx.update_definition("agent", &broken).await?;
    run.evict().await?;
    let status = run.wait_for(Summary::Held, secs(60)).await?;
    assert_eq!(status.reason, Some(Reason::RecoveryLoop));
    assert_eq!(status.recovery().recovery_attempts, 3);
    let (_, message) = status.reason_and_message(ConditionType::Held);
    assert!(
        message.contains("listening on no-address"),
        "the message should contain the last lines of the log: {message}"
    );
    let turn = status.turn();

    ctx.update_definition("agent", &good).await?;
    run.patch_spec(json!({ "recovery": { "resetGeneration": 1 } })).await?;
    let status = run.wait_for_success().await?;
    assert_eq!(status.attempt().number, 5);
    assert_eq!(status.attempt().resumed_from_turn, Some(turn));
    assert_eq!(status.recovery().recovery_attempts, 3, "the total should not decrease");
    assert_eq!(status.recovery().attempts_without_progress, 0);
    assert_eq!(status.recovery().observed_reset_generation, Some(1));
    run.expect_nothing_lost_or_repeated(20).await?;
    ctx.end().await
}

/// A claimed call is no progress. Only a completed call is.
#[tokio::test(flavor = "multi_thread")]
async fn attempts_that_each_die_after_a_claim_hold_the_run() -> Result {
    let ctx = TestContext::new("claim-loop").await?;
    let agent = Agent::new(json!({
        "turns": 5,
        "turnSeconds": 0.2,
        "script": [{ "turn": 1, "at": "afterClaim", "do": "exit:1" }],
    }))
    .spec(three_attempts());
    let run = ctx.start("run", &agent).await?;
    let status = run.wait_for(Summary::Held, secs(60)).await?;
    assert_eq!(status.reason, Some(Reason::RecoveryLoop));
    assert_eq!((status.turn(), status.recovery().attempts_without_progress), (0, 3));
    consistently("no further pod", secs(3), async || ctx.audit.expect_pods(&run.name, 1..=3)).await?;
    ctx.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn progress_between_crashes_resets_the_no_progress_counter_and_not_the_total() -> Result {
    let ctx = TestContext::new("progress").await?;
    let crash =
        |attempt: i32, turn: i32| json!({ "attempt": attempt, "turn": turn, "at": "start", "do": "exit:1" });
    let agent = Agent::new(json!({
        "turns": 8,
        "turnSeconds": 0.2,
        // Attempts 2, 3, 5 and 6 make no progress, attempt 4 makes two turns, and attempt 7 ends the run.
        "script": [crash(1, 3), crash(2, 3), crash(3, 3), crash(4, 5), crash(5, 5), crash(6, 5)],
    }));
    let run = ctx.start("run", &agent).await?;
    let status = run.wait_for_success().await?;
    let recovery = status.recovery();
    assert_eq!(status.attempt().number, 7);
    assert_eq!(recovery.recovery_attempts, 6, "the total should count every crash");
    let progress: Vec<i32> =
        recovery.history.iter().rev().map(|end| end.turn_at_end - end.turn_at_start).collect();
    assert_eq!(progress.get(..6), Some([2, 0, 0, 2, 0, 0].as_slice()));
    run.expect_nothing_lost_or_repeated(8).await?;
    ctx.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lower_reset_generation_does_nothing_and_a_hold_with_a_persistent_cause_returns() -> Result {
    let ctx = TestContext::new("reset").await?;
    let agent = Agent::new(json!({
        "turns": 3,
        "turnSeconds": 0.1,
        "script": [{ "turn": 2, "at": "start", "do": "exit:1" }],
    }))
    .spec(json!({ "recovery": { "maxAttemptsWithoutProgress": 1, "resetGeneration": 5 } }));
    let run = ctx.start("run", &agent).await?;
    run.wait_for(Summary::Held, secs(60)).await?;
    run.patch_spec(json!({ "recovery": { "resetGeneration": 4 } })).await?;
    consistently("held after a lower number", secs(3), async || ctx.audit.expect_pods(&run.name, 1..=2))
        .await?;

    run.patch_spec(json!({ "recovery": { "resetGeneration": 6 } })).await?;
    let held_again = |status: &dalsegno_crds::AgentRunStatus| {
        status.summary == Some(Summary::Held) && status.recovery().recovery_attempts == 3
    };
    let status = run.wait_until("to be held again", secs(60), held_again).await?;
    assert_eq!(status.recovery().observed_reset_generation, Some(6));
    ctx.audit.expect_pods(&run.name, 1..=3)?;
    ctx.end().await
}
