//! Runs that wait without a pod. In most of these tests the test plays the worker, and the agent in the pod does not
//! attach.

use dalsegno_crds::{Cause, Class, ConditionType, Reason, Summary};
use dalsegno_e2e::approval::{APPROVER, manifest, payment};
use dalsegno_e2e::objects::has_ended;
use dalsegno_e2e::wait::{eventually, secs};
use dalsegno_e2e::{Agent, Result, Run, StatusExt, TestContext, Worker};
use dalsegno_protocol::{AttachResponse, WaitOutcome, WaitState};
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::time::Instant;
use uuid::Uuid;

/// Starts a run whose agent never attaches, and attaches as its first worker.
async fn start<'c>(ctx: &'c TestContext, name: &str, spec: Value) -> Result<(Run<'c>, Worker)> {
    ctx.create_run(manifest(ctx, name, spec)).await?;
    let run = ctx.run(name);
    let (worker, _) = ctx.play(&run, 1).await?;
    Ok((run, worker))
}

/// Sends a call that must be accepted, and returns the answer.
async fn accepted(worker: &Worker, path: &str, body: Value) -> Result<Value> {
    let answer = worker.post(path, body).await?;
    anyhow::ensure!(answer.status == 200, "{path} was refused: {answer:?}");
    answer.json()
}

/// Opens a wait, and returns the answer.
async fn open(worker: &Worker, id: &str, wait: Value) -> Result<Value> {
    let opened = accepted(worker, &format!("waits/{id}"), wait).await?;
    anyhow::ensure!(opened["state"] == "open", "{opened}");
    Ok(opened)
}

async fn park(worker: &Worker, on: &str) -> Result {
    let answer = accepted(worker, "park", json!({ "parkId": Uuid::new_v4(), "on": [on] })).await?;
    anyhow::ensure!(answer["result"] == "parked", "{answer}");
    Ok(())
}

async fn finish(worker: &Worker, turn: i32) -> Result {
    let body = json!({ "commitId": Uuid::new_v4(), "state": { "turn": turn },
                       "outcome": { "finish": { "outcome": "succeeded" } } });
    accepted(worker, &format!("turns/{turn}"), body).await.map(drop)
}

/// The only wait in the answer to an attach is this one, with this answer.
fn expect_answer(attached: &AttachResponse, id: &str, outcome: WaitOutcome) {
    let [wait] = &attached.waits[..] else { panic!("{attached:?}") };
    let found = wait.answer.as_ref().map(|answer| answer.outcome);
    assert_eq!((&*wait.id, wait.state, found), (id, WaitState::Answered, Some(outcome)), "{wait:?}");
}

