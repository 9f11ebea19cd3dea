//! Four eyes: who has caused a proposal does not decide about it.

use dalsegno_crds::{
    AgentDefinition, AgentRun, ApprovalConditionType as Condition, ApprovalReason as Reason, names,
};
use dalsegno_e2e::approval::{APPROVER, manifest, payment};
use dalsegno_e2e::objects::{self, refusal};
use dalsegno_e2e::{Agent, Definition, Result, Rights, Sender, TestContext, operator, process};
use kube::ResourceExt;
use serde_json::json;

#[tokio::test(flavor = "multi_thread")]
async fn four_eyes_exclude_who_created_the_run_and_a_service_account_needs_two_deciders() -> Result {
    let ctx = TestContext::new("four-eyes").await?;
    let flux = format!("system:serviceaccount:{}:flux", ctx.namespace);
    for user in ["alice", "bob", "carol"] {
        ctx.grant(user, APPROVER).await?;
    }
    let runs = Rights { group: "dalsegno.dev", resources: &["agentruns"], verbs: &["create"] };
    let pods = Rights { group: "", resources: &["pods"], verbs: &["create"] };
    ctx.grant("alice", runs).await?;
    ctx.grant("alice", pods).await?;
    let binding = ["create", "rolebinding", "flux", "--clusterrole=admin", "--serviceaccount"];
    let account = format!("{}:flux", ctx.namespace);
    process::kubectl([&binding[..], &[&account, "--namespace", &ctx.namespace]].concat()).await?;
    let [alice, bob, carol] =
        [ctx.as_user("alice").await?, ctx.as_user("bob").await?, ctx.as_user("carol").await?];

    let eyes = json!({ "fourEyes": true });
    objects::create::<AgentRun>(&alice, &ctx.namespace, manifest(&ctx, "hers", eyes.clone())).await?;
    assert_eq!(ctx.run("hers").object().await?.annotations()[names::ANNOTATION_CREATED_BY], "alice");
    let hers = ctx.ask(ctx.run("hers"), "pay", payment(500)).await?;
    hers.wait_for(Condition::Pending, Reason::AwaitingDecision).await?;
    refusal(hers.patch(&ctx.client, json!({ "fourEyes": false })).await)?;
    refusal(ctx.run("hers").try_patch_spec(json!({ "fourEyes": false })).await)?;
    hers.decide(&alice, "alice", json!({})).await?;
    hers.expect_removed(Reason::FourEyesViolated, "alice has created the run").await?;
    hers.decide(&bob, "bob", json!({ "decision": { "verdict": "Changed", "changes": { "cents": 300 } } }))
        .await?;
    hers.wait_for(Condition::Applied, Reason::Answered).await?;
    let wait = hers.worker.get("waits/pay?seconds=5").await?;
    assert!(wait.body.contains("\"changed\"") && wait.body.contains("300"), "{wait:?}");
    let audit = operator::run(&["audit", "show", &hers.run.key()]).await?;
    assert!(audit.contains("decisionRefused"), "{audit}");

    let gitops = ctx.as_user(&flux).await?;
    objects::create::<AgentRun>(&gitops, &ctx.namespace, manifest(&ctx, "gitops", eyes)).await?;
    let theirs = ctx.ask(ctx.run("gitops"), "pay", payment(500)).await?;
    theirs.wait_for(Condition::Pending, Reason::AwaitingDecision).await?;
    theirs.decide(&bob, "bob", json!({})).await?;
    theirs.wait_for(Condition::Pending, Reason::AwaitingSecondDecision).await?;
    let hash = theirs.object().await?.spec.proposal_hash;
    let second = |by: &str| json!({ "secondDecision": { "verdict": "Approved", "proposalHash": hash, "reason": "", "by": by } });
    refusal(theirs.patch(&bob, second("bob")).await)?;
    refusal(theirs.patch(&bob, second("carol")).await)?;
    theirs.patch(&carol, second("carol")).await?;
    theirs.wait_for(Condition::Applied, Reason::Answered).await?;
    let wait = theirs.worker.get("waits/pay?seconds=5").await?;
    assert!(wait.body.contains("bob, carol"), "{wait:?}");
    ctx.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn four_eyes_exclude_who_wrote_the_agent_and_who_sent_the_run_a_message() -> Result {
    let ctx = TestContext::new("eyes-authors").await?;
    let kinds = |resources, verbs| Rights { group: "dalsegno.dev", resources, verbs };
    ctx.grant("alice", kinds(&["agentruns"], &["create"])).await?;
    ctx.grant("carol", kinds(&["agentdefinitions"], &["create"])).await?;
    ctx.grant("carol", Rights { group: "", resources: &["pods"], verbs: &["create"] }).await?;
    let [alice, bob, carol] =
        [ctx.as_user("alice").await?, ctx.as_user("bob").await?, ctx.as_user("carol").await?];
    let definition = Definition::new().manifest("agent");
    objects::create::<AgentDefinition>(&carol, &ctx.namespace, definition).await?;
    let agent = Agent::from_definition("agent", json!({ "neverAttach": true }));
    let run = agent.spec(json!({ "fourEyes": true })).manifest("run", &ctx.ledger.url());
    objects::create::<AgentRun>(&alice, &ctx.namespace, run).await?;

    let asked = ctx.ask(ctx.run("run"), "pay", payment(500)).await?;
    let ada = Sender::new(&ctx, &asked.worker, (&asked.run, "ada")).await?;
    let (_, id) = ada.send(1, "price").await?;
    let inbox = asked.worker.get("inbox").await?;
    assert!(inbox.body.contains(&id), "{inbox:?}");
    asked.wait_for(Condition::Pending, Reason::AwaitingDecision).await?;
    for user in ["alice", "bob", "carol", &ada.user] {
        ctx.grant(user, APPROVER).await?;
    }

    let sender = ctx.as_user(&ada.user).await?;
    let excluded = [
        (&sender, ada.user.as_str(), "has sent a message to the run"),
        (&carol, "carol", "has last changed the agent of the run"),
        (&alice, "alice", "has created the run"),
    ];
    for (client, user, why) in excluded {
        asked.decide(client, user, json!({})).await?;
        asked.expect_removed(Reason::FourEyesViolated, &format!("{user} {why}")).await?;
        let wait = asked.worker.get("waits/pay?seconds=0").await?;
        assert!(wait.body.contains("\"open\""), "{user}: {wait:?}");
    }
    let audit = operator::run(&["audit", "show", &asked.run.key()]).await?;
    assert_eq!(audit.matches("decisionRefused").count(), excluded.len(), "{audit}");

    // One who is none of these decides alone: a person has created the run, and a person has written its agent.
    asked.decide(&bob, "bob", json!({})).await?;
    asked.wait_for(Condition::Applied, Reason::Answered).await?;
    let wait = asked.worker.get("waits/pay?seconds=5").await?;
    assert!(wait.body.contains("\"approved\"") && wait.body.contains("bob"), "{wait:?}");
    ctx.end().await
}
