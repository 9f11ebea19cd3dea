//! A decision about a proposal that a rewind has undone.

use dalsegno_crds::{AgentApproval, ApprovalConditionType as Condition, ApprovalReason as Reason};
use dalsegno_e2e::approval::{APPROVER, manifest, payment};
use dalsegno_e2e::objects::refusal;
use dalsegno_e2e::postgres::Postgres;
use dalsegno_e2e::wait::{eventually, secs};
use dalsegno_e2e::{Result, TestContext, Worker, operator};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

/// A call of the worker that must be accepted.
async fn accepted(worker: &Worker, path: &str, body: Value) -> Result {
    let answer = worker.post(path, body).await?;
    anyhow::ensure!(answer.status == 200, "{path} was refused: {answer:?}");
    Ok(())
}

/// Of two proposals that were made from turn 2, one is approved and the other is not when turn 2 is undone, because its
/// row is damaged. Then neither allows anything, although the agent proposes the same again.
#[tokio::test(flavor = "multi_thread")]
async fn a_decision_about_a_proposal_that_a_rewind_undid_allows_nothing() -> Result {
    let ctx = TestContext::new("rewound").await?;
    let postgres = Postgres::install(&ctx.client, 1).await?;
    ctx.grant("alice", APPROVER).await?;
    let alice = ctx.as_user("alice").await?;
    let last_good = json!({ "recovery": { "onCorruptCheckpoint": "LastGood" } });
    ctx.create_run(manifest(&ctx, "run", last_good)).await?;
    let run = ctx.run("run");
    let (worker, _) = ctx.play(&run, 1).await?;
    for turn in [1, 2] {
        assert_eq!(worker.commit(turn, json!({ "turn": turn })).await?.status, 200);
    }
    for (wait, cents) in [("pay", 500), ("ship", 700)] {
        accepted(&worker, &format!("waits/{wait}"), payment(cents)).await?;
    }
    let pay = ctx.asked(run.clone(), worker.clone(), "pay").await?;
    let ship = ctx.asked(run.clone(), worker.clone(), "ship").await?;
    ship.wait_for(Condition::Pending, Reason::AwaitingDecision).await?;
    pay.wait_for(Condition::Pending, Reason::AwaitingDecision).await?;
    pay.decide(&alice, "alice", json!({})).await?;
    pay.wait_for(Condition::Applied, Reason::Answered).await?;

    let soon = Timestamp::now() + SignedDuration::from_secs(12);
    accepted(&worker, "waits/soon", json!({ "kind": "until", "time": soon.to_string() })).await?;
    let park = json!({ "parkId": uuid::Uuid::new_v4(), "on": ["ship", "soon"], "mode": "any" });
    accepted(&worker, "park", park).await?;
    let rows = format!(
        "WHERE turn = 2 AND run = (SELECT id FROM runs WHERE namespace = '{}' AND name = 'run')",
        ctx.namespace
    );
    postgres.execute(&format!(r"UPDATE boundaries SET ops = ops || '\x00' {rows}")).await?;

    ship.wait_for(Condition::Withdrawn, Reason::WaitWithdrawn).await?;
    assert!(refusal(ship.decide(&alice, "alice", json!({})).await)?.contains("is over"));
    let denied = json!({ "decision": { "verdict": "Denied" } });
    assert!(refusal(pay.decide(&alice, "alice", denied).await)?.contains("cannot be changed"));
    let (worker, attached) = ctx.play(&run, 2).await?;
    assert_eq!((attached.branch, attached.waits.len()), (1, 0), "{attached:?}");
    worker.expect_not_granted("payment", "pay").await?;
    assert_eq!(worker.commit(2, json!({ "turn": 2 })).await?.status, 200);
    accepted(&worker, "waits/pay", payment(500)).await?;
    eventually("the AgentApproval of the new proposal", secs(40), async || {
        let all = ctx.api::<AgentApproval>().list(&Default::default()).await?.items;
        Ok((all.len() == 3).then_some(()))
    })
    .await?;

    let again = ctx.asked(run.clone(), worker.clone(), "pay").await?;
    let object = again.wait_for(Condition::Pending, Reason::AwaitingDecision).await?;
    let undone = pay.object().await?;
    assert_ne!((&again.name, &object.spec.proposal_hash), (&pay.name, &undone.spec.proposal_hash));
    worker.expect_not_granted("payment", "pay").await?;
    let old = json!({ "decision": undone.spec.decision });
    assert!(refusal(again.decide(&alice, "alice", old).await)?.contains("proposalHash"));
    again.decide(&alice, "alice", json!({})).await?;
    again.wait_for(Condition::Applied, Reason::Answered).await?;
    assert_eq!(worker.claim("payment", "pay").await?.status, 200);

    let audit = operator::run(&["audit", "show", &run.key()]).await?;
    let count = |kind: &str| audit.lines().filter(|line| line.contains(kind)).count();
    assert_eq!((count(" rewound "), count(" approvalUsed ")), (1, 1), "{audit}");
    run.delete(secs(60)).await?;
    ctx.end().await?;
    postgres.remove().await
}
