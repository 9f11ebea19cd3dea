//! A person suspends a run, and lifts the suspend.

use dalsegno_crds::{Cause, Class, ConditionType, Reason, Summary};
use dalsegno_e2e::objects::has_ended;
use dalsegno_e2e::wait::{consistently, eventually, secs};
use dalsegno_e2e::{Agent, Result, Run, StatusExt, TestContext, operator, process};
use serde_json::{Value, json};

/// Longer than the operator needs for a pod that it should not create.
const NO_POD: std::time::Duration = secs(6);

/// The run has these pods, which have ended, and gets no other.
async fn expect_no_worker(ctx: &TestContext, run: &Run<'_>, attempts: std::ops::Range<i32>) -> Result {
    eventually(format!("the workers of {} to end", run.name), secs(45), async || {
        Ok(run.pods().await?.iter().all(has_ended).then_some(()))
    })
    .await?;
    consistently("no pod while the run is suspended", NO_POD, async || {
        ctx.audit.expect_pods(&run.name, attempts.clone())
    })
    .await
}

/// The run's events, each as `reason: note`.
async fn events(ctx: &TestContext) -> Result<String> {
    let template = "jsonpath={range .items[*]}{.reason}{': '}{.note}{'\\n'}{end}";
    process::kubectl(["get", "events.events.k8s.io", "-n", &ctx.namespace, "-o", template]).await
}

