//! An approval times out only if nobody has decided.

use super::*;

/// The deadline has passed.
fn overdue(on_timeout: OnTimeout) -> Case {
    case(|wait| {
        (wait.opened_at, wait.deadline_at, wait.on_timeout) = (ago(1), Some(ago(1)), on_timeout);
    })
}

#[test]
fn an_approval_times_out_only_after_a_live_read_without_a_decision() {
    let mut case = overdue(OnTimeout::Answer);
    case.given.row.waits[0].deadline_at = Some(ago(1));
    let object = case.until("time-out-wait").map(|_| case.object().clone()).unwrap();
    case.approvals().objects = vec![ObservedApproval::cached(object.clone())];
    let names: Vec<_> = case.effects().iter().map(ApprovalEffect::name).collect();
    assert!(
        names.contains(&"read-approval") && !names.contains(&"time-out-wait"),
        "the cache proves nothing: {names:?}"
    );
    // Somebody has decided meanwhile: that counts, although the deadline has passed.
    let mut decided = object;
    decided.spec.decision = serde_json::from_value(decision("Approved", "alice")).unwrap();
    let name = decided.metadata.name.clone().unwrap();
    case.seen.apply(EffectResult::Approval(name, Some(Box::new(decided))));
    assert!(case.until("answer-wait").is_some());
}

#[test]
fn where_there_are_no_objects_the_deadline_counts_alone() {
    let mut case = overdue(OnTimeout::Answer);
    case.seen.approvals = Some(ObservedApprovals::without_objects());
    let names: Vec<_> = case.effects().iter().map(ApprovalEffect::name).collect();
    assert_eq!(names, ["time-out-wait"]);
    let mut open = self::case(|_| {});
    open.seen.approvals = Some(ObservedApprovals::without_objects());
    assert!(open.effects().is_empty());
}

#[test]
fn hold_and_fail_wait_until_the_run_is_parked_on_the_approval() {
    for (on_timeout, is_parked, times_out) in [
        (OnTimeout::Answer, false, true),
        (OnTimeout::Hold, true, true),
        (OnTimeout::Hold, false, false),
        (OnTimeout::Fail, true, true),
        (OnTimeout::Fail, false, false),
    ] {
        let mut case = overdue(on_timeout);
        if !is_parked {
            case.given.row.park = None;
            case.seen = case.given.observed();
        }
        assert_eq!(case.until("time-out-wait").is_some(), times_out, "{on_timeout:?} {is_parked}");
    }
}

#[test]
fn a_held_approval_stays_open_for_a_decision() {
    let late = |wait: &mut OpenWait| {
        (wait.deadline_at, wait.on_timeout, wait.timed_out_at) =
            (Some(ago(9)), OnTimeout::Hold, Some(ago(8)));
    };
    assert_eq!(pending(&case(late).settle()), (true, ApprovalReason::Overdue));
    assert!(case(late).decided(approved("alice")).until("answer-wait").is_some());
}
