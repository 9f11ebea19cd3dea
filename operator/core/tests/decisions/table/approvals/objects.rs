//! Which AgentApproval an open approval has.

use super::*;

#[test]
fn an_open_approval_gets_an_object_that_shows_the_agents_words() {
    let object = case(|_| {}).settle();
    let spec = &object.spec;
    assert_eq!((&*spec.title, &*spec.summary, &*spec.proposal_hash), ("Buy", "It is cheap", HASH));
    assert_eq!((&*spec.wait_id, spec.epoch, spec.turn, spec.four_eyes), ("pay", 3, 7, false));
    assert_eq!(pending(&object), (true, ApprovalReason::AwaitingDecision));
    assert_eq!(object.metadata.owner_references, Some(vec![run().run.owner_reference()]));
}

#[test]
fn the_name_depends_on_the_run_the_wait_and_its_epoch() {
    let of = |uid: &str, id: &str, epoch: i64| {
        let mut run = run().run;
        run.metadata.uid = Some(uid.into());
        name_of(&run, &WaitKey { id: id.into(), epoch })
    };
    let first = of("u", "pay", 3);
    assert!(first.starts_with("triage-") && first.len() == "triage-".len() + 10, "{first}");
    assert_eq!(first, of("u", "pay", 3));
    for other in [of("v", "pay", 3), of("u", "pax", 3), of("u", "pay", 4), of("up", "ay", 3)] {
        assert_ne!(first, other);
    }
}

#[test]
fn an_object_is_created_only_once_the_policies_are_obeyed_everywhere() {
    let mut case = case(|_| {});
    case.approvals().policies = PolicyState::InPlace { since: ago(3) };
    assert!(case.effects().is_empty());
    assert!(case.decide().requeue.is_some());
}
