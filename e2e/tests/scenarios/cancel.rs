//! A person cancels a run.

use std::time::Duration;

use dalsegno_crds::{ConditionType, Reason, Summary};
use dalsegno_e2e::StatusExt;
use dalsegno_e2e::objects::{has_ended, refusal};
use dalsegno_e2e::wait::{eventually, secs};
use dalsegno_e2e::{Agent, Result, TestContext, Worker};
use dalsegno_protocol::{Code, Flags};
use serde_json::json;

/// Limit for a worker that acknowledges the cancel and exits by itself. The operator fences and deletes it only later.
const COOPERATIVE_LIMIT: Duration = secs(25);

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_obeys_a_cancel_within_one_turn_and_the_run_ends_as_cancelled() -> Result {
    let ctx = TestContext::new("cancel").await?;
    let run = ctx.start("run", &Agent::new(json!({ "turns": 60, "turnSeconds": 1 }))).await?;
    run.wait_for_turn(3).await?;
    run.cancel().await?;
    let turn = ctx.ledger.highest_turn(&run.key()).await?;

    let status = run.wait_for(Summary::Cancelled, COOPERATIVE_LIMIT).await?;
    assert!(
        status.turn() <= turn + 1,
        "cancelled in turn {turn}, the run continued to turn {}",
        status.turn()
    );
    assert!(status.is_true(ConditionType::Finished) && !status.is_true(ConditionType::Succeeded));
    assert_eq!(status.recovery().recovery_attempts, 0, "a cancel is not a crash");
    eventually("the worker to end", COOPERATIVE_LIMIT, async || {
        Ok(run.pods().await?.iter().all(has_ended).then_some(()))
    })
    .await?;
    let uncancel = run.try_patch_spec(json!({ "operatingMode": "Running" })).await;
    assert!(refusal(uncancel)?.contains("stays cancelled"));
    ctx.audit.expect_pods(&run.name, [1])?;
    ctx.end().await
}

/// The test plays the worker, so that it can send requests after the acknowledgement.
#[tokio::test(flavor = "multi_thread")]
async fn after_the_acknowledgement_of_a_cancel_nothing_more_is_accepted() -> Result {
    let ctx = TestContext::new("cancel-ack").await?;
    let run = ctx.start("run", &Agent::new(json!({ "neverAttach": true }))).await?;
    let worker = Worker::for_pod(&ctx.client, &run.pod().await?).await?;
    worker.attach_when_ready().await?;
    assert_eq!(worker.commit(1, json!({ "n": 1 })).await?.status, 200);
    run.cancel_with_reason("it reads the wrong mailbox").await?;
    eventually("the cancel to reach the worker", secs(60), async || {
        let flags: Flags = worker.heartbeat().await?.json()?;
        Ok(flags.cancel.then_some(()))
    })
    .await?;
    let bundle = worker.get("export").await?.body;
    let entry = bundle.lines().find(|line| line.contains("cancel-requested")).unwrap_or_default();
    assert!(
        entry.contains("it reads the wrong mailbox") && entry.contains("manager"),
        "who and why: {entry}"
    );

    let first = worker.send("cancelled", "").await?;
    assert_eq!(first.status, 200, "{first:?}");
    let again = worker.send("cancelled", "").await?;
    assert_eq!((again.status, &again.body), (200, &first.body), "a retry should get the same answer");
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
        .wait_until("to have processed the cancel", secs(60), |status| {
            status.observed_generation == generation
        })
        .await?;
    assert_eq!(status.summary, Some(Summary::Succeeded));
    assert_eq!(status.reason, Some(Reason::Completed));
    ctx.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_ignores_a_cancel_is_fenced_and_then_deleted() -> Result {
    let ctx = TestContext::new("cancel-ignored").await?;
    let agent =
        Agent::new(json!({ "turns": 300, "turnSeconds": 0.3, "ignoreCancel": true, "onTerm": "ignore" }))
            .pod(json!({ "terminationGracePeriodSeconds": 10 }));
    let run = ctx.start("run", &agent).await?;
    run.wait_for_turn(2).await?;
    run.cancel().await?;

    let status = run.wait_for(Summary::Cancelled, secs(60)).await?;
    eventually("the worker to end", secs(30), async || {
        Ok(run.pods().await?.iter().all(has_ended).then_some(()))
    })
    .await?;
    let notes = run.notes().await?;
    assert!(notes.iter().any(|note| note.note == "fenced" || note.note == "finished"), "{notes:?}");
    assert_eq!(run.status().await?.turn(), status.turn(), "nothing should be committed after the end");
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
        // With a worker the operator would wait up to 90 s for an acknowledgement.
        run.wait_for(Summary::Cancelled, secs(60)).await?;
        ctx.audit.expect_pods(&run.name, [1])?;
    }
    ctx.end().await
}
