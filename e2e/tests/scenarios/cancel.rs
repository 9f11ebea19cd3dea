//! A person cancels a run.

use std::time::Duration;

use dalsegno_crds::{ConditionType, Reason, Summary};
use dalsegno_e2e::StatusExt;
use dalsegno_e2e::objects::{has_ended, refusal};
use dalsegno_e2e::wait::{eventually, secs};
use dalsegno_e2e::{Agent, Result, TestContext, Worker};
use dalsegno_protocol::{Code, Flags};
use serde_json::json;

/// Sooner than a worker that acknowledges no cancel is given up, or one that does not end is deleted: it does both itself.
const BY_ITSELF: Duration = secs(25);

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_is_heard_within_one_turn_and_the_run_ends_as_cancelled() -> Result {
    let ctx = TestContext::new("cancel").await?;
    let run = ctx.start("run", &Agent::new(json!({ "turns": 60, "turnSeconds": 1 }))).await?;
    run.wait_for_turn(3).await?;
    run.cancel().await?;
    let turn = ctx.ledger.highest_turn(&run.key()).await?;

    let status = run.wait_for(Summary::Cancelled, BY_ITSELF).await?;
    assert!(status.turn() <= turn + 1, "cancelled in turn {turn}, it went on to {}", status.turn());
    assert!(status.is_true(ConditionType::Finished) && !status.is_true(ConditionType::Succeeded));
    assert_eq!(status.recovery().recovery_attempts, 0, "a cancelled run has not crashed");
    eventually("the worker to end", BY_ITSELF, async || {
        Ok(run.pods().await?.iter().all(has_ended).then_some(()))
    })
    .await?;
    let again = run.try_patch_spec(json!({ "operatingMode": "Running" })).await;
    assert!(refusal(again)?.contains("stays cancelled"));
    ctx.audit.expect_pods(&run.name, [1])?;
    ctx.end().await
}

/// The story plays the worker, so that it can go on after it has acknowledged.
#[tokio::test(flavor = "multi_thread")]
async fn after_the_acknowledgement_of_a_cancel_nothing_more_is_accepted() -> Result {
    let ctx = TestContext::new("cancel-ack").await?;
    let run = ctx.start("run", &Agent::new(json!({ "neverAttach": true }))).await?;
    let worker = Worker::for_pod(&ctx.client, &run.pod().await?).await?;
    worker.attach_when_ready().await?;
    assert_eq!(worker.commit(1, json!({ "n": 1 })).await?.status, 200);
    run.cancel_with_reason("it reads the wrong mailbox").await?;
    eventually("the cancel to be heard", secs(60), async || {
        let flags: Flags = worker.heartbeat().await?.json()?;
        Ok(flags.cancel.then_some(()))
    })
    .await?;
    let bundle = worker.get("export").await?.body;
    let told = bundle.lines().find(|line| line.contains("cancel-requested")).unwrap_or_default();
    assert!(told.contains("it reads the wrong mailbox") && told.contains("manager"), "who and why: {told}");

    let first = worker.send("cancelled", "").await?;
    assert_eq!(first.status, 200, "{first:?}");
    let again = worker.send("cancelled", "").await?;
    assert_eq!((again.status, &again.body), (200, &first.body), "its retry gets the same answer");
    let late = worker.commit(2, json!({ "n": 2 })).await?.problem()?;
    assert!(matches!(late.code, Code::Fenced | Code::Finished), "{late:?}");
    let call = json!({ "claimId": uuid::Uuid::new_v4(), "policy": "retrySameKey", "key": "late" });
    let late = worker.post("calls/late/claim", call).await?.problem()?;
    assert!(matches!(late.code, Code::Fenced | Code::Finished), "{late:?}");
    let status = run.wait_for(Summary::Cancelled, secs(30)).await?;
    assert_eq!(status.turn(), 1);
    ctx.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_finished_before_it_was_cancelled_stays_completed() -> Result {
    let ctx = TestContext::new("cancel-late").await?;
    let run = ctx.start("run", &Agent::new(json!({ "turns": 2, "turnSeconds": 0.1 }))).await?;
    run.wait_for_success().await?;
    run.cancel().await?;
    let generation = run.object().await?.metadata.generation;
    let status = run
        .wait_until("to have seen the cancel", secs(60), |status| status.observed_generation == generation)
        .await?;
    assert_eq!(status.summary, Some(Summary::Succeeded));
    assert_eq!(status.reason, Some(Reason::Completed));
    ctx.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_ignores_a_cancel_is_fenced_and_then_deleted() -> Result {
    let ctx = TestContext::new("cancel-deaf").await?;
    let agent =
        Agent::new(json!({ "turns": 300, "turnSeconds": 0.3, "ignoreCancel": true, "onTerm": "ignore" }))
            .pod(json!({ "terminationGracePeriodSeconds": 10 }));
    let run = ctx.start("run", &agent).await?;
    run.wait_for_turn(2).await?;
    run.cancel().await?;

    let status = run.wait_for(Summary::Cancelled, secs(60)).await?;
    eventually("the deaf worker to be gone", secs(30), async || {
        Ok(run.pods().await?.iter().all(has_ended).then_some(()))
    })
    .await?;
    let notes = run.notes().await?;
    assert!(notes.iter().any(|note| note.note == "fenced" || note.note == "finished"), "{notes:?}");
    assert_eq!(run.status().await?.turn(), status.turn(), "nothing was committed after the end");
    ctx.audit.expect_pods(&run.name, [1])?;
    ctx.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_without_a_worker_is_cancelled_at_once() -> Result {
    let ctx = TestContext::new("cancel-held").await?;
    let crash = json!({ "turns": 3, "script": [{ "turn": 1, "at": "start", "do": "exit:1" }] });
    let slow = json!({ "recovery": { "backoff": { "initialSeconds": 600, "maxSeconds": 600 } } });
    let backing_off = ctx.start("backing-off", &Agent::new(crash.clone()).spec(slow)).await?;
    let held = ctx
        .start("held", &Agent::new(crash).spec(json!({ "recovery": { "maxAttemptsWithoutProgress": 1 } })))
        .await?;
    backing_off.wait_for(Summary::BackingOff, secs(60)).await?;
    held.wait_for(Summary::Held, secs(60)).await?;
    for run in [&backing_off, &held] {
        run.cancel().await?;
        // A worker that hears nothing has 90 seconds.
        run.wait_for(Summary::Cancelled, secs(60)).await?;
        ctx.audit.expect_pods(&run.name, [1])?;
    }
    ctx.end().await
}
