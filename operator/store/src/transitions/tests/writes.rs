//! Each rule names exactly the columns that it sets.

use super::*;
use dalsegno_format::seal::PayloadCipher;
use dalsegno_model::audit::kind;
use dalsegno_model::{BoundaryId, Cause, Class, Ending, NextStep, Retention, Rewind, Template};

type Names = Vec<&'static str>;

/// What a rule writes of the run's row, of the first attempt, and to the audit.
fn parts(write: &WriteSet) -> (Names, Names, Names) {
    let of_attempt = match &write.attempt_columns[..] {
        [] => Vec::new(),
        [(1, columns)] => names(columns),
        others => panic!("{others:?}"),
    };
    (names(&write.run_columns), of_attempt, kinds(write))
}

const AUDIT: [&str; 2] = ["audit_seq", "audit_hash"];

fn with_audit(columns: &[&'static str]) -> Vec<&'static str> {
    [columns, &AUDIT].concat()
}

#[test]
fn each_fact_about_an_attempt_sets_only_its_own_columns() {
    let pod = RecordPod { attempt: 1, pod: pod() };
    let write = decide(&pod, &reserved()).write;
    let attempt = vec!["state", "pod_uid", "pod_name", "revision", "created_at"];
    let expected = (with_audit(&["attempt_state", "pod_uid"]), attempt, vec![kind::POD]);
    assert_eq!(parts(&write), expected);

    let node = RecordScheduled { attempt: 1, node: "node-a".into() };
    let write = decide(&node, &reserved()).write;
    assert_eq!(parts(&write), (vec!["scheduled_at"], vec!["node", "scheduled_at"], vec![]));

    let created = changed(with_attempt(AttemptState::Created), |run| run.external = true);
    let write = decide(&RecordStarted { attempt: 1 }, &created).write;
    let run = with_audit(&["attempt_state", "attached_at", "head_attempt"]);
    let expected = (run, vec!["state", "attached_at"], vec![kind::STARTED]);
    assert_eq!(parts(&write), expected);

    let image = RecordIdentity { attempt: 1, identity: identity() };
    let write = decide(&image, &reserved()).write;
    let attempt = vec!["image_digest", "image_in_registry", "agent_version", "verdict", "remark"];
    let expected = (with_audit(&["verdict", "remark"]), attempt, vec![kind::IDENTITY]);
    assert_eq!(parts(&write), expected);
}

#[test]
fn settings_are_not_in_the_audit() {
    let deadlines = Deadlines { start_ms: 1, ..new_run().deadlines };
    let write = decide(&SetDeadlines(deadlines), &reserved()).write;
    assert_eq!(parts(&write), (vec!["start_ms"], vec![], vec![]));
    let write = decide(&SetRetention(Retention { days: 7, ..Retention::default() }), &reserved()).write;
    assert_eq!(parts(&write), (vec!["retention_days"], vec![], vec![]));
}

#[test]
fn a_repeated_transition_writes_nothing() {
    let scheduled = changed(with_attempt(AttemptState::Created), |run| run.scheduled_at = Some(1));
    let cancelled = changed(reserved(), |run| run.cancel_requested_at = Some(1));
    let suspended = changed(attached(), |run| (run.suspend, run.suspend_requested_at) = (true, Some(1)));
    let attach = Attach { pod_uid: "pod".into(), instance: INSTANCE };
    let spent = changed(attached(), |run| (run.spent, run.capability) = (true, Some(Hash([8; 32]))));
    let writes = [
        decide(&RecordPod { attempt: 1, pod: pod() }, &with_attempt(AttemptState::Created)).write,
        decide(&RecordScheduled { attempt: 1, node: "node-b".into() }, &scheduled).write,
        decide(&RequestCancel { requested_by: RequestedBy::default() }, &cancelled).write,
        decide(&Suspend { requested_by: RequestedBy::default() }, &suspended).write,
        decide(&Resume { requested_by: RequestedBy::default() }, &attached()).write,
        decide(&SetDeadlines(new_run().deadlines), &reserved()).write,
        decide(&attach, &attached()).write,
        decide(&attach, &spent).write,
    ];
    assert!(writes.iter().all(WriteSet::is_empty), "{writes:?}");
}

#[test]
fn an_attach_and_a_refused_process_are_reported_to_the_operator_at_once() {
    let attach = Attach { pod_uid: "pod".into(), instance: INSTANCE };
    let write = decide(&attach, &with_attempt(AttemptState::Created)).write;
    assert!(write.is_change);
    assert_eq!(kinds(&write), [kind::ATTACHED]);
    assert_eq!(names(&write.run_columns), with_audit(&["capability", "attempt_state", "attached_at"]));
    let other = Attach { instance: [8; 32], ..attach };
    let write = decide(&other, &attached()).write;
    assert!(write.is_change);
    assert_eq!((kinds(&write), names(&write.run_columns)), (vec![kind::SPENT], with_audit(&["spent"])));
}

#[test]
fn a_suspend_and_a_resume_set_only_the_columns_of_the_suspend() {
    let suspend = Suspend { requested_by: RequestedBy::default() };
    let write = decide(&suspend, &attached()).write;
    let columns = with_audit(&["suspend", "suspend_requested_at"]);
    assert_eq!(parts(&write), (columns, vec![], vec![kind::SUSPENDED]));
    assert_eq!(value(&write, "suspend_requested_at"), Some(&Value::Integer(Some(NOW))));

    let told = changed(attached(), |run| {
        (run.suspend, run.suspend_requested_at, run.suspend_told_at) = (true, Some(1), Some(2));
    });
    let write = decide(&Resume { requested_by: RequestedBy::default() }, &told).write;
    let columns = with_audit(&["suspend", "suspend_requested_at", "suspend_told_at"]);
    assert_eq!(parts(&write), (columns, vec![], vec![kind::RESUMED]));

    let attach = Attach { pod_uid: "pod".into(), instance: INSTANCE };
    let untold = changed(told, |run| run.suspend_told_at = None);
    let write = decide(&attach, &untold).write;
    assert_eq!(parts(&write), (vec!["suspend_told_at"], vec![], vec![]));
}

#[test]
fn audit_rows_are_linked() {
    let ending = Ending {
        attempt: 1,
        cause: Cause::Evicted,
        class: Class::Disruption,
        exit_code: None,
        message: "a\0b".into(),
        ran: None,
    };
    let rule = EndAttempt::of(&ending, &NextStep::Reserve, Some(&PayloadCipher::default()));
    let rows = attached();
    let before = (rows.of_run.run.audit_seq, rows.of_run.run.audit_hash);
    let write = decide(&rule, &rows).write;
    let [ended, reserved] = &write.audit[..] else { panic!("{write:?}") };
    assert_eq!((ended.seq, Hash(ended.parent_hash)), (before.0 + 1, before.1));
    assert_eq!((reserved.seq, reserved.parent_hash), (ended.seq + 1, ended.hash));
    assert_eq!(value(&write, "audit_hash"), Some(&Value::Bytes(Some(reserved.hash.to_vec()))));
    assert_eq!((ended.at, reserved.at), (NOW, NOW));
    assert!(ended.detail.contains("a\u{fffd}b"), "PostgreSQL stores no NUL: {}", ended.detail);
}

#[test]
fn a_rewind_undoes_what_came_after_its_target() {
    let rows = changed(attached(), |run| (run.head_turn, run.highest_turn) = (Some(2), 2));
    let boundary = |turn, epoch| LiveBoundary {
        id: BoundaryId { turn, boundary: Boundary::Result, epoch },
        attempt: 1,
        commit_id: Uuid::nil(),
        digest: vec![1; 32],
        hash: vec![u8::try_from(turn).unwrap(); 32],
        at: 1_500,
    };
    let rows = Rows { boundaries: vec![boundary(1, 1), boundary(2, 1)], ..rows };
    let to = BoundaryId { turn: 1, boundary: Boundary::Result, epoch: 1 };
    let rewind = Rewind { epoch: 1, to, reason: "astray".into(), actor: "ada".into() };
    let write = decide(&rewind, &rows).write;
    assert_eq!((write.undo_after, write.is_change), (Some(to), true));
    assert_eq!(kinds(&write), [kind::ENDED, kind::REWOUND, kind::RESERVED]);
    assert_eq!(write.audit[1].actor, "ada");
    let undone = write.audit[1].detail.matches(r#""turn":2"#).count();
    assert_eq!(undone, 2, "as the old head, and as an undone boundary: {}", write.audit[1].detail);
    assert_eq!(value(&write, "head_turn"), Some(&Value::Integer(Some(1))));
    assert_eq!(value(&write, "head_position"), None, "positions never decrease");
    assert_eq!(write.reserved[0].number, 2);

    for refused in [
        Rewind { epoch: 2, ..rewind.clone() },
        Rewind { to: BoundaryId { epoch: 2, ..to }, ..rewind.clone() },
        Rewind { to: BoundaryId { turn: 3, ..to }, ..rewind },
    ] {
        assert!(decide(&refused, &rows).write.is_empty(), "{refused:?}");
    }
}

#[test]
fn candidates_are_the_last_eight_templates_the_latest_first() {
    let mut rows = reserved();
    rows.of_run.attempts[0].candidates = (1..=8).map(|number| number.to_string()).collect();
    let put = |hash: &str| PutRevision {
        attempt: 1,
        template: Template { hash: hash.into(), document: "{}".into() },
        nonce: "another".into(),
    };
    rows.of_run.attempts[0].pod_nonce = Some("drawn".into());
    for (hash, expected) in [("9", "9 1 2 3 4 5 6 7"), ("3", "3 1 2 4 5 6 7 8")] {
        let write = decide(&put(hash), &rows).write;
        let expected = expected.split(' ').map(str::to_owned).collect();
        let columns = vec![("candidates", Value::Texts(Some(expected)))];
        assert_eq!(write.attempt_columns, [(1, columns)]);
        assert_eq!(write.template.unwrap().hash, hash);
    }
    let again = decide(&put("1"), &rows).write;
    assert_eq!(again.attempt_columns, [], "it is already the latest");
}

#[test]
fn the_nonce_of_a_pod_is_drawn_once_and_not_for_an_attempt_of_an_older_program() {
    let put = PutRevision {
        attempt: 1,
        template: Template { hash: "1".into(), document: "{}".into() },
        nonce: "drawn".into(),
    };
    for (before, drawn) in [(Some(""), true), (Some("earlier"), false), (None, false)] {
        let mut rows = reserved();
        rows.of_run.attempts[0].pod_nonce = before.map(str::to_owned);
        let columns = decide(&put, &rows).write.attempt_columns.remove(0).1;
        let nonce = columns.iter().find(|(column, _)| *column == "pod_nonce").map(|(_, value)| value.clone());
        assert_eq!(nonce, drawn.then(|| Value::Text(Some("drawn".into()))), "{before:?}");
    }
}
