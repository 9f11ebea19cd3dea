//! Approvals while the operator or its admission policies are gone.

use dalsegno_crds::{AgentApproval, ApprovalConditionType as Condition, ApprovalReason as Reason};
use dalsegno_e2e::approval::{APPROVER, manifest, payment};
use dalsegno_e2e::process::{self, UndoGuard};
use dalsegno_e2e::wait::{consistently, eventually, secs};
use dalsegno_e2e::{Result, Rights, TestContext};
use dalsegno_protocol::WaitOutcome;
use kube::ResourceExt;
use serde_json::json;

/// The chart's policy about approvals, and its binding.
const POLICY: &str = "dalsegno.dalsegno-system.approvals";

#[tokio::test(flavor = "multi_thread")]
async fn a_decision_in_time_counts_although_the_operator_was_away_across_the_deadline() -> Result {
    let ctx = TestContext::new("away").await?;
    ctx.create_run(manifest(&ctx, "run", json!({}))).await?;
    let mut body = payment(500);
    body["deadlineSeconds"] = json!(45);
    // Scaling down waits for earlier tests too, and the deadline must not pass meanwhile.
    ctx.operator.is_done_with_earlier_tests().await?;
    let asked = ctx.ask(ctx.run("run"), "pay", body).await?;
    asked.wait_for(Condition::Pending, Reason::AwaitingDecision).await?;
    asked.park(&["pay"]).await?;
    ctx.grant("alice", APPROVER).await?;
    let scaled_down = ctx.operator.scale_down().await?;
    let alice = ctx.as_user("alice").await?;
    let deadline = asked.object().await?.spec.deadline_time.expect("it has a deadline").0;
    anyhow::ensure!(jiff::Timestamp::now() < deadline, "the machine was too slow");
    asked.decide(&alice, "alice", json!({})).await?;
    let left = deadline.duration_since(jiff::Timestamp::now());
    tokio::time::sleep(std::time::Duration::try_from(left).unwrap_or_default() + secs(3)).await;
    scaled_down.revert().await?;
    asked.wait_for(Condition::Applied, Reason::Answered).await?;
    let (_, attached) = ctx.play(&asked.run, 2).await?;
    let outcomes: Vec<_> =
        attached.waits.iter().filter_map(|it| it.answer.as_ref().map(|it| it.outcome)).collect();
    assert_eq!(outcomes, [WaitOutcome::Approved]);
    ctx.end().await
}

/// Whoever deletes the policy can write a decision in any name. It never counts.
#[tokio::test(flavor = "multi_thread")]
async fn a_decision_that_was_made_without_the_policy_does_not_count() -> Result {
    let ctx = TestContext::new("policy").await?;
    ctx.create_run(manifest(&ctx, "run", json!({}))).await?;
    let asked = ctx.ask(ctx.run("run"), "pay", payment(500)).await?;
    asked.wait_for(Condition::Pending, Reason::AwaitingDecision).await?;
    let before = asked.object().await?;
    let rights =
        Rights { group: "dalsegno.dev", resources: &["agentapprovals"], verbs: &["get", "patch", "create"] };
    ctx.grant("eve", rights).await?;
    ctx.grant("alice", APPROVER).await?;
    let (eve, alice) = (ctx.as_user("eve").await?, ctx.as_user("alice").await?);

    let binding = ["get", "validatingadmissionpolicybinding", POLICY, "--output", "json"];
    let file = std::env::temp_dir().join(format!("dalsegno-policy-{}.json", std::process::id()));
    tokio::fs::write(&file, process::kubectl(binding).await?).await?;
    let file = file.to_string_lossy().into_owned();
    let restore =
        UndoGuard::new(["kubectl", "apply", "--server-side", "--force-conflicts", "--filename", &file]);
    // What the API server would refuse of its own metadata.
    let clean: serde_json::Value = serde_json::from_str(&tokio::fs::read_to_string(&file).await?)?;
    let clean = json!({ "apiVersion": clean["apiVersion"], "kind": clean["kind"], "spec": clean["spec"], "metadata": {
        "name": POLICY, "labels": clean["metadata"]["labels"], "annotations": clean["metadata"]["annotations"] } });
    tokio::fs::write(&file, clean.to_string()).await?;
    process::kubectl(["delete", "validatingadmissionpolicybinding", POLICY]).await?;
    eventually("a forged decision to be accepted", secs(30), async || {
        Ok(asked.decide(&eve, "alice", json!({})).await.is_ok().then_some(()))
    })
    .await?;
    asked.wait_for(Condition::Pending, Reason::PolicyMissing).await?;
    consistently("the forged decision waits", secs(5), async || {
        let wait = asked.worker.get("waits/pay?seconds=0").await?;
        anyhow::ensure!(wait.body.contains("\"open\""), "{wait:?}");
        Ok(())
    })
    .await?;

    restore.undo().await?;
    let again = eventually("the AgentApproval to be replaced", secs(100), async || {
        let found = ctx.api::<AgentApproval>().get_opt(&asked.name).await?;
        Ok(found.filter(|it| it.uid() != before.uid()))
    })
    .await?;
    assert!(again.spec.decision.is_none(), "{again:#?}");
    asked.wait_for(Condition::Pending, Reason::AwaitingDecision).await?;
    eventually("the policy to be obeyed", secs(30), async || {
        let refused = asked.decide(&eve, "eve", json!({})).await;
        Ok(refused.is_err().then_some(()))
    })
    .await?;
    asked.decide(&alice, "alice", json!({})).await?;
    asked.wait_for(Condition::Applied, Reason::Answered).await?;
    ctx.end().await
}
