//! Which decisions count.

use super::*;

#[test]
fn a_decision_answers_the_wait() {
    for (verdict, outcome) in [
        ("Approved", WaitOutcome::Approved),
        ("Denied", WaitOutcome::Denied),
        ("Changed", WaitOutcome::Changed),
    ] {
        let mut decision = decision(verdict, "alice");
        if verdict == "Changed" {
            decision["changes"] = json!({ "cents": 3 });
        }
        let mut case = case(|_| {}).decided(json!({ "decision": decision }));
        let Some(ApprovalEffect::AnswerWait(_, answer)) = case.until("answer-wait") else {
            panic!("{verdict}")
        };
        assert_eq!((answer.outcome, &*answer.id, answer.epoch), (outcome, "pay", 3));
        assert_eq!((&*answer.decision.by, answer.decision.reason.as_deref()), ("alice", Some("because")));
        let changes = answer.decision.changes.map(|it| it.get().to_owned());
        assert_eq!(changes.as_deref(), (verdict == "Changed").then_some(r#"{"cents":3}"#));
    }
}

#[test]
fn no_decision_counts_before_the_policies_were_looked_at_or_while_one_is_missing() {
    let case = case(|_| {}).decided(approved("alice"));
    let names: Vec<_> = case.effects().iter().map(ApprovalEffect::name).collect();
    assert_eq!(names, ["read-policies"]);
    let mut case = case;
    case.approvals().policies = PolicyState::Missing("the policy does not exist".into());
    let object = case.settle();
    assert_eq!(pending(&object), (true, ApprovalReason::PolicyMissing));
    assert!(object.spec.decision.is_some(), "it waits");
}

#[test]
fn an_object_from_before_the_policies_is_replaced_with_its_decision() {
    let mut case = case(|_| {}).decided(approved("alice"));
    let created = &mut case.approvals().objects[0].object.metadata.creation_timestamp;
    *created = Some(Time(ago(50)));
    case.approvals().policies = PolicyState::InPlace { since: ago(49) };
    // In the audit first.
    let Some(ApprovalEffect::RefuseDecision { reason, .. }) = case.until("refuse-decision") else {
        panic!("{:?}", case.effects())
    };
    assert_eq!(reason, ApprovalReason::DecidedWithoutPolicy);
    assert!(matches!(case.until("delete-approval"), Some(ApprovalEffect::Delete { .. })));
    let object = case.settle();
    assert_eq!(
        (object.spec.decision.is_none(), pending(&object)),
        (true, (true, ApprovalReason::AwaitingDecision))
    );
}

#[test]
fn an_object_of_another_owner_or_proposal_is_replaced() {
    type Edit = fn(&mut AgentApproval);
    let changes: [(&str, Edit); 6] = [
        ("owner", |it| it.metadata.owner_references = None),
        ("hash", |it| it.spec.proposal_hash = HASH.replace('7', "8")),
        ("turn", |it| it.spec.turn = 1),
        ("deadline", |it| it.spec.deadline_time = Some(Time(ago(0)))),
        ("run", |it| it.spec.run_ref.name = "other".into()),
        ("title", |it| it.spec.title = "Give".into()),
    ];
    for (what, change) in changes {
        let mut case = case(|_| {}).decided(approved("alice"));
        change(&mut case.approvals().objects[0].object);
        let effect = case.until("answer-wait");
        assert!(effect.is_none(), "{what}: {effect:?}");
        assert!(case.object().spec.decision.is_none(), "{what}");
    }
}

#[test]
fn a_decision_about_another_proposal_or_with_large_changes_is_removed() {
    let mut other = decision("Approved", "alice");
    other["proposalHash"] = json!(HASH.replace('7', "8"));
    let mut large = decision("Changed", "alice");
    large["changes"] = json!("x".repeat(17_000));
    for (decision, reason) in
        [(other, ApprovalReason::OtherProposal), (large, ApprovalReason::ChangesTooLarge)]
    {
        let mut case = case(|_| {}).decided(json!({ "decision": decision }));
        let object = case.settle();
        assert_eq!(pending(&object), (true, reason));
        assert!(object.spec.decision.is_none());
    }
}
