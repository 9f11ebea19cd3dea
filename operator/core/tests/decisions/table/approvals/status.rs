//! What people see of an approval, and which AgentApprovals are kept.

use super::*;

#[test]
fn the_status_shows_how_an_approval_ended() {
    use ApprovalConditionType::{Applied, Expired, Withdrawn};
    for (closed, kind, reason) in [
        (ClosedWait::Decided(Verdict::Denied), Applied, ApprovalReason::Answered),
        (ClosedWait::TimedOut, Expired, ApprovalReason::DeadlinePassed),
        (ClosedWait::Withdrawn, Withdrawn, ApprovalReason::WaitWithdrawn),
    ] {
        let mut case = case(|_| {}).decided(approved("alice"));
        (case.given.row.waits, case.given.row.park) = (Vec::new(), None);
        let approvals = case.seen.approvals.clone();
        case.seen = Observed { approvals, ..case.given.observed() };
        let key = case.key();
        case.approvals().waits.insert(key, Some(known(Some(closed))));
        let object = case.settle();
        assert_eq!(condition(&object, kind), (true, reason));
        assert!(!pending(&object).0);
    }
}

#[test]
fn the_last_twenty_approvals_that_are_over_are_kept_and_strangers_are_deleted() {
    let mut case = case(|_| {});
    let mut over = case.settle();
    case.given.row.waits.clear();
    case.given.row.park = None;
    case.seen = case.given.observed();
    over.status = serde_json::from_value(json!({ "conditions": [{ "type": "Applied", "status": "True",
        "reason": "Answered", "message": "", "lastTransitionTime": "2026-11-20T11:00:00Z" }] }))
    .unwrap();
    let object = |epoch: i64| {
        let mut object = over.clone();
        object.spec.epoch = epoch;
        object.metadata.name = Some(name_of(&case.given.run, &WaitKey { id: "pay".into(), epoch }));
        object.metadata.creation_timestamp = Some(Time(Timestamp::from_second(1_000 + epoch).unwrap()));
        ObservedApproval::cached(object)
    };
    let mut objects: Vec<_> = (0..22).map(object).collect();
    let mut stranger = object(99);
    (stranger.object.metadata.owner_references, stranger.object.status) = (None, None);
    stranger.object.metadata.name = Some("stranger".into());
    objects.push(stranger);
    case.approvals().objects = objects;
    let deleted: Vec<_> = case
        .effects()
        .into_iter()
        .map(|it| match it {
            ApprovalEffect::Delete { name, .. } => name,
            other => panic!("{other:?}"),
        })
        .collect();
    let oldest = |epoch| name_of(&case.given.run, &WaitKey { id: "pay".into(), epoch });
    assert_eq!(deleted, ["stranger".to_owned(), oldest(1), oldest(0)]);
}

#[test]
fn an_api_server_that_refuses_does_not_keep_the_run_from_its_worker() {
    let mut case = case(|_| {});
    case.given.row.park = None;
    let approvals = case.seen.approvals.clone();
    case.seen = Observed { approvals, ..case.given.observed() };
    case.seen.apply(EffectResult::ApprovalFailed("forbidden".into()));
    let decision = case.decide();
    assert!(
        decision.effects.iter().any(|it| matches!(it, Effect::CreateWorker { .. })),
        "{:?}",
        decision.effects
    );
    assert!(decision.requeue.is_some());
}

#[test]
fn events_name_the_object_and_never_what_the_agent_wrote() {
    let mut case = case(|_| {});
    let mut notes = Vec::new();
    for _ in 0..6 {
        let decision = case.decide();
        notes.extend(decision.events.into_iter().map(|it| (it.reason, it.note)));
        let results: Vec<_> = case.effects().into_iter().filter_map(|it| case.perform(it)).collect();
        results.into_iter().for_each(|it| case.seen.apply(it));
    }
    let name = case.object().metadata.name.clone().unwrap();
    let requested = notes.iter().find(|(reason, _)| reason == "ApprovalRequested").unwrap();
    assert!(requested.1.contains(&name) && notes.iter().all(|(_, note)| !note.contains("Buy")), "{notes:?}");
}
