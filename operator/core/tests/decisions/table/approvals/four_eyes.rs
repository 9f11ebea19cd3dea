//! Who must not decide, and when two people must.

use dalsegno_core::approvals::four_eyes::Author;

use super::*;

fn facts(creator: Author, agent: Author) -> FourEyes {
    let current = run().seen.agent().cloned().map(Box::new);
    FourEyes { creator, agent, current, messages: vec!["mallory".into()] }
}

fn user(name: &str) -> Author {
    Author::User(name.into())
}

/// What becomes of decisions by these users.
fn outcome(facts: FourEyes, spec: Value) -> String {
    let mut case = case(|_| {});
    case.given.run.spec.four_eyes = Some(true);
    let mut case = case.decided(spec).four_eyes(facts);
    match case.until("answer-wait") {
        Some(ApprovalEffect::AnswerWait(_, answer)) => {
            format!("{:?} by {}", answer.outcome, answer.decision.by)
        }
        _ => pending(case.object()).1.to_string(),
    }
}

#[test]
fn four_eyes() {
    let second = |verdict: &str, by: &str| {
        let mut spec = approved("bob");
        spec["secondDecision"] = decision(verdict, by);
        spec
    };
    let people = || facts(user("alice"), user("ann"));
    let flux = || facts(user("system:serviceaccount:flux:flux"), user("ann"));
    let unproven = || facts(user("alice"), Author::NotProven);
    let unknown = || facts(user("alice"), Author::Unknown("it does not exist".into()));
    let denied = json!({ "decision": decision("Denied", "bob") });
    for (facts, spec, expected) in [
        (people(), approved("bob"), "Approved by bob"),
        (people(), approved("alice"), "FourEyesViolated"),
        (people(), approved("ann"), "FourEyesViolated"),
        (people(), approved("mallory"), "FourEyesViolated"),
        (flux(), approved("bob"), "AwaitingSecondDecision"),
        (flux(), second("Approved", "carol"), "Approved by bob, carol"),
        (flux(), second("Denied", "carol"), "Denied by bob, carol"),
        (flux(), second("Approved", "ann"), "FourEyesViolated"),
        (flux(), second("Approved", "bob"), "FourEyesViolated"),
        (flux(), denied, "Denied by bob"),
        (unproven(), approved("bob"), "AwaitingSecondDecision"),
        (unproven(), second("Approved", "carol"), "Approved by bob, carol"),
        (unknown(), approved("bob"), "FourEyesUnknown"),
    ] {
        assert_eq!(outcome(facts.clone(), spec.clone()), expected, "{facts:?} {spec}");
    }
}

#[test]
fn a_pending_approval_keeps_its_four_eyes_although_the_run_demands_none() {
    let mut case = case(|_| {});
    case.given.run.spec.four_eyes = Some(true);
    let object = case.settle();
    assert!(object.spec.four_eyes);
    case.given.run.spec.four_eyes = None;
    assert!(case.settle().spec.four_eyes);
}
