//! An API server that writes no stamps, as that of Kubernetes 1.33 to 1.35: the release has no MutatingAdmissionPolicy.

use dalsegno_crds::{
    AgentApproval, AgentDefinition, AgentRun, ApprovalConditionType as Condition, ApprovalReason as Reason,
    names,
};
use dalsegno_e2e::approval::{APPROVER, manifest, payment};
use dalsegno_e2e::install::{self, Version};
use dalsegno_e2e::objects::{self, refusal};
use dalsegno_e2e::process::{self, UndoGuard};
use dalsegno_e2e::wait::{eventually, secs};
use dalsegno_e2e::{Definition, Result, Rights, TestContext, operator};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};

/// Waits until the API server writes stamps, or none.
async fn wait_for_stamps(ctx: &TestContext, written: bool) -> Result {
    let mut probe = Definition::new().manifest("");
    probe["metadata"] = json!({ "generateName": "probe-" });
    eventually(format!("stamps to be written: {written}"), secs(30), async || {
        let made = objects::create::<AgentDefinition>(&ctx.client, &ctx.namespace, probe.clone()).await?;
        Ok((made.annotations().contains_key(names::ANNOTATION_SPEC_BY) == written).then_some(()))
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn without_stamps_a_decision_is_proven_and_no_other_change_is() -> Result {
    let ctx = TestContext::new("no-stamps").await?;
    let restore = UndoGuard::new(Version::current().helm_command(&install::values()));
    let mut values = install::values();
    objects::merge(&mut values, &json!({ "policies": { "mutate": false } }));
    Version::current().install(&ctx.client, &values).await?;
    wait_for_stamps(&ctx, false).await?;

    let runs = Rights { group: "dalsegno.dev", resources: &["agentruns"], verbs: &["*"] };
    ctx.grant("alice", runs).await?;
    ctx.grant("alice", Rights { group: "", resources: &["pods"], verbs: &["create"] }).await?;
    for user in ["alice", "bob"] {
        ctx.grant(user, APPROVER).await?;
    }
    let alice = ctx.as_user("alice").await?;
    who_changed_a_run_is_not_proven_unless_the_client_says_so(&ctx, &alice).await?;
    who_decided_is_proven(&ctx, &alice).await?;
    two_people_decide_if_the_creator_is_not_proven(&ctx, &alice).await?;

    // With the policy that writes stamps back, a pending approval is made anew, and can be decided.
    let pending = ask(&ctx, &alice, ("pending", json!({}))).await?;
    pending.wait_for(Condition::Pending, Reason::AwaitingDecision).await?;
    let before = pending.object().await?;
    restore.undo().await?;
    ctx.operator.wait_for_rollout().await?;
    wait_for_stamps(&ctx, true).await?;
    eventually("the pending AgentApproval to be replaced", secs(100), async || {
        let found = ctx.api::<AgentApproval>().get_opt(&pending.name).await?;
        Ok(found.filter(|it| it.uid() != before.uid()))
    })
    .await?;
    pending.wait_for(Condition::Pending, Reason::AwaitingDecision).await?;
    pending.decide(&alice, "alice", json!({})).await?;
    pending.wait_for(Condition::Applied, Reason::Answered).await?;
    ctx.end().await
}

/// Alice creates a run, which asks.
async fn ask<'c>(
    ctx: &'c TestContext,
    alice: &Client,
    (name, spec): (&str, Value),
) -> Result<dalsegno_e2e::approval::Asked<'c>> {
    objects::create::<AgentRun>(alice, &ctx.namespace, manifest(ctx, name, spec)).await?;
    ctx.ask(ctx.run(name), "pay", payment(500)).await
}

async fn who_changed_a_run_is_not_proven_unless_the_client_says_so(
    ctx: &TestContext,
    alice: &Client,
) -> Result {
    let mut forged = manifest(ctx, "changed", json!({}));
    forged["metadata"]["annotations"] = json!({ names::ANNOTATION_CREATED_BY: "bob" });
    let message = refusal(objects::create::<AgentRun>(alice, &ctx.namespace, forged).await)?;
    assert!(message.contains("says who created the run"), "{message}");
    objects::create::<AgentRun>(alice, &ctx.namespace, manifest(ctx, "changed", json!({}))).await?;
    let run = ctx.run("changed");
    let stamps =
        [names::ANNOTATION_CREATED_BY, names::ANNOTATION_SPEC_BY, names::ANNOTATION_OPERATING_MODE_BY];
    let object = run.object().await?;
    assert!(stamps.iter().all(|it| !object.annotations().contains_key(*it)), "{:?}", object.annotations());

    let change = |mode: Value, stamp: Option<String>| {
        json!({ "metadata": { "annotations": { names::ANNOTATION_OPERATING_MODE_BY: stamp } },
                "spec": { "operatingMode": mode } })
    };
    let forged = change(json!("Suspended"), Some("2 bob".into()));
    let message = refusal(objects::patch::<AgentRun>(alice, &ctx.namespace, "changed", &forged).await)?;
    assert!(message.contains("says who made a change"), "{message}");
    let suspend = r#"{"spec":{"operatingMode":"Suspended"}}"#;
    let patch = ["patch", "agentrun", "changed", "--type", "merge", "--patch", suspend, "--as", "alice"];
    process::kubectl([&patch[..], &["--namespace", &ctx.namespace]].concat()).await?;
    let status = run.wait_until("to be suspended", secs(60), |it| it.suspend.is_some()).await?;
    assert_ne!(status.suspend.and_then(|it| it.by).as_deref(), Some("alice"));

    let generation = run.object().await?.metadata.generation.unwrap_or_default() + 1;
    let lift = change(Value::Null, Some(format!("{generation} alice")));
    objects::patch::<AgentRun>(alice, &ctx.namespace, "changed", &lift).await?;
    run.wait_until("to go on", secs(60), |it| it.suspend.is_none()).await?;
    let rows = audit_rows(&run.key()).await?;
    let detail = |kind: &str| {
        let row = rows.iter().find(|row| row["kind"] == kind).cloned();
        row.map(|row| row["detail"].clone()).unwrap_or_default()
    };
    let suspended = detail("suspended");
    assert_eq!((&suspended["proven"], &suspended["manager"]), (&json!(false), &json!("kubectl-patch")));
    assert!(suspended.get("user").is_none(), "{suspended}");
    let resumed = detail("resumed");
    assert!(resumed["user"] == "alice" && resumed.get("proven").is_none(), "{resumed}");
    Ok(())
}

/// The rows of a run's audit.
async fn audit_rows(run: &str) -> Result<Vec<Value>> {
    let printed = operator::run(&["audit", "show", "--output", "json", run]).await?;
    printed.lines().map(|line| Ok(serde_json::from_str(line)?)).collect()
}

async fn who_decided_is_proven(ctx: &TestContext, alice: &Client) -> Result {
    let asked = ask(ctx, alice, ("asked", json!({}))).await?;
    asked.wait_for(Condition::Pending, Reason::AwaitingDecision).await?;
    let kinds =
        Rights { group: "dalsegno.dev", resources: &["agentapprovals"], verbs: &["get", "create", "patch"] };
    ctx.grant("eve", kinds).await?;
    let eve = ctx.as_user("eve").await?;
    let mut planted = serde_json::to_value(asked.object().await?)?;
    planted["metadata"] = json!({ "name": "planted" });
    planted.as_object_mut().map(|it| it.remove("status"));
    let other_hash = json!({ "decision": { "proposalHash": "0".repeat(71) } });
    let refused = [
        (refusal(asked.decide(&eve, "eve", json!({})).await)?, "verb approve"),
        (refusal(asked.decide(alice, "bob", json!({})).await)?, "\"alice\""),
        (refusal(asked.decide(alice, "alice", other_hash).await)?, "proposalHash"),
        (refusal(asked.patch(alice, json!({ "title": "pay 5 cents" })).await)?, "only"),
        (
            refusal(objects::create::<AgentApproval>(&eve, &ctx.namespace, planted).await)?,
            "only the operator creates",
        ),
    ];
    for (message, expected) in &refused {
        assert!(message.contains(expected), "{message}");
    }
    asked.decide(alice, "alice", json!({})).await?;
    asked.wait_for(Condition::Applied, Reason::Answered).await?;
    refusal(asked.patch(alice, json!({ "decision": null })).await)?;
    let answered = audit_rows(&asked.run.key()).await?.into_iter().find(|it| it["kind"] == "waitAnswered");
    let answered = answered.unwrap_or_default().to_string();
    assert!(answered.contains("alice") && !answered.contains("proven"), "{answered}");
    Ok(())
}

/// Nobody knows that alice has created the run. So she decides, but not alone.
async fn two_people_decide_if_the_creator_is_not_proven(ctx: &TestContext, alice: &Client) -> Result {
    let asked = ask(ctx, alice, ("eyes", json!({ "fourEyes": true }))).await?;
    asked.wait_for(Condition::Pending, Reason::AwaitingDecision).await?;
    asked.decide(alice, "alice", json!({})).await?;
    asked.wait_for(Condition::Pending, Reason::AwaitingSecondDecision).await?;
    let hash = asked.object().await?.spec.proposal_hash;
    let second = |by: &str| json!({ "secondDecision": { "verdict": "Approved", "proposalHash": hash, "reason": "", "by": by } });
    refusal(asked.patch(alice, second("bob")).await)?;
    asked.patch(&ctx.as_user("bob").await?, second("bob")).await?;
    asked.wait_for(Condition::Applied, Reason::Answered).await?;
    let wait = asked.worker.get("waits/pay?seconds=5").await?;
    assert!(wait.body.contains("alice, bob"), "{wait:?}");
    Ok(())
}
