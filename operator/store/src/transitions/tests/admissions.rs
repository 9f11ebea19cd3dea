//! The order of the checks for the calls of workers, and for a run to be created.

use dalsegno_protocol::{CallOutcome, CallState, ParkMode, Policy};

use super::*;
use crate::reads::CallRow;
use dalsegno_format::seal::{BodyDigest, PayloadCipher};
use dalsegno_model::audit::kind;
use dalsegno_model::{
    Acknowledged, Attached, Committed, Completed, Created, Park, Parked, Settle, SettledBy,
};

#[test]
fn an_attach_is_checked_in_order() {
    let attach = Attach { pod_uid: "pod".into(), instance: INSTANCE };
    let refused = |run: &mut RunRow| run.verdict = Some(EnumText(Verdict::Refused));
    let created = || with_attempt(AttemptState::Created);
    let cases = [
        (reserved(), "NotRecorded"),
        (changed(created(), |run| run.pod_uid = Some("another".into())), "Fenced"),
        (of(Lifecycle::Finished, attached()), "Finished"),
        (of(Lifecycle::Deleted, attached()), "Fenced"),
        (with_attempt(AttemptState::Ended), "Fenced"),
        (changed(created(), |run| run.verdict = None), "VersionPending"),
        (changed(created(), refused), "VersionIncompatible(\"\")"),
        (changed(attached(), |run| run.capability = Some(Hash([8; 32]))), "Spent"),
    ];
    for (rows, expected) in cases {
        assert_eq!(format!("{:?}", decide(&attach, &rows).answer), expected);
    }
    for accepted in [created(), attached()] {
        assert!(matches!(decide(&attach, &accepted).answer, Attached::Ok(_)));
    }
    assert!(matches!(attach.without_run(Uuid::nil()).unwrap(), Attached::NotFound));
}

#[test]
fn a_finish_is_checked_in_order() {
    let digest = BodyDigest { stored: [3; 32], plain: [4; 32] };
    let finish = Finish { capability: INSTANCE, commit_id: Uuid::from_u128(5), digest, finish: succeeded() };
    let other_worker = Finish { capability: [8; 32], ..finish.clone() };
    let finished = |digest| {
        of(
            Lifecycle::Finished,
            changed(attached(), |run| {
                run.finish_commit_id = Some(Uuid::from_u128(5));
                run.finish_digest = Some(Hash(digest));
            }),
        )
    };
    assert_eq!(decide(&other_worker, &attached()).answer, Committed::Fenced { committed: false });
    assert_eq!(decide(&other_worker, &finished([3; 32])).answer, Committed::Fenced { committed: true });
    for before_and_after_the_key in [[3; 32], [4; 32]] {
        let answer = decide(&finish, &finished(before_and_after_the_key)).answer;
        assert!(matches!(answer, Committed::Duplicate(_)), "{answer:?}");
    }
    assert_eq!(decide(&finish, &finished([9; 32])).answer, Committed::Finished);
    let unsettled = changed(attached(), |run| run.unsettled_ask = 1);
    assert_eq!(decide(&finish, &unsettled).answer, Committed::UnsettledCalls);
    let harmless = changed(attached(), |run| run.unsettled_read_only = 1);
    let Decision { write, answer } = decide(&finish, &harmless);
    assert!(matches!(answer, Committed::Ok(_)), "{answer:?}");
    assert_eq!((kinds(&write), write.is_change), (vec![kind::FINISHED], true));
    assert_eq!(value(&write, "epoch"), None, "a finish does not change the epoch");
    assert_eq!(value(&write, "lease_renewed_at"), None, "it starts no lease");
}

#[test]
fn a_cancel_is_acknowledged_by_its_worker_and_again_by_the_same() {
    let acknowledge = AcknowledgeCancel { capability: INSTANCE };
    let requested = changed(attached(), |run| run.cancel_requested_at = Some(1));
    let Decision { write, answer } = decide(&acknowledge, &requested);
    assert_eq!(
        (answer, kinds(&write), write.is_change),
        (Acknowledged::Cancelled, vec![kind::CANCELLED], true)
    );
    assert_eq!(value(&write, "last_capability"), Some(&Value::Bytes(Some(INSTANCE.to_vec()))));
    let after = changed(requested.clone(), |run| {
        (run.capability, run.last_capability) = (None, Some(Hash(INSTANCE)));
    });
    let after_a_park = changed(after.clone(), |run| run.park_id = Some(Uuid::nil()));
    let cases = [
        (attached(), Acknowledged::NotRequested),
        (of(Lifecycle::Finished, requested), Acknowledged::Finished),
        (changed(attached(), |run| run.capability = None), Acknowledged::Fenced),
        (of(Lifecycle::Finished, after), Acknowledged::Cancelled),
        (of(Lifecycle::Finished, after_a_park.clone()), Acknowledged::Fenced),
        (after_a_park, Acknowledged::Fenced),
    ];
    for (rows, expected) in cases {
        let Decision { write, answer } = decide(&acknowledge, &rows);
        assert_eq!(answer, expected);
        assert!(write.is_empty());
    }
}

