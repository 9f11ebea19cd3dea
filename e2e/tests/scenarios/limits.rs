//! Limits of a run: it is held at a limit, and goes on when the limit is raised.

use dalsegno_crds::{Cause, Class, ConditionType, LimitName, Reason, Summary};
use dalsegno_e2e::wait::{consistently, secs};
use dalsegno_e2e::{Agent, Result, StatusExt, TestContext, process};
use serde_json::json;

/// The command is the one of the condition's message.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_is_held_at_its_limit_and_goes_on_when_it_is_raised() -> Result {
    let ctx = TestContext::new("limits").await?;
    let agent = Agent::new(json!({ "turns": 9 })).spec(json!({ "limits": { "turns": 5 } }));
    let run = ctx.start("run", &agent).await?;
    let status = run.wait_for(Summary::Held, secs(60)).await?;
    assert_eq!(status.reason, Some(Reason::LimitReached));
    assert_eq!(status.turn(), 5, "the turn that reaches the limit is committed, and no other");
    let limits: Vec<_> = status.limits.iter().map(|it| (it.limit, it.used, it.max)).collect();
    assert_eq!(limits, [(LimitName::Turns, 5, 5)]);
    let end = status.attempt_end(1)?;
    assert_eq!((end.cause, end.class, end.charged), (Cause::LimitReached, Class::Neutral, false), "{end:?}");
    assert_eq!(status.recovery().recovery_attempts, 0);
    consistently("no pod while the run is held", secs(6), async || ctx.audit.expect_pods(&run.name, 1..2))
        .await?;

    let held = status.conditions.iter().find(|it| it.type_ == ConditionType::Held.as_str());
    let message = held.map(|it| it.message.clone()).unwrap_or_default();
    let raise = r#"{"spec":{"limits":{"turns":10}}}"#;
    assert!(message.contains(&format!("--type merge --patch '{raise}'")), "{message}");
    let object =
        ["patch", "agentrun", &run.name, "--namespace", &ctx.namespace, "--type", "merge", "--patch", raise];
    process::kubectl(object).await?;
    let status = run.wait_for_success().await?;
    assert_eq!(status.attempt().resumed_from_turn, Some(5));
    assert_eq!((status.attempt().number, status.recovery().recovery_attempts), (2, 0));
    run.expect_nothing_lost_or_repeated(9).await?;
    ctx.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_ignores_the_limit_is_stopped() -> Result {
    let ctx = TestContext::new("limits").await?;
    let agent = Agent::new(json!({ "turns": 900, "turnSeconds": 0.5, "ignoreLimit": true }));
    let run = ctx.start("run", &agent.spec(json!({ "limits": { "activeSeconds": 2 } }))).await?;
    let status = run.wait_for(Summary::Held, secs(90)).await?;
    assert_eq!(status.reason, Some(Reason::LimitReached));
    let end = status.attempt_end(1)?;
    assert_eq!((end.cause, end.class, end.charged), (Cause::LimitReached, Class::Neutral, false), "{end:?}");
    let [active] = &status.limits[..] else { panic!("{:?}", status.limits) };
    assert_eq!((active.limit, active.max), (LimitName::ActiveSeconds, 2));
    assert!((32..60).contains(&active.used), "30 s to exit: {active:?}");
    ctx.end().await
}