fn in_seconds(seconds: i64) -> String {
    Timestamp::from_second(Timestamp::now().as_second() + seconds).unwrap_or_default().to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_waits_for_a_time_holds_no_pod_and_goes_on_at_the_next_turn() -> Result {
    let ctx = TestContext::new("waits-until").await?;
    let waits = json!([
        { "afterTurn": 2, "kind": "until", "seconds": 30 },
        { "afterTurn": 4, "kind": "until", "seconds": 6, "inCommit": true },
    ]);
    let run =
        ctx.start("run", &Agent::new(json!({ "turns": 6, "turnSeconds": 0.1, "waits": waits }))).await?;
    let status = run.wait_for(Summary::Waiting, secs(60)).await?;
    assert_eq!((status.reason, status.turn()), (Some(Reason::Until), 2));
    assert!(status.is_true(ConditionType::Ready) && !status.is_true(ConditionType::Stalled), "{status:#?}");
    let waiting = status.waiting.clone().expect("the status says what the run waits for");
    assert_eq!(waiting.waits.first().map(|wait| &*wait.id), Some("after-2-1"), "{waiting:?}");
    let end = status.attempt_end(1)?;
    assert_eq!((end.cause, end.class, end.charged), (Cause::Parked, Class::Neutral, false), "{end:?}");
    eventually("the parked worker's pod to end", secs(20), async || {
        Ok(run.pods().await?.iter().all(has_ended).then_some(()))
    })
    .await?;
    ctx.audit.expect_pods(&run.name, [1])?;

    let status = run.wait_for(Summary::Succeeded, secs(120)).await?;
    assert_eq!((status.attempt().number, status.attempt().resumed_from_turn), (3, Some(4)));
    assert_eq!(status.causes(), [Cause::Parked; 2]);
    assert_eq!((status.recovery().recovery_attempts, status.recovery().disruptions), (0, 0));
    assert!(status.waiting.is_none(), "{status:#?}");
    let notes: Vec<String> = run.notes().await?.into_iter().map(|note| note.note).collect();
    assert_eq!(notes, ["answered after-2-1 Elapsed", "answered after-4-1 Elapsed"]);
    run.expect_nothing_lost_or_repeated(6).await?;
    ctx.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_asks_and_does_not_park_is_parked_at_its_progress_deadline_without_a_charge() -> Result
{
    let ctx = TestContext::new("waits-silent").await?;
    let deadline = json!({ "liveness": { "progressDeadlineSeconds": 6 } });
    let (run, worker) = start(&ctx, "run", deadline).await?;
    assert_eq!(worker.commit(1, json!({})).await?.status, 200);
    open(&worker, "pay", payment(500)).await?;

    let status = run.wait_for(Summary::Waiting, secs(20)).await?;
    let end = status.attempt_end(1)?;
    assert_eq!((end.cause, end.charged), (Cause::Parked, false), "{end:?}");
    assert_eq!(worker.commit(2, json!({})).await?.status, 409, "the attempt is over");
    ctx.grant("alice", APPROVER).await?;
    ctx.approve("alice", &run, "pay").await?;
    let (worker, attached) = ctx.play(&run, 2).await?;
    expect_answer(&attached, "pay", WaitOutcome::Approved);
    finish(&worker, 2).await?;
    assert_eq!(run.wait_for_success().await?.recovery().recovery_attempts, 0);
    ctx.end().await
}

/// Each attempt parks on a time that comes soon, and commits nothing.
#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_parks_again_and_again_without_progress_is_slowed_down() -> Result {
    let ctx = TestContext::new("waits-loop").await?;
    let (run, mut worker) = start(&ctx, "run", json!({})).await?;
    // The first two parks cost nothing.
    for (attempt, least) in [(1, 0), (2, 0), (3, 10)] {
        let id = format!("again-{attempt}");
        // Later than the park, and well before the end of the pause.
        open(&worker, &id, json!({ "kind": "until", "time": in_seconds(7) })).await?;
        let parking = Instant::now();
        park(&worker, &id).await?;
        let (next, attached) = ctx.play(&run, attempt + 1).await?;
        assert!(
            parking.elapsed() >= secs(least),
            "attempt {} began after {:?}",
            attempt + 1,
            parking.elapsed()
        );
        let answers = attached.waits.iter().filter(|wait| wait.state == WaitState::Answered).count();
        assert_eq!(answers, attempt as usize, "{attached:?}");
        worker = next;
    }
    assert_eq!(run.status().await?.recovery().parks_without_progress, 3);
    finish(&worker, 1).await?;
    run.wait_for_success().await?;
    ctx.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_rate_limit_one_run_tries_before_the_others() -> Result {
    let ctx = TestContext::new("waits-limit").await?;
    let mut runs = Vec::new();
    for name in ["a", "b", "c"] {
        runs.push(start(&ctx, name, json!({})).await?);
    }
    let reset = in_seconds(12);
    let wait = json!({ "kind": "rateLimit", "provider": "model", "resetTime": reset });
    let reset: Timestamp = reset.parse()?;
    let mut wake_times: Vec<Timestamp> = Vec::new();
    for (_, worker) in &runs {
        let opened = open(worker, "limit", wait.clone()).await?;
        wake_times.push(opened["wakeTime"].as_str().unwrap_or_default().parse()?);
        park(worker, "limit").await?;
    }
    // Each run also waits for a part of a second of its own.
    let delays: Vec<_> = wake_times.iter().map(|wake| wake.duration_since(reset).as_secs()).collect();
    assert_eq!(delays, [0, 5, 5], "{wake_times:?} after {reset}");
    for (run, _) in &runs {
        assert_eq!(run.wait_for(Summary::Waiting, secs(10)).await?.reason, Some(Reason::RateLimit));
    }
    for ((run, _), wake) in runs.iter().zip(wake_times) {
        let (worker, attached) = ctx.play(run, 2).await?;
        expect_answer(&attached, "limit", WaitOutcome::Elapsed);
        let created = run.pod().await?.metadata.creation_timestamp.expect("every pod has one");
        // A creation timestamp has whole seconds.
        assert!(created.0.as_second() >= wake.as_second(), "{}: {} before {wake}", run.name, created.0);
        finish(&worker, 1).await?;
    }
    for (run, _) in &runs {
        run.wait_for_success().await?;
    }
    ctx.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_that_times_out_holds_the_run_or_fails_it_if_the_agent_asked_for_that() -> Result {
    let ctx = TestContext::new("waits-timeout").await?;
    let agent = |on_timeout: &str| {
        let wait = json!({ "afterTurn": 1, "kind": "message", "topic": "go", "deadlineSeconds": 8, "onTimeout": on_timeout });
        Agent::new(json!({ "turns": 3, "turnSeconds": 0.1, "waits": [wait] }))
    };
    let held = ctx.start("held", &agent("Hold")).await?;
    let failed = ctx.start("failed", &agent("Fail")).await?;
    assert_eq!(held.wait_for(Summary::Waiting, secs(30)).await?.reason, Some(Reason::Message));
    let status = held.wait_for(Summary::Held, secs(30)).await?;
    assert_eq!(status.reason, Some(Reason::WaitTimedOut));
    assert!(status.is_true(ConditionType::Stalled), "{status:#?}");
    let status = failed.wait_for(Summary::Failed, secs(30)).await?;
    assert_eq!(status.reason, Some(Reason::WaitTimedOut));
    held.cancel().await?;
    held.wait_for(Summary::Cancelled, secs(30)).await?;
    for run in [&held, &failed] {
        ctx.audit.expect_pods(&run.name, [1])?;
    }
    ctx.end().await
}
