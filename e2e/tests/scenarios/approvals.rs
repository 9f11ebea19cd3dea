//! A person decides about what an agent proposes. Nobody else does.

use dalsegno_crds::{
    AgentApproval, AgentRun, ApprovalConditionType as Condition, ApprovalReason as Reason, Summary, names,
};
use dalsegno_e2e::approval::{APPROVER, Asked, manifest, payment};
use dalsegno_e2e::objects::{self, has_ended, refusal};
use dalsegno_e2e::wait::{consistently, eventually, secs};
use dalsegno_e2e::{Result, Rights, StatusExt, TestContext, operator, process};
use dalsegno_protocol::{Code, WaitOutcome};
use kube::ResourceExt;
use serde_json::{Value, json};

const EDITOR: Rights<'static> =
    Rights { group: "dalsegno.dev", resources: &["agentruns", "agentapprovals"], verbs: &["*"] };

async fn ask<'c>(ctx: &'c TestContext, name: &str, spec: Value) -> Result<Asked<'c>> {
    ctx.create_run(manifest(ctx, name, spec)).await?;
    ctx.ask(ctx.run(name), "pay", payment(500)).await
}

/// The commands are those of `docs/guides/approvals.md`.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_holds_no_pod_while_a_person_decides_and_the_approval_allows_one_call() -> Result {
    let ctx = TestContext::new("approve").await?;
    let asked = ask(&ctx, "run", json!({})).await?;
    asked.worker.expect_not_granted("early", "pay").await?;
    asked.park(&["pay"]).await?;
    let waiting = asked.run.wait_for(Summary::Waiting, secs(30)).await?;
    assert_eq!(waiting.recovery().recovery_attempts, 0);
    asked.wait_for(Condition::Pending, Reason::AwaitingDecision).await?;
    eventually("the parked worker's pod to end", secs(60), async || {
        Ok(asked.run.pods().await?.iter().all(has_ended).then_some(()))
    })
    .await?;
    consistently("no pod while a person decides", secs(5), async || ctx.audit.expect_pods("run", [1]))
        .await?;

    ctx.grant("alice", APPROVER).await?;
    let hash = asked.object().await?.spec.proposal_hash;
    let decision = json!({ "spec": { "decision": {
        "verdict": "Approved", "proposalHash": hash, "reason": "the invoice is right", "by": "alice" } } });
    let name = asked.name.as_str();
    let decide =
        ["patch", "agentapproval", name, "--namespace", &ctx.namespace, "--type", "merge", "--patch"];
    let decision = decision.to_string();
    process::kubectl([&decide[..], &[&decision, "--as", "alice"]].concat()).await?;

    let applied = asked.wait_for(Condition::Applied, Reason::Answered).await?;
    assert!(applied.status.as_ref().is_some_and(|it| it.decided_time.is_some()), "{applied:#?}");
    let (worker, attached) = ctx.play(&asked.run, 2).await?;
    let [wait] = &attached.waits[..] else { panic!("{attached:?}") };
    let answer = wait.answer.clone().expect("the wait is answered");
    assert_eq!((answer.outcome, answer.by.as_deref()), (WaitOutcome::Approved, Some("alice")));
    assert_eq!(answer.reason.as_deref(), Some("the invoice is right"));

    // Two payments on one approval, and one on an approval that nobody asked for.
    assert_eq!(worker.claim("payment", "pay").await?.status, 200);
    assert_eq!(worker.claim("second", "pay").await?.problem()?.code, Code::ApprovalSpent);
    worker.expect_not_granted("third", "another").await?;

    // What the agent wrote is in no event, and what alice did is in the audit.
    let template = "jsonpath={range .items[*]}{.reason}{': '}{.note}{'\\n'}{end}";
    let events =
        process::kubectl(["get", "events.events.k8s.io", "-n", &ctx.namespace, "-o", template]).await?;
    assert!(
        events.contains(&format!("ApprovalRequested: the agent asks for a decision: AgentApproval {name}")),
        "{events}"
    );
    assert!(
        events.contains(&format!("ApprovalDecided: AgentApproval {name}: Approved by alice")),
        "{events}"
    );
    assert!(!events.contains("cents") && !events.contains("invoice"), "{events}");
    let audit = operator::run(&["audit", "show", &asked.run.key()]).await?;
    assert!(audit.contains("waitAnswered") && audit.contains("alice"), "{audit}");
    assert!(audit.contains("approvalUsed"), "{audit}");
    ctx.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_decision_that_is_forged_is_refused_by_the_api_server() -> Result {
    let ctx = TestContext::new("forged").await?;
    let asked = ask(&ctx, "run", json!({})).await?;
    ctx.create_run(manifest(&ctx, "other", json!({}))).await?;
    let other = ctx.ask(ctx.run("other"), "pay", payment(700)).await?;
    asked.wait_for(Condition::Pending, Reason::AwaitingDecision).await?;
    for user in ["alice", "bob"] {
        ctx.grant(user, APPROVER).await?;
    }
    ctx.grant("ed", EDITOR).await?;
    let edit = ["create", "rolebinding", "edith", "--clusterrole=edit", "--user=edith"];
    process::kubectl([&edit[..], &["--namespace", &ctx.namespace]].concat()).await?;
    let edith = ctx.as_user("edith").await?;
    ctx.grant("ed", Rights { group: "", resources: &["pods"], verbs: &["create"] }).await?;
    let [alice, bob, ed] = [ctx.as_user("alice").await?, ctx.as_user("bob").await?, ctx.as_user("ed").await?];
    let before = asked.object().await?;
    let others_hash = other.object().await?.spec.proposal_hash;
    let with_hash = |hash: &str| json!({ "decision": { "proposalHash": hash } });

    // `*` on the kind includes the verb `approve`, so that is taken from ed by naming the verbs.
    ctx.grant(
        "eve",
        Rights { group: "dalsegno.dev", resources: &["agentapprovals"], verbs: &["get", "patch", "update"] },
    )
    .await?;
    let eve = ctx.as_user("eve").await?;
    let refused = [
        ("without approve", refusal(asked.decide(&eve, "eve", json!({})).await)?, "verb approve"),
        ("with edit", refusal(asked.decide(&edith, "edith", json!({})).await)?, "cannot patch"),
        ("in another's name", refusal(asked.decide(&alice, "bob", json!({})).await)?, "\"alice\""),
        (
            "of another run",
            refusal(asked.decide(&alice, "alice", with_hash(&others_hash)).await)?,
            "proposalHash",
        ),
        (
            "of no proposal",
            refusal(asked.decide(&alice, "alice", with_hash(&"0".repeat(71))).await)?,
            "proposalHash",
        ),
        ("title", refusal(asked.patch(&alice, json!({ "title": "pay 5 cents" })).await)?, "only"),
        ("summary", refusal(asked.patch(&alice, json!({ "summary": "all is well" })).await)?, "only"),
        ("hash", refusal(asked.patch(&alice, json!({ "proposalHash": others_hash })).await)?, "only"),
        ("four eyes", refusal(asked.patch(&ed, json!({ "fourEyes": true })).await)?, "only"),
    ];
    for (what, message, expected) in &refused {
        assert!(message.contains(expected), "{what}: {message}");
    }
    // The agent cannot exchange what people see either.
    let exchanged = asked.worker.post("waits/pay", payment(5)).await?;
    assert_eq!(exchanged.problem()?.code, Code::Invalid);
    let label = json!({ "metadata": { "labels": { "team": "night" } } });
    let labelled = objects::patch::<AgentApproval>(&alice, &ctx.namespace, &asked.name, &label).await;
    assert!(refusal(labelled)?.contains("labels"));

    // Planted: a copy of the object, and one of the same name after somebody deleted the operator's.
    let mut planted = serde_json::to_value(&before)?;
    planted["metadata"] = json!({ "name": "planted", "ownerReferences": before.metadata.owner_references });
    planted.as_object_mut().map(|it| it.remove("status"));
    let created = objects::create::<AgentApproval>(&ed, &ctx.namespace, planted.clone()).await;
    assert!(refusal(created)?.contains("only the operator creates"));
    objects::delete::<AgentApproval>(&ed, &ctx.namespace, &asked.name).await?;
    planted["metadata"]["name"] = json!(asked.name);
    let created = objects::create::<AgentApproval>(&ed, &ctx.namespace, planted).await;
    assert!(refusal(created)?.contains("only the operator creates"));
    let again = eventually("the deleted AgentApproval to be created again", secs(40), async || {
        Ok(ctx.api::<AgentApproval>().get_opt(&asked.name).await?.filter(|it| it.uid() != before.uid()))
    })
    .await?;
    assert_eq!(again.spec, before.spec);
    asked.wait_for(Condition::Pending, Reason::AwaitingDecision).await?;

    // The approval of another run, under the same id, allows nothing here.
    other.decide(&alice, "alice", json!({})).await?;
    other.wait_for(Condition::Applied, Reason::Answered).await?;
    asked.worker.expect_not_granted("early", "pay").await?;

    // Decided once.
    asked.decide(&bob, "bob", json!({ "decision": { "verdict": "Denied", "reason": "too much" } })).await?;
    asked.wait_for(Condition::Applied, Reason::Answered).await?;
    refusal(asked.decide(&alice, "alice", json!({})).await)?;
    refusal(asked.patch(&bob, json!({ "decision": null })).await)?;
    refusal(asked.decide(&bob, "bob", json!({})).await)?;
    let wait = asked.worker.get("waits/pay?seconds=0").await?;
    assert!(wait.body.contains("denied") && wait.body.contains("too much"), "{wait:?}");
    asked.worker.expect_not_granted("payment", "pay").await?;
    ctx.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn of_an_approval_and_a_denial_at_the_same_time_one_counts() -> Result {
    let ctx = TestContext::new("raced").await?;
    let asked = ask(&ctx, "run", json!({})).await?;
    asked.wait_for(Condition::Pending, Reason::AwaitingDecision).await?;
    for user in ["alice", "bob"] {
        ctx.grant(user, APPROVER).await?;
    }
    let (alice, bob) = (ctx.as_user("alice").await?, ctx.as_user("bob").await?);
    let (approved, denied) = tokio::join!(
        asked.decide(&alice, "alice", json!({})),
        asked.decide(&bob, "bob", json!({ "decision": { "verdict": "Denied" } })),
    );
    assert!(approved.is_ok() != denied.is_ok(), "{approved:?} {denied:?}");
    asked.wait_for(Condition::Applied, Reason::Answered).await?;
    let wait = asked.worker.get("waits/pay?seconds=5").await?;
    assert_eq!(wait.body.contains("\"approved\""), approved.is_ok(), "{wait:?}");
    ctx.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_is_created_again_under_its_name_needs_a_decision_of_its_own() -> Result {
    let ctx = TestContext::new("again").await?;
    ctx.grant("alice", APPROVER).await?;
    let alice = ctx.as_user("alice").await?;
    let first = ask(&ctx, "run", json!({})).await?;
    first.wait_for(Condition::Pending, Reason::AwaitingDecision).await?;
    first.decide(&alice, "alice", json!({})).await?;
    let first = (first.wait_for(Condition::Applied, Reason::Answered).await?, first.name);
    ctx.run("run").delete(secs(60)).await?;
    eventually("the AgentApproval to be deleted with its run", secs(60), async || {
        Ok(ctx.api::<AgentApproval>().get_opt(&first.1).await?.is_none().then_some(()))
    })
    .await?;

    let again = ask(&ctx, "run", json!({})).await?;
    let object = again.wait_for(Condition::Pending, Reason::AwaitingDecision).await?;
    assert!(object.spec.decision.is_none(), "{object:#?}");
    assert_ne!((&again.name, &object.spec.proposal_hash), (&first.1, &first.0.spec.proposal_hash));
    let old = json!({ "decision": first.0.spec.decision });
    assert!(refusal(again.decide(&alice, "alice", old).await)?.contains("proposalHash"));
    again.worker.expect_not_granted("payment", "pay").await?;
    again.decide(&alice, "alice", json!({})).await?;
    again.wait_for(Condition::Applied, Reason::Answered).await?;
    assert_eq!(again.worker.claim("payment", "pay").await?.status, 200);
    ctx.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn after_its_deadline_an_approval_cannot_be_decided() -> Result {
    let ctx = TestContext::new("expired").await?;
    ctx.create_run(manifest(&ctx, "run", json!({}))).await?;
    let mut body = payment(500);
    body["deadlineSeconds"] = json!(20);
    let asked = ctx.ask(ctx.run("run"), "pay", body).await?;
    asked.park(&["pay"]).await?;
    ctx.grant("alice", APPROVER).await?;
    asked.wait_for(Condition::Expired, Reason::DeadlinePassed).await?;
    let alice = ctx.as_user("alice").await?;
    assert!(refusal(asked.decide(&alice, "alice", json!({})).await)?.contains("is over"));
    let (_, attached) = ctx.play(&asked.run, 2).await?;
    let outcomes: Vec<_> =
        attached.waits.iter().filter_map(|it| it.answer.as_ref().map(|it| it.outcome)).collect();
    assert_eq!(outcomes, [WaitOutcome::TimedOut]);
    ctx.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_run_withdraws_its_approvals() -> Result {
    let ctx = TestContext::new("withdrawn").await?;
    let asked = ask(&ctx, "run", json!({})).await?;
    asked.park(&["pay"]).await?;
    asked.run.cancel().await?;
    asked.wait_for(Condition::Withdrawn, Reason::WaitWithdrawn).await?;
    ctx.grant("alice", APPROVER).await?;
    let alice = ctx.as_user("alice").await?;
    assert!(refusal(asked.decide(&alice, "alice", json!({})).await)?.contains("is over"));
    ctx.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_api_server_says_who_changed_a_run_and_nobody_can_forge_it() -> Result {
    let ctx = TestContext::new("stamps").await?;
    ctx.grant("alice", Rights { group: "dalsegno.dev", resources: &["agentruns"], verbs: &["*"] }).await?;
    ctx.grant("alice", Rights { group: "", resources: &["pods"], verbs: &["create"] }).await?;
    let alice = ctx.as_user("alice").await?;
    let mut forged = manifest(&ctx, "run", json!({}));
    forged["metadata"]["annotations"] =
        json!({ names::ANNOTATION_CREATED_BY: "bob", names::ANNOTATION_SPEC_BY: "1 bob" });
    objects::create::<AgentRun>(&alice, &ctx.namespace, forged).await?;
    let stamps = async || {
        let annotations = ctx.run("run").object().await?.annotations().clone();
        let of = |name: &str| annotations.get(name).cloned().unwrap_or_default();
        Ok::<_, anyhow::Error>([
            of(names::ANNOTATION_CREATED_BY),
            of(names::ANNOTATION_SPEC_BY),
            of(names::ANNOTATION_OPERATING_MODE_BY),
        ])
    };
    assert_eq!(stamps().await?, ["alice", "1 alice", ""]);
    let change = json!({ "metadata": { "annotations": { names::ANNOTATION_OPERATING_MODE_BY: "2 bob",
                         names::ANNOTATION_REASON: "too expensive" } }, "spec": { "operatingMode": "Suspended" } });
    objects::patch::<AgentRun>(&alice, &ctx.namespace, "run", &change).await?;
    assert_eq!(stamps().await?, ["alice", "1 alice", "2 alice"]);
    let forged = json!({ "metadata": { "annotations": { names::ANNOTATION_OPERATING_MODE_BY: "2 bob",
                                                        names::ANNOTATION_CREATED_BY: null } } });
    objects::patch::<AgentRun>(&alice, &ctx.namespace, "run", &forged).await?;
    assert_eq!(stamps().await?, ["alice", "1 alice", "2 alice"]);
    let status =
        ctx.run("run").wait_until("to be suspended by alice", secs(60), |it| it.suspend.is_some()).await?;
    assert_eq!(status.suspend.and_then(|it| it.by).as_deref(), Some("alice"));
    let audit = operator::run(&["audit", "show", &ctx.run("run").key()]).await?;
    assert!(audit.contains("alice"), "{audit}");
    ctx.end().await
}
