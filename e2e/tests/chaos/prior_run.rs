//! An AgentRun is removed without its finalizer, as when a cluster is restored or rebuilt from Git.

use dalsegno_crds::{AgentRun, ConditionType, Reason, Summary};
use dalsegno_e2e::wait::{consistently, eventually, secs};
use dalsegno_e2e::{Agent, Result, Run, StatusExt, TestContext, objects};
use serde_json::json;

fn agent() -> Agent {
    Agent::new(json!({ "turns": 20, "turnSeconds": 0.3 }))
}

/// Removes the AgentRun without the operator's knowledge. Kubernetes deletes its pod.
async fn remove_without_finalizer(ctx: &TestContext, run: &Run<'_>) -> Result {
    let unfinalized = json!({ "metadata": { "finalizers": null } });
    objects::patch::<AgentRun>(&ctx.client, &ctx.namespace, &run.name, &unfinalized).await?;
    objects::delete::<AgentRun>(&ctx.client, &ctx.namespace, &run.name).await?;
    eventually(format!("run {} and its pod to be gone", run.name), secs(40), async || {
        let gone = ctx.api::<AgentRun>().get_opt(&run.name).await?.is_none() && run.pods().await?.is_empty();
        Ok(gone.then_some(()))
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_created_again_without_a_proper_deletion_is_held_until_a_person_sets_adopt_or_ignore() -> Result
{
    let ctx = TestContext::new("prior").await?;
    let (adopted, ignored) = (ctx.start("adopted", &agent()).await?, ctx.start("ignored", &agent()).await?);
    adopted.wait_for_turn(4).await?;
    ignored.wait_for_turn(4).await?;
    let scaled_down = ctx.operator.scale_down().await?;
    remove_without_finalizer(&ctx, &adopted).await?;
    remove_without_finalizer(&ctx, &ignored).await?;
    for run in [&adopted, &ignored] {
        ctx.start(&run.name, &agent()).await?;
    }
    scaled_down.revert().await?;

    for run in [&adopted, &ignored] {
        let status = run.wait_for(Summary::Held, secs(30)).await?;
        assert_eq!(status.reason, Some(Reason::PriorRunFound));
        let (_, message) = status.reason_and_message(ConditionType::Held);
        assert!(
            message.contains("Adopt") && message.contains("Ignore"),
            "the message should name both remedies: {message}"
        );
    }
    consistently("no pod of a held run", secs(3), async || {
        anyhow::ensure!(adopted.pods().await?.is_empty() && ignored.pods().await?.is_empty());
        Ok(())
    })
    .await?;

    adopted.patch_spec(json!({ "onPriorRun": "Adopt" })).await?;
    ignored.patch_spec(json!({ "onPriorRun": "Ignore" })).await?;
    let status = adopted.wait_for_success().await?;
    let resumed = status.attempt().resumed_from_turn.unwrap_or(0);
    assert!(resumed >= 3, "it should resume after turn 3 or later, not after turn {resumed}");
    assert_eq!(status.turn(), 20);
    assert_eq!(status.recovery().recovery_attempts, 0);
    ctx.ledger.expect_turns(&adopted.key(), 20).await?;

    let status = ignored.wait_for_success().await?;
    assert_eq!((status.attempt().resumed_from_turn.unwrap_or(0), status.turn()), (0, 20));
    assert_eq!(status.recovery().disruptions, 0, "an ignored run starts fresh");
    ctx.end().await
}
