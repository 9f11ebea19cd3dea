//! The end of a run, and what only looks like one.

use dalsegno_crds::{Cause, ConditionType, Reason, RunOutcome, Summary};
use dalsegno_e2e::StatusExt;
use dalsegno_e2e::wait::{secs, throughout};
use dalsegno_e2e::{Agent, Result, Run, World};
use serde_json::json;

/// The run has succeeded in its first attempt and gets no further pod.
async fn succeeded_for_good(world: &World, run: &Run<'_>, turns: i32) -> Result {
    let status = run.succeeds().await?;
    assert!(status.is_true(ConditionType::Finished) && status.is_true(ConditionType::Succeeded));
    assert_eq!(status.result.as_ref().map(|result| result.outcome), Some(RunOutcome::Succeeded));
    assert!(status.completion_time.is_some());
    throughout("no second pod", secs(4), async || world.audit.expect_pods(&run.name, [1])).await?;
    assert_eq!(run.status().await?.recovery().recovery_attempts, 0);
    run.expect_nothing_lost_or_repeated(turns).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_whose_last_commit_finished_it_and_whose_worker_never_heard_so_has_succeeded() -> Result {
    let world = World::new("unheard").await?;
    let agent = Agent::new(json!({
        "turns": 5,
        "turnSeconds": 0.2,
        "script": [{ "attempt": 1, "turn": 5, "at": "beforeCommit", "do": "loseAnswer" }],
    }));
    let run = world.start("run", &agent).await?;
    succeeded_for_good(&world, &run, 5).await?;
    world.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_is_over_before_anybody_looks_has_succeeded() -> Result {
    let world = World::new("brief").await?;
    let run = world.start("run", &Agent::new(json!({ "turns": 1, "turnSeconds": 0 }))).await?;
    succeeded_for_good(&world, &run, 1).await?;
    world.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_finished_and_then_exits_1_has_succeeded_all_the_same() -> Result {
    let world = World::new("exit-after").await?;
    let agent = Agent::new(json!({
        "turns": 4,
        "turnSeconds": 0.2,
        "script": [{ "attempt": 1, "turn": 4, "at": "afterCommit", "do": "exit:1" }],
    }));
    let run = world.start("run", &agent).await?;
    succeeded_for_good(&world, &run, 4).await?;
    world.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_finish_of_its_own_ends_the_run_as_well() -> Result {
    let world = World::new("separate").await?;
    let agent = Agent::new(json!({ "turns": 4, "turnSeconds": 0.2, "finishSeparately": true }));
    let run = world.start("run", &agent).await?;
    succeeded_for_good(&world, &run, 4).await?;
    world.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_gives_up_has_failed_and_is_not_tried_again() -> Result {
    let world = World::new("gives-up").await?;
    let agent = Agent::new(json!({ "turns": 3, "turnSeconds": 0.2, "finishOutcome": "failed" }));
    let run = world.start("run", &agent).await?;
    let status = run.reaches(Summary::Failed, secs(60)).await?;
    assert_eq!(status.reason, Some(Reason::AgentFailed));
    assert!(status.is_true(ConditionType::Finished) && !status.is_true(ConditionType::Succeeded));
    throughout("no second pod", secs(4), async || world.audit.expect_pods(&run.name, [1])).await?;
    world.end().await
}

/// Its pod is still there after 30 s, and is deleted then.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_hangs_after_its_finish_is_stopped_and_the_run_stands() -> Result {
    let world = World::new("hangs-after").await?;
    let agent = Agent::new(json!({
        "turns": 3,
        "turnSeconds": 0.2,
        // A heartbeat would tell it that the run is over.
        "heartbeat": false,
        "script": [{ "attempt": 1, "turn": 3, "at": "afterCommit", "do": "hang" }],
    }));
    let run = world.start("run", &agent).await?;
    run.succeeds().await?;
    let uid = run.status().await?.attempt().pod_uid;
    dalsegno_e2e::wait::until("the hanging pod to be gone", secs(60), async || {
        let pods = run.pods().await?;
        let gone = pods.iter().all(|pod| pod.metadata.uid != uid || dalsegno_e2e::objects::has_ended(pod));
        Ok(gone.then_some(()))
    })
    .await?;
    assert_eq!(run.status().await?.summary, Some(Summary::Succeeded));
    run.expect_nothing_lost_or_repeated(3).await?;
    world.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_exits_0_and_never_attached_has_crashed_and_learns_of_the_contract() -> Result {
    let world = World::new("never-attached").await?;
    let agent = Agent::new(json!({ "neverAttach": true, "script": [{ "at": "start", "do": "exit:0" }] }))
        .spec(json!({ "recovery": { "maxAttemptsWithoutProgress": 2 } }));
    let run = world.start("run", &agent).await?;
    let status = run.reaches(Summary::Held, secs(60)).await?;
    assert_eq!(status.reason, Some(Reason::RecoveryLoop));
    assert_eq!(status.causes(), [Cause::NeverAttached, Cause::NeverAttached]);
    let (_, message) = status.why(ConditionType::Held);
    assert!(message.contains("docs/reference/contract.md"), "{message}");
    world.audit.expect_pods(&run.name, 1..=2)?;
    world.end().await
}
