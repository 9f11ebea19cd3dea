//! Runs that are over: no rule of the operator changes them, except for the cases below.

use dalsegno_protocol::Boundary;

use super::*;
use dalsegno_model::{BoundaryId, BudgetReset, Cause, Class, Ending, NextStep, Retention, Rewind, Template};

const OVER: [Lifecycle; 3] = [Lifecycle::Finished, Lifecycle::Deleted, Lifecycle::Abandoned];

const STATES: [AttemptState; 4] =
    [AttemptState::Reserved, AttemptState::Created, AttemptState::Attached, AttemptState::Ended];

/// What each rule of the operator writes to this run.
fn every_rule(rows: &Rows) -> Vec<(&'static str, WriteSet)> {
    let ending = |then| {
        let ending = Ending {
            attempt: 1,
            cause: Cause::Evicted,
            class: Class::Crash,
            exit_code: None,
            message: String::new(),
            ran: None,
        };
        EndAttempt::of(&ending, &then, None)
    };
    let to = BoundaryId { turn: 1, boundary: Boundary::Result, epoch: 1 };
    let rewind = Rewind { epoch: 1, to, reason: String::new(), actor: "ada".into() };
    let identified = PodRecord { identity: Some(identity()), ..pod() };
    let template = Template { hash: "hash".into(), document: "{}".into() };
    let deadlines = Deadlines { heartbeat_ms: 1, start_ms: 1, progress_ms: 1, suspend_ms: 1 };
    vec![
        ("end, reserve", decide(&ending(NextStep::Reserve), rows).write),
        ("end, nothing", decide(&ending(NextStep::Nothing), rows).write),
        ("end, finish", decide(&ending(NextStep::Finish(succeeded())), rows).write),
        ("record a pod", decide(&RecordPod { attempt: 1, pod: identified }, rows).write),
        ("record a node", decide(&RecordScheduled { attempt: 1, node: "node".into() }, rows).write),
        ("record an identity", decide(&RecordIdentity { attempt: 1, identity: identity() }, rows).write),
        ("request a cancel", decide(&RequestCancel { requested_by: RequestedBy::default() }, rows).write),
        ("suspend", decide(&Suspend { requested_by: RequestedBy::default() }, rows).write),
        ("resume", decide(&Resume { requested_by: RequestedBy::default() }, rows).write),
        (
            "reset",
            decide(
                &ResetBudget(BudgetReset { observed: 0, to: 1, requested_by: RequestedBy::default() }),
                rows,
            )
            .write,
        ),
        ("set deadlines", decide(&SetDeadlines(deadlines), rows).write),
        ("store a template", decide(&PutRevision { attempt: 1, template, nonce: "n".into() }, rows).write),
        ("rewind", decide(&rewind, rows).write),
    ]
}

#[test]
fn no_rule_of_the_operator_changes_a_run_that_is_over() {
    for lifecycle in OVER {
        for state in STATES {
            let mut rows = of(lifecycle, with_attempt(state));
            rows.of_run.run.verdict = None;
            rows.of_run.run.suspend = state == AttemptState::Attached;
            for (rule, write) in every_rule(&rows) {
                assert!(write.is_empty(), "{lifecycle:?}, {state:?}: {rule}: {write:?}");
            }
        }
    }
}

/// Without this, the test above would also pass for rules that never change anything.
#[test]
fn every_rule_of_the_operator_but_a_rewind_to_the_head_changes_a_live_run() {
    for (suspended, unchanged) in [(false, ["rewind", "resume"]), (true, ["rewind", "suspend"])] {
        let rows = changed(reserved(), |run| run.suspend = suspended);
        for (rule, write) in every_rule(&rows) {
            assert_eq!(write.is_empty(), unchanged.contains(&rule), "suspended: {suspended}: {rule}");
        }
    }
}

#[test]
fn retention_can_be_set_for_a_run_that_is_over() {
    for lifecycle in OVER {
        let set = SetRetention(Retention { days: 1, keep_last: Some(2), ..Retention::default() });
        let write = decide(&set, &of(lifecycle, attached())).write;
        assert_eq!(names(&write.run_columns), ["retention_days", "keep_last"]);
    }
}

#[test]
fn a_finished_run_can_be_deleted_or_abandoned_and_a_closed_one_is_unchanged() {
    let deleted = MarkDeleted { object_uid: "object".into(), requested_by: RequestedBy::default() };
    let abandoned = Abandon(NewRun { object_uid: "another".into(), ..new_run() });
    for lifecycle in [Lifecycle::Live, Lifecycle::Finished] {
        let rows = of(lifecycle, attached());
        let writes = [decide(&deleted, &rows).write, decide(&abandoned, &rows).write];
        for (write, lifecycle) in writes.iter().zip(["deleted", "abandoned"]) {
            assert_eq!(value(write, "lifecycle"), Some(&Value::Text(Some(lifecycle.into()))));
            assert_eq!(value(write, "over_at"), Some(&Value::Integer(Some(NOW))));
            assert_eq!(value(write, "epoch"), Some(&Value::Integer(Some(2))), "it is fenced");
        }
    }
    for lifecycle in [Lifecycle::Deleted, Lifecycle::Abandoned] {
        let rows = of(lifecycle, attached());
        assert!(decide(&deleted, &rows).write.is_empty());
        assert!(decide(&abandoned, &rows).write.is_empty());
    }
    let not_the_owner = MarkDeleted { object_uid: "another".into(), ..deleted };
    assert!(decide(&not_the_owner, &attached()).write.is_empty(), "another object owns the run");
}
