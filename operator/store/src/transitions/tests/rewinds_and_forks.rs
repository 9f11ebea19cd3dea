//! Rewinds that people request, the step back, and the steps of a fork.

use std::sync::Arc;

use super::*;
use dalsegno_format::header::Header;
use dalsegno_format::records::{Changes, link};
use dalsegno_format::seal::PayloadCipher;
use dalsegno_model::audit::kind;
use dalsegno_model::read_transaction::RecordKey;
use dalsegno_model::{
    BoundaryId, ForkState, ForkedFrom, RequestedBy, RewindRequest, Rewound, RunRecord, StepBack,
};
use dalsegno_protocol::{Payload, RawValue, RecordOp, Usage};

fn boundary(turn: i32) -> LiveBoundary {
    LiveBoundary {
        id: BoundaryId { turn, boundary: Boundary::Result, epoch: 1 },
        attempt: 1,
        commit_id: Uuid::nil(),
        digest: vec![1; 32],
        hash: vec![u8::try_from(turn).unwrap(); 32],
        at: 1_500,
    }
}

/// A run with two turns whose rows were read for a rewind to the first one.
fn two_turns(mut rows: Rows, effects: &[&str]) -> Rows {
    rows.of_run.run.set_head(boundary(2).head_point().unwrap(), 3);
    rows.of_run.run.highest_turn = 2;
    let effects = effects.iter().map(|id| (*id).to_owned()).collect();
    Rows { boundaries: vec![boundary(1), boundary(2)], effects, has_if_head: true, ..rows }
}

fn request(generation: i64) -> RequestRewind {
    RequestRewind(RewindRequest {
        generation,
        to_turn: 1,
        if_head: None,
        accept_effects: vec!["named".into()],
        requested_by: RequestedBy { user: Some("ada".into()), ..RequestedBy::default() },
    })
}

