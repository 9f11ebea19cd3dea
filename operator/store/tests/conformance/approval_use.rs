//! An approval allows one call: the claim that names it. And decisions that do not count.

use dalsegno_model::{
    Answered, BoundaryQuery, CallFilter, Claim, Claimed, OpenWaitRequest, RefusedDecision, Rewind,
    WaitAnswer, WaitDecision,
};
use dalsegno_protocol::{Policy, WaitOutcome};
use dalsegno_store::checkpoint;

use super::rewinds::done;
use super::waits::{approval, later, open, request};
use crate::context::*;
use crate::engines::on_every_engine;

on_every_engine! {
    an_approval_allows_the_first_call_that_claims_it_and_no_other,
    what_is_not_approved_allows_no_call,
    a_claim_that_does_not_go_uses_no_approval,
    of_many_claims_at_once_one_uses_the_approval,
    a_rewind_takes_the_approval_with_it,
    a_refused_decision_is_in_the_audit_and_changes_nothing,
    the_checkpoint_of_the_head_shows_the_proposal_that_waits,
}

const POLICY: Policy = Policy::RetrySameKey;

/// Asks for an approval and answers it.
async fn answered(cx: &TestContext, worker: &Worker, id: &str, outcome: WaitOutcome) {
    let epoch = open(cx, &request(worker, id, approval())).await.facts.epoch;
    let changes = (outcome == WaitOutcome::Changed).then(|| json("{}"));
    let decision = WaitDecision { by: "ada".into(), reason: None, changes };
    let answer = WaitAnswer { id: id.into(), epoch, outcome, decision };
    assert!(matches!(cx.answer_wait(worker.run, &answer).await.unwrap(), Answered::Ok(_)));
}

fn allowed(worker: &Worker, call: &str, approval: &str) -> Claim {
    Claim { approval: Some(approval.into()), ..worker.claim(call, POLICY) }
}

async fn used(cx: &TestContext, worker: &Worker) -> usize {
    cx.audit(worker.run).await.unwrap().iter().filter(|row| row.kind == "approvalUsed").count()
}

/// The details of the refused uses in the audit.
async fn refused(cx: &TestContext, worker: &Worker) -> Vec<serde_json::Value> {
    let audit = cx.audit(worker.run).await.unwrap();
    let refused = audit.iter().filter(|row| row.kind == "approvalRefused");
    refused.map(|row| serde_json::from_str(&row.detail).unwrap()).collect()
}

async fn an_approval_allows_the_first_call_that_claims_it_and_no_other(cx: &TestContext) {
    let worker = cx.worker().await;
    answered(cx, &worker, "pay", WaitOutcome::Approved).await;
    answered(cx, &worker, "refund", WaitOutcome::Changed).await;
    let first = allowed(&worker, "payment", "pay");
    for _ in 0..2 {
        assert!(matches!(cx.claim(&first).await.unwrap(), Claimed::Go(_)));
    }
    for _ in 0..2 {
        let second = cx.claim(&allowed(&worker, "second", "pay")).await.unwrap();
        assert!(matches!(second, Claimed::ApprovalSpent), "{second:?}");
    }
    assert_eq!(
        refused(cx, &worker).await,
        [serde_json::json!({ "wait": "pay", "call": "second", "reason": "spent" })]
    );
    assert!(!cx.call_ids(worker.run, CallFilter::All).await.contains(&"second".to_owned()));
    cx.complete(&worker.complete(&first)).await.unwrap();
    assert!(matches!(cx.claim(&allowed(&worker, "payment", "pay")).await.unwrap(), Claimed::Done(_)));
    assert!(matches!(cx.claim(&allowed(&worker, "back", "refund")).await.unwrap(), Claimed::Go(_)));
    assert_eq!(used(cx, &worker).await, 2);
    // The next attempt claims the same call again.
    let next = cx.next_worker(&worker).await;
    assert!(matches!(cx.claim(&allowed(&next, "back", "refund")).await.unwrap(), Claimed::Go(_)));
    assert_eq!(used(cx, &worker).await, 2);
    cx.assert_audit_is_valid(worker.run).await;
}

async fn what_is_not_approved_allows_no_call(cx: &TestContext) {
    let worker = cx.worker().await;
    open(cx, &request(&worker, "open", approval())).await;
    open(cx, &request(&worker, "noon", later())).await;
    answered(cx, &worker, "denied", WaitOutcome::Denied).await;
    for approval in ["open", "noon", "denied", "never asked"] {
        let claimed = cx.claim(&allowed(&worker, "payment", approval)).await.unwrap();
        assert!(
            matches!(&claimed, Claimed::ApprovalNotGranted(why) if why.contains(approval)),
            "{claimed:?}"
        );
    }
    assert!(cx.call_ids(worker.run, CallFilter::All).await.is_empty());
    let names: Vec<_> = refused(cx, &worker).await.iter().map(|it| it["wait"].clone()).collect();
    assert_eq!(names, ["open", "noon", "denied", "never asked"], "each is in the audit");
    // Without an approval in the claim, none is needed.
    assert!(matches!(cx.claim(&worker.claim("payment", POLICY)).await.unwrap(), Claimed::Go(_)));
}