#[test]
fn a_park_ends_the_attempt_or_is_refused_for_the_first_reason() {
    let park = Park {
        run: Uuid::from_u128(1),
        capability: INSTANCE,
        park_id: Uuid::from_u128(7),
        on: Vec::new(),
        mode: ParkMode::All,
    };
    let suspended = changed(attached(), |run| (run.suspend, run.suspend_requested_at) = (true, Some(1)));
    let Decision { write, answer } = decide(&park, &suspended);
    assert_eq!((answer, write.is_change), (Parked::Parked, true));
    assert_eq!(kinds(&write), [kind::ENDED, kind::RESERVED]);
    assert_eq!((value(&write, "epoch"), write.reserved[0].number), (Some(&Value::Integer(Some(2))), 2));
    for (column, expected) in [("capability", None), ("last_capability", Some(INSTANCE.to_vec()))] {
        assert_eq!(value(&write, column), Some(&Value::Bytes(expected)), "{column}");
    }
    assert_eq!(value(&write, "suspend"), None, "only a person lifts the suspend");

    let cancelled = changed(suspended.clone(), |run| run.cancel_requested_at = Some(1));
    let Decision { write, answer } = decide(&park, &cancelled);
    assert_eq!((answer, kinds(&write), write.is_change), (Parked::Parked, vec![kind::CANCELLED], true));
    assert!(write.reserved.is_empty());

    let retried = changed(suspended.clone(), |run| {
        (run.capability, run.last_capability) = (None, Some(Hash(INSTANCE)));
        run.park_id = Some(park.park_id);
    });
    let unsettled = changed(suspended.clone(), |run| run.unsettled_retry_same_key = 1);
    let open = |rows| changed(rows, |run| run.own_open_calls = 1);
    let cases = [
        (retried.clone(), Parked::Parked),
        (of(Lifecycle::Deleted, retried.clone()), Parked::Parked),
        (changed(retried.clone(), |run| run.park_id = Some(Uuid::nil())), Parked::Fenced),
        (changed(retried.clone(), |run| run.park_id = None), Parked::Fenced),
        (changed(retried, |run| run.last_capability = Some(Hash([8; 32]))), Parked::Fenced),
        (of(Lifecycle::Finished, open(unsettled.clone())), Parked::Finished),
        (open(unsettled), Parked::UnsettledCalls),
        (changed(suspended.clone(), |run| run.keys_refused = 1), Parked::UnsettledCalls),
        (open(suspended), Parked::OpenCalls),
        (open(attached()), Parked::OpenCalls),
        (attached(), Parked::Ready),
    ];
    for (rows, expected) in cases {
        let Decision { write, answer } = decide(&park, &rows);
        assert_eq!(answer, expected);
        assert!(write.is_empty());
    }
}

/// A started call of the current attempt, which a worker may complete.
fn call() -> CallRow {
    CallRow {
        run: Uuid::from_u128(1),
        id: "pay".into(),
        ordinal: 1,
        turn: 2,
        policy: EnumText(Policy::Probe),
        key: "key".into(),
        created_at: 1_000,
        state: EnumText(CallState::Started),
        arguments: None,
        arguments_bytes: 0,
        attempt: Some(1),
        claim_id: Some(Uuid::nil()),
        result: None,
        result_bytes: 0,
        key_refused: false,
        settled_by: None,
        reason: None,
        started_at: Some(1_000),
        ended_at: None,
        touched_turn: None,
        tool: None,
        spent_at: None,
        tokens_in: 0,
        tokens_out: 0,
        tool_calls: 0,
        cost_micro_usd: 0,
    }
}

fn settle(by: SettledBy, call: Option<CallRow>, rows: Rows) -> Decision<Completed> {
    let settle = Settle {
        run: Uuid::from_u128(1),
        by,
        id: "pay".into(),
        outcome: CallOutcome::Completed,
        result: None,
        reason: "seen".into(),
        audit_id: None,
    };
    decide(&SettleCall::of(&settle, PayloadCipher::default()).unwrap(), &Rows { call, ..rows })
}