#[test]
fn a_refused_rewind_sets_only_what_was_observed() {
    let write = decide(&request(1), &two_turns(attached(), &["named", "pay"])).write;
    let columns = ["audit_seq", "audit_hash", "observed_rewind_generation", "rewind_result"];
    assert_eq!(names(&write.run_columns), columns);
    assert_eq!((kinds(&write), write.undo_after), (vec![kind::REWIND_REFUSED], None));
    assert!(write.attempt_columns.is_empty() && write.reserved.is_empty());
    let Some(Value::Text(Some(result))) = value(&write, "rewind_result") else { panic!("{write:?}") };
    assert!(result.contains(r#""why":"effects","calls":["pay"]"#), "{result}");
    assert!(write.audit[0].detail.contains(r#""user":"ada""#), "{}", write.audit[0].detail);
}

#[test]
fn a_rewind_that_was_observed_writes_nothing() {
    let rows = changed(two_turns(attached(), &[]), |run| run.observed_rewind_generation = 4);
    for generation in [4, 3, 0, -1] {
        assert!(decide(&request(generation), &rows).write.is_empty(), "{generation}");
    }
    assert!(!decide(&request(5), &rows).write.is_empty());
    for lifecycle in [Lifecycle::Finished, Lifecycle::Deleted, Lifecycle::Abandoned] {
        assert!(decide(&request(5), &of(lifecycle, rows.clone())).write.is_empty(), "{lifecycle:?}");
    }
}

#[test]
fn a_rewind_fences_an_attempt_with_a_pod_and_keeps_a_reserved_one() {
    let write = decide(&request(1), &two_turns(attached(), &["named"])).write;
    assert_eq!(kinds(&write), [kind::ENDED, kind::REWOUND, kind::RESERVED]);
    assert_eq!(write.reserved[0].number, 2);
    let write = decide(&request(1), &two_turns(reserved(), &["named"])).write;
    assert_eq!(kinds(&write), [kind::REWOUND]);
    assert_eq!(value(&write, "epoch"), Some(&Value::Integer(Some(2))));
    let [(1, columns)] = &write.attempt_columns[..] else { panic!("{write:?}") };
    assert_eq!(names(columns), ["epoch", "turn_at_start"]);
    // A suspend stays.
    let suspended = changed(two_turns(reserved(), &[]), |run| run.suspend = true);
    assert_eq!(value(&decide(&request(1), &suspended).write, "suspend"), None);
}

#[test]
fn a_rewind_needs_the_head_that_the_person_has_seen() {
    let mut rows = two_turns(attached(), &[]);
    let RequestRewind(seen) = request(1);
    let seen = RequestRewind(RewindRequest { if_head: Some("sha256:aa".into()), ..seen });
    assert_eq!(kinds(&decide(&seen, &rows).write)[1], kind::REWOUND);
    rows.has_if_head = false;
    assert_eq!(kinds(&decide(&seen, &rows).write), [kind::REWIND_REFUSED]);
}

#[test]
fn a_step_back_needs_a_reserved_attempt_at_that_head_and_no_effects() {
    let from = boundary(2).id;
    let step = StepBack { epoch: 1, from };
    let is_done = |step: &StepBack, rows: &Rows| matches!(decide(step, rows).answer, Rewound::Done(_));
    assert!(is_done(&step, &two_turns(reserved(), &[])));
    assert!(!is_done(&step, &two_turns(reserved(), &["pay"])));
    assert!(!is_done(&step, &two_turns(attached(), &[])));
    assert!(!is_done(&StepBack { epoch: 2, from }, &two_turns(reserved(), &[])));
    let other = BoundaryId { turn: 1, ..from };
    assert!(!is_done(&StepBack { epoch: 1, from: other }, &two_turns(reserved(), &[])));
    assert!(!is_done(&step, &of(Lifecycle::Finished, two_turns(reserved(), &[]))));
}

const PARENT: Uuid = Uuid::from_u128(9);

fn point() -> ForkPoint {
    ForkPoint { run: PARENT, turn: 7, epoch: 3, content_hash: [4; 32], attempt: None }
}

fn in_state(state: ForkState) -> Rows {
    changed(reserved(), |run| {
        run.fork_state = Some(EnumText(state));
        if state != ForkState::Pending {
            (run.fork_parent, run.fork_turn, run.fork_epoch) = (Some(PARENT), Some(7), Some(3));
            run.fork_hash = Some(Hash([4; 32]));
        }
    })
}

fn key(seq: i64) -> RecordKey {
    RecordKey { space: "s".into(), key: "k".into(), seq }
}

fn page(after: RecordKey) -> CopyRecords {
    let value = Payload::Json(RawValue::from_string("1".into()).unwrap());
    let put = RecordOp::Put { space: "s".into(), key: "k".into(), value };
    let changes = Changes::of(&[put], &PayloadCipher::unsealed()).unwrap();
    CopyRecords { after, last: key(5), changes: Arc::new(changes), data_key: None }
}

fn end(after: RecordKey) -> EndFork {
    let base = EncodedBase {
        commit_id: Uuid::from_u128(5),
        digest: [6; 32],
        ops: vec![0, 1],
        ops_digest: [7; 32],
        state_bytes: 12,
        data_key: None,
    };
    EndFork { after, base: Arc::new(base) }
}

#[test]
fn each_step_of_a_fork_is_taken_once_and_in_order() {
    let accept =
        AcceptFork { point: point(), accepted: vec!["pay".into()], requested_by: RequestedBy::default() };
    let accepted = decide(&accept, &in_state(ForkState::Pending)).write;
    assert_eq!(kinds(&accepted), [kind::FORKED]);
    assert!(accepted.audit[0].detail.contains(r#""acceptedEffects":["pay"]"#), "{accepted:?}");
    for state in [ForkState::Copying, ForkState::Done] {
        assert!(decide(&accept, &in_state(state)).write.is_empty(), "{state:?}");
    }
    let copying = in_state(ForkState::Copying);
    assert!(decide(&page(RecordKey::default()), &copying).write.copied_records.is_some());
    assert!(decide(&page(key(5)), &copying).write.is_empty(), "another operator was faster");
    assert!(decide(&end(key(5)), &copying).write.is_empty());
    for state in [ForkState::Pending, ForkState::Done] {
        assert!(decide(&page(RecordKey::default()), &in_state(state)).write.is_empty(), "{state:?}");
        assert!(decide(&end(RecordKey::default()), &in_state(state)).write.is_empty(), "{state:?}");
    }
    for lifecycle in [Lifecycle::Finished, Lifecycle::Deleted, Lifecycle::Abandoned] {
        let rows = of(lifecycle, copying.clone());
        assert!(decide(&page(RecordKey::default()), &rows).write.is_empty(), "{lifecycle:?}");
        assert!(decide(&end(RecordKey::default()), &rows).write.is_empty(), "{lifecycle:?}");
        assert!(decide(&accept, &of(lifecycle, in_state(ForkState::Pending))).write.is_empty());
    }
}

#[test]
fn the_first_boundary_of_a_fork_names_what_was_forked_and_covers_its_records() {
    let copied = page(RecordKey::default());
    let batch = copied.changes.digest.unwrap();
    let rows = changed(in_state(ForkState::Copying), |run| {
        run.records_digest = Some(Hash(link(None, &batch)));
        (run.fork_space, run.fork_key, run.fork_seq) = (Some("s".into()), Some("k".into()), Some(5));
    });
    let decision: Decision<RunRecord> = decide(&end(key(5)), &rows);
    let expected = Header {
        parent_hash: [0; 32],
        run: new_run().id,
        turn: 7,
        boundary: Boundary::Result,
        epoch: 1,
        attempt: 0,
        at: NOW,
        position: 0,
        commit_id: Uuid::from_u128(5),
        digest: [6; 32],
        ops_digest: Some([7; 32]),
        full: true,
        events_digest: None,
        usage: Usage::default(),
        trigger: None,
        records_digest: Some(link(None, &batch)),
        forked_from: Some(ForkedFrom { run: PARENT, turn: 7, content_hash: [4; 32] }),
    };
    let hash = expected.content_hash();
    let write = decision.write;
    assert_eq!(value(&write, "head_hash"), Some(&Value::Bytes(Some(hash.to_vec()))));
    assert_eq!(value(&write, "highest_turn"), Some(&Value::Integer(Some(7))));
    assert_eq!(value(&write, "records_digest"), Some(&Value::Bytes(None)));
    let columns = write.base.unwrap().columns;
    assert!(columns.contains(&("content_hash", Value::Bytes(Some(hash.to_vec())))));
    assert!(columns.contains(&("forked_run", Value::Uuid(Some(PARENT)))));
    assert_eq!(decision.answer.fork.unwrap().state, ForkState::Done);
}