async fn a_claim_that_does_not_go_uses_no_approval(cx: &TestContext) {
    let worker = cx.worker().await;
    answered(cx, &worker, "pay", WaitOutcome::Approved).await;
    let keyless = Claim { key: None, ..allowed(&worker, "keyless", "pay") };
    assert!(matches!(cx.claim(&keyless).await.unwrap(), Claimed::Invalid(_)));
    let foreign = Claim { capability: random_digest(), ..allowed(&worker, "foreign", "pay") };
    assert!(matches!(cx.claim(&foreign).await.unwrap(), Claimed::Fenced));
    cx.claim(&worker.claim("other", POLICY)).await.unwrap();
    let other = Claim { arguments: Some(json("7")), ..allowed(&worker, "other", "pay") };
    assert!(matches!(cx.claim(&other).await.unwrap(), Claimed::Invalid(_)));
    assert_eq!(used(cx, &worker).await, 0);
    assert!(matches!(cx.claim(&allowed(&worker, "payment", "pay")).await.unwrap(), Claimed::Go(_)));
}

async fn of_many_claims_at_once_one_uses_the_approval(cx: &TestContext) {
    let worker = cx.worker().await;
    answered(cx, &worker, "pay", WaitOutcome::Approved).await;
    let claims: Vec<_> = (0..8).map(|n| allowed(&worker, &format!("payment-{n}"), "pay")).collect();
    let claimed = futures::future::join_all(claims.iter().map(|claim| cx.claim(claim))).await;
    let go = claimed.iter().filter(|it| matches!(it, Ok(Claimed::Go(_)))).count();
    let spent = claimed.iter().filter(|it| matches!(it, Ok(Claimed::ApprovalSpent))).count();
    assert_eq!((go, spent), (1, 7), "{claimed:?}");
    cx.assert_audit_is_valid(worker.run).await;
}

async fn a_rewind_takes_the_approval_with_it(cx: &TestContext) {
    let worker = cx.worker().await;
    cx.commit_turn(&worker, 1).await;
    cx.commit_turn(&worker, 2).await;
    answered(cx, &worker, "pay", WaitOutcome::Approved).await;
    let row = cx.run_of(&worker).await;
    let rewind =
        Rewind { epoch: row.epoch, to: result_place(1), actor: "ada".into(), reason: "again".into() };
    let row = done(cx.rewind(worker.run, &rewind).await.unwrap());
    let next = cx.start_worker(&row).await;
    let claimed = cx.claim(&allowed(&next, "payment", "pay")).await.unwrap();
    assert!(matches!(claimed, Claimed::ApprovalNotGranted(_)), "{claimed:?}");
}

async fn a_refused_decision_is_in_the_audit_and_changes_nothing(cx: &TestContext) {
    let worker = cx.worker().await;
    let epoch = open(cx, &request(&worker, "pay", approval())).await.facts.epoch;
    let refused =
        RefusedDecision { id: "pay".into(), epoch, by: "eve".into(), reason: "FourEyesViolated".into() };
    let row = cx.refuse_decision(worker.run, &refused).await.unwrap();
    assert_eq!(row.waits.len(), 1);
    let last = cx.audit(worker.run).await.unwrap().pop().unwrap();
    assert_eq!((&*last.kind, &*last.actor), ("decisionRefused", "operator"));
    assert!(last.detail.contains("eve") && last.detail.contains("FourEyesViolated"), "{}", last.detail);
    let before = cx.audit(worker.run).await.unwrap().len();
    for other in [
        RefusedDecision { id: "other".into(), ..refused.clone() },
        RefusedDecision { epoch: epoch + 1, ..refused },
    ] {
        cx.refuse_decision(worker.run, &other).await.unwrap();
    }
    assert_eq!(cx.audit(worker.run).await.unwrap().len(), before);
    cx.assert_audit_is_valid(worker.run).await;
}

async fn the_checkpoint_of_the_head_shows_the_proposal_that_waits(cx: &TestContext) {
    let worker = cx.worker().await;
    cx.commit_turn(&worker, 1).await;
    cx.commit_turn(&worker, 2).await;
    let proposal = async |turn| {
        let document = checkpoint(&*cx.store, &cx.run_of(&worker).await, turn).await.unwrap().unwrap();
        document.pending_proposal.map(|it| it.get().to_owned())
    };
    assert_eq!(proposal(None).await, None);
    let body = json(r#"{"kind":"approval","title":"pay","proposal":{"cents":  5}}"#);
    open(cx, &OpenWaitRequest { body, ..request(&worker, "pay", approval()) }).await;
    assert_eq!(proposal(None).await.as_deref(), Some(r#"{"cents":  5}"#));
    assert_eq!(proposal(Some(BoundaryQuery::Turn(1))).await, None, "only the head");
}