#[test]
fn a_settled_call_is_checked_in_order() {
    let person = || SettledBy::Person("ada".into());
    let worker = || SettledBy::Worker(INSTANCE);
    let ended = |state| CallRow { state: EnumText(state), ..call() };
    let earlier = || CallRow { attempt: Some(0), ..call() };
    let cases = [
        (SettledBy::Worker([8; 32]), Some(earlier()), attached(), "Fenced"),
        (worker(), Some(ended(CallState::Completed)), of(Lifecycle::Finished, attached()), "Duplicate"),
        (person(), Some(earlier()), of(Lifecycle::Finished, attached()), "Finished"),
        (person(), None, attached(), "NoSuchCall"),
        (person(), Some(ended(CallState::Planned)), attached(), "never claimed"),
        (person(), Some(ended(CallState::Failed)), attached(), "ended otherwise"),
        (worker(), Some(CallRow { policy: EnumText(Policy::Ask), ..earlier() }), attached(), "only a person"),
        (worker(), Some(CallRow { key_refused: true, ..earlier() }), attached(), "only a person"),
        (person(), Some(call()), attached(), "may still complete"),
        (person(), Some(earlier()), attached(), "Ok"),
        (worker(), Some(call()), attached(), "Ok"),
    ];
    for (by, call, rows, expected) in cases {
        let Decision { write, answer } = settle(by, call, rows);
        let text = format!("{answer:?}");
        assert!(text.contains(expected), "{text} instead of {expected}");
        assert_eq!(write.is_empty(), expected != "Ok", "{text}");
    }
}

#[test]
fn settling_a_call_decreases_the_count_of_unsettled_calls() {
    let rows = changed(attached(), |run| (run.unsettled_probe, run.keys_refused) = (2, 1));
    let refused = CallRow { attempt: Some(0), key_refused: true, ..call() };
    let write = settle(SettledBy::Person("ada".into()), Some(refused), rows).write;
    for (column, expected) in [("unsettled_probe", 1), ("keys_refused", 0), ("completed_calls", 1)] {
        assert_eq!(value(&write, column), Some(&Value::Integer(Some(expected))), "{column}");
    }
    let (id, columns) = write.call_columns.clone().unwrap();
    assert_eq!(id, "pay");
    let expected = ["state", "key_refused", "settled_by", "reason", "ended_at", "touched_turn"];
    assert_eq!(names(&columns), expected);
    assert_eq!((kinds(&write), write.audit[0].actor.as_str()), (vec![kind::SETTLED], "ada"));
    assert!(write.is_change);
}

#[test]
fn the_next_create_step_depends_on_the_existing_runs() {
    let new = |on_prior| NewRun { object_uid: "another".into(), on_prior, ..new_run() };
    let other_tenant = NewRun { tenant: "elsewhere".into(), ..new(OnPrior::Adopt) };
    let met = |new: &NewRun, runs| match next_create_step(&found(runs), new).unwrap() {
        CreateStep::Answer(Created::Run(_)) => "its own row",
        CreateStep::Answer(Created::Prior(_)) => "a prior run",
        CreateStep::Adopt(_) => "adopt",
        CreateStep::Replace(_) => "replace",
        CreateStep::Create => "create",
    };
    let prior = || vec![reserved().of_run];
    let cases = [
        (new_run(), vec![], "create"),
        (new_run(), prior(), "its own row"),
        (new(OnPrior::Hold), prior(), "a prior run"),
        (new(OnPrior::Adopt), prior(), "adopt"),
        (new(OnPrior::Ignore), prior(), "replace"),
        (other_tenant, prior(), "a prior run"),
    ];
    for (new, runs, expected) in cases {
        assert_eq!(met(&new, runs), expected, "{new:?}");
    }
}

#[test]
fn an_adopted_run_gets_a_new_owner_and_a_new_epoch_and_stays_finished() {
    let new = NewRun { object_uid: "another".into(), reset_generation: 3, ..new_run() };
    let adopt = Adopt(new.clone());
    let cases = [
        (attached(), vec![kind::ADOPTED, kind::ENDED, kind::RESERVED]),
        (with_attempt(AttemptState::Ended), vec![kind::ADOPTED, kind::RESERVED]),
        (of(Lifecycle::Finished, attached()), vec![kind::ADOPTED]),
    ];
    for (rows, expected) in cases {
        let write = decide(&adopt, &rows).write;
        assert_eq!(kinds(&write), expected);
        assert_eq!(value(&write, "object_uid"), Some(&Value::Text(Some("another".into()))));
        assert_eq!(value(&write, "observed_reset_generation"), Some(&Value::Integer(Some(3))));
        assert_eq!(value(&write, "epoch"), Some(&Value::Integer(Some(2))));
        assert_eq!(value(&write, "lifecycle"), None);
    }
    let other_tenant = Adopt(NewRun { tenant: "elsewhere".into(), ..new });
    for refused in [decide(&other_tenant, &attached()), decide(&adopt, &of(Lifecycle::Deleted, attached()))] {
        assert!(refused.write.is_empty());
    }
}