/// The commands are those of `docs/guides/suspend.md`.
#[tokio::test(flavor = "multi_thread")]
async fn a_suspended_worker_parks_and_the_run_goes_on_at_the_next_turn() -> Result {
    let ctx = TestContext::new("suspend").await?;
    let run = ctx.start("run", &Agent::new(json!({ "turns": 20, "turnSeconds": 0.5 }))).await?;
    run.wait_for_turn(3).await?;
    let suspend =
        json!({ "metadata": { "annotations": { "dalsegno.dev/reason": "the model is too expensive" } },
                          "spec": { "operatingMode": "Suspended" } })
        .to_string();
    let patch = |change: String| {
        let object = ["patch", "agentrun", &run.name, "--namespace", &ctx.namespace, "--type", "merge"];
        process::kubectl(object.map(str::to_owned).into_iter().chain(["--patch".to_owned(), change]))
    };
    patch(suspend).await?;

    let status = run.wait_for(Summary::Suspended, secs(60)).await?;
    assert_eq!(status.reason, Some(Reason::Suspended));
    assert!(status.is_true(ConditionType::Suspended) && status.is_true(ConditionType::Ready), "{status:#?}");
    assert!(!status.is_true(ConditionType::WorkerReady) && !status.is_true(ConditionType::Held));
    let by = status.suspend.clone().unwrap_or_default();
    let me = process::kubectl(["auth", "whoami", "-o", "jsonpath={.status.userInfo.username}"]).await?;
    assert_eq!(by.by.as_ref(), Some(&me), "the API server has stamped the change");
    assert_eq!(by.reason.as_deref(), Some("the model is too expensive"));
    let end = status.attempt_end(1)?;
    assert_eq!((end.cause, end.class, end.charged), (Cause::Suspended, Class::Neutral, false), "{end:?}");
    assert_eq!(end.message, None, "the worker parked by itself");
    assert_eq!(status.recovery().recovery_attempts, 0);
    expect_no_worker(&ctx, &run, 1..2).await?;
    let [pod] = &run.pods().await?[..] else { panic!("the ended pod should be kept for its log") };
    let phase = pod.status.as_ref().and_then(|it| it.phase.as_deref());
    assert_eq!(phase, Some("Succeeded"), "the worker should have exited with 0 by itself");
    let deletions = ctx.audit.operator_writes(&run.name)?;
    assert!(deletions.iter().all(|it| !(it.is_pod() && it.verb == "delete")), "{deletions:#?}");
    let turn = run.status().await?.turn();
    assert!((3..20).contains(&turn), "turn {turn}");

    patch(json!({ "spec": { "operatingMode": null } }).to_string()).await?;
    let status = run.wait_for_success().await?;
    assert_eq!(status.attempt().resumed_from_turn, Some(turn));
    assert!(status.suspend.is_none());
    assert_eq!((status.attempt().number, status.recovery().recovery_attempts), (2, 0));
    run.expect_nothing_lost_or_repeated(20).await?;
    let events = events(&ctx).await?;
    let suspended = format!(
        "Suspended: the run is suspended and has no pod; suspended by {me}; reason: the model is too expensive"
    );
    assert!(events.contains(&suspended), "{events}");
    assert!(events.contains("Resumed: the run is no longer suspended"), "{events}");
    ctx.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_ignores_a_suspend_is_fenced_after_its_grace_and_loses_its_open_turn_only() -> Result {
    let ctx = TestContext::new("suspend-ignored").await?;
    let ignores = json!({ "turns": 40, "turnSeconds": 0.4, "ignoreSuspend": true });
    let grace = json!({ "suspend": { "graceSeconds": 3 } });
    let run = ctx.start("run", &Agent::new(ignores).spec(grace)).await?;
    run.wait_for_turn(3).await?;
    run.suspend().await?;
    run.wait_until("to show the suspend", secs(30), |status| status.reason == Some(Reason::Suspending))
        .await?;

    let status = run.wait_for(Summary::Suspended, secs(60)).await?;
    let end = status.attempt_end(1)?;
    assert_eq!((end.cause, end.charged), (Cause::Suspended, false), "{end:?}");
    let message = end.message.unwrap_or_default();
    assert!(message.contains("did not park within suspend.graceSeconds"), "{message}");
    expect_no_worker(&ctx, &run, 1..2).await?;
    let turn = run.status().await?.turn();
    run.resume().await?;
    let status = run.wait_for_success().await?;
    assert_eq!((status.attempt().number, status.attempt().resumed_from_turn), (2, Some(turn)));
    run.expect_nothing_lost_or_repeated(40).await?;
    ctx.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_is_suspended_before_its_first_pod_gets_none_until_it_is_resumed() -> Result {
    let ctx = TestContext::new("suspend-first").await?;
    let agent = Agent::new(json!({ "turns": 3, "turnSeconds": 0.1 }));
    let run = ctx.start("run", &agent.spec(json!({ "operatingMode": "Suspended" }))).await?;
    let status = run.wait_for(Summary::Suspended, secs(60)).await?;
    assert!(status.is_true(ConditionType::Ready) && status.store_id.is_some(), "{status:#?}");
    assert_eq!(status.attempt().pod_name, None);
    expect_no_worker(&ctx, &run, 1..1).await?;
    run.resume().await?;
    run.wait_for_success().await?;
    run.expect_nothing_lost_or_repeated(3).await?;
    ctx.end().await
}

/// A run that backs off, one whose image cannot be pulled, and one whose worker never attaches.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_without_a_worker_is_suspended_at_once_and_can_still_be_cancelled() -> Result {
    let ctx = TestContext::new("suspend-start").await?;
    let crash = json!({ "turns": 3, "script": [{ "turn": 1, "at": "start", "do": "exit:1" }] });
    let slow = json!({ "recovery": { "backoff": { "initialSeconds": 600, "maxSeconds": 600 } } });
    let backing_off = ctx.start("backing-off", &Agent::new(crash).spec(slow)).await?;
    let image = json!({ "image": "registry.dalsegno.test/dalsegno-e2e-agent:no-such-tag" });
    let pulling = ctx.start("pulling", &Agent::new(json!({ "turns": 1 })).container(image)).await?;
    let silent = ctx.start("silent", &Agent::new(json!({ "neverAttach": true }))).await?;
    backing_off.wait_for(Summary::BackingOff, secs(60)).await?;
    pulling
        .wait_until("to fail its pull", secs(60), |status| status.reason == Some(Reason::ImagePullFailed))
        .await?;
    silent.wait_for(Summary::Starting, secs(60)).await?;

    for run in [&backing_off, &pulling, &silent] {
        run.suspend().await?;
    }
    for run in [&backing_off, &pulling, &silent] {
        let status = run.wait_for(Summary::Suspended, secs(30)).await?;
        let expected = if run.name == "backing-off" { Cause::ExitedWithError } else { Cause::Suspended };
        assert_eq!(status.causes(), [expected], "{}", run.name);
        assert_eq!(status.recovery().recovery_attempts, i32::from(run.name == "backing-off"), "{}", run.name);
        expect_no_worker(&ctx, run, 1..2).await?;
    }
    backing_off.resume().await?;
    backing_off.wait_for(Summary::BackingOff, secs(30)).await?;
    for run in [&pulling, &silent] {
        run.cancel().await?;
        let status = run.wait_for(Summary::Cancelled, secs(30)).await?;
        assert!(status.suspend.is_none() && !status.is_true(ConditionType::Suspended));
        ctx.audit.expect_pods(&run.name, [1])?;
    }
    ctx.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_parked_run_that_is_cancelled_ends_without_another_pod() -> Result {
    let ctx = TestContext::new("suspend-cancel").await?;
    let run = ctx.start("run", &Agent::new(json!({ "turns": 60, "turnSeconds": 0.5 }))).await?;
    run.wait_for_turn(2).await?;
    run.suspend().await?;
    let turn = run.wait_for(Summary::Suspended, secs(60)).await?.turn();
    run.cancel().await?;
    let status = run.wait_for(Summary::Cancelled, secs(30)).await?;
    assert_eq!((status.turn(), status.recovery().recovery_attempts), (turn, 0));
    expect_no_worker(&ctx, &run, 1..2).await?;
    ctx.end().await
}

/// The worker hangs in a call whose outcome nobody knows, so it does not park.
#[tokio::test(flavor = "multi_thread")]
async fn a_fenced_worker_that_left_a_call_unsettled_holds_the_run_until_a_person_settles_it() -> Result {
    let ctx = TestContext::new("suspend-ask").await?;
    let script: Value = json!([{ "attempt": 1, "turn": 3, "at": "afterClaim", "do": "hang" }]);
    let agent = Agent::new(json!({ "turns": 5, "turnSeconds": 0.2, "callPolicy": "ask", "script": script }));
    let run = ctx.start("run", &agent.spec(json!({ "suspend": { "graceSeconds": 2 } }))).await?;
    run.wait_for_turn(2).await?;
    run.suspend().await?;
    let status = run.wait_for(Summary::Held, secs(60)).await?;
    assert_eq!(status.reason, Some(Reason::EffectUnknown));
    assert_eq!(status.reason_and_message(ConditionType::Suspended).0, Reason::Held.as_str());
    assert!(status.suspend.is_some() && status.is_true(ConditionType::Stalled), "{status:#?}");

    let settle = ["--outcome", "failed", "--reason", "it is not in the ledger", "--by", "a test"];
    operator::run(&[&["settle", &run.key(), "turn-3"], &settle[..]].concat()).await?;
    run.wait_for(Summary::Suspended, secs(60)).await?;
    expect_no_worker(&ctx, &run, 1..2).await?;
    run.resume().await?;
    assert_eq!(run.wait_for_success().await?.attempt().number, 2);
    run.expect_nothing_lost_or_repeated(5).await?;
    ctx.end().await
}
