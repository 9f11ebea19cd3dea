//! How the end of an attempt is counted, and what follows it.

use dalsegno_protocol::Policy;
use jiff::SignedDuration;

use super::*;
use dalsegno_format::seal::PayloadCipher;
use dalsegno_model::audit::kind;
use dalsegno_model::{BudgetReset, Cause, Class, Counters, Ending, NextStep};

fn end(class: Class, then: NextStep) -> EndAttempt {
    let ending = Ending {
        attempt: 1,
        cause: Cause::Evicted,
        class,
        exit_code: Some(137),
        message: "gone".into(),
        ran: None,
    };
    EndAttempt::of(&ending, &then, Some(&PayloadCipher::default()))
}

/// The table of [`Class`]. Columns: the class; whether there was progress; recovery attempts, attempts without
/// progress, disruptions, disruptions without progress; the class that the end is counted as.
#[test]
fn an_end_is_counted_by_its_class_and_its_progress() {
    let cases = [
        (Class::Crash, false, [6, 4, 7, 2], Class::Crash),
        (Class::Crash, true, [6, 0, 7, 0], Class::Crash),
        (Class::Disruption, false, [5, 3, 8, 3], Class::Disruption),
        (Class::Disruption, true, [5, 0, 8, 0], Class::Disruption),
        (Class::CrashWithoutProgress, false, [6, 4, 7, 2], Class::Crash),
        (Class::CrashWithoutProgress, true, [5, 0, 8, 0], Class::Disruption),
        (Class::Neutral, false, [5, 3, 7, 2], Class::Neutral),
        (Class::Neutral, true, [5, 0, 7, 0], Class::Neutral),
    ];
    for (class, progress, expected, counted_as) in cases {
        let rows = changed(attached(), |run| {
            run.set_counters(Counters {
                recovery_attempts: 5,
                attempts_without_progress: 3,
                disruptions: 7,
                disruptions_without_progress: 2,
                ..Counters::default()
            });
            run.attempt_turn = if progress { 0 } else { 1 };
        });
        let record = decide(&end(class, NextStep::Reserve), &rows).answer;
        let Counters {
            recovery_attempts,
            attempts_without_progress,
            disruptions,
            disruptions_without_progress,
            ..
        } = record.counters;
        let counters =
            [recovery_attempts, attempts_without_progress, disruptions, disruptions_without_progress];
        assert_eq!(counters, expected, "{class:?}, progress: {progress}");
        let end = record.past[0].end.as_ref().unwrap();
        assert_eq!(
            (end.class, end.charged, end.progress),
            (counted_as, counted_as == Class::Crash, progress)
        );
    }
}

#[test]
fn a_completed_call_is_progress_too() {
    let rows = changed(attached(), |run| (run.attempt_turn, run.completed_calls) = (1, 1));
    let record = decide(&end(Class::Crash, NextStep::Nothing), &rows).answer;
    assert!(record.attempt.end.unwrap().progress);
}

#[test]
fn the_time_that_a_worker_ran_is_progress_if_the_store_has_none_of_its_checkpoints() {
    let ran = |is_external: bool, ms: i64| {
        let rows = changed(with_attempt(AttemptState::Attached), |run| {
            (run.external, run.attached_at) = (is_external, Some(NOW - ms));
            run.attempts_without_progress = 5;
        });
        decide(&end(Class::Crash, NextStep::Nothing), &rows).answer.counters
    };
    assert_eq!(ran(true, 599_999).attempts_without_progress, 6);
    let after = ran(true, 600_000);
    assert_eq!((after.attempts_without_progress, after.recovery_attempts), (0, 1));
    assert_eq!(ran(false, 600_000).attempts_without_progress, 6, "other workers must commit");
}

#[test]
fn the_time_that_the_pod_says_counts_and_not_when_the_operator_looked() {
    let ended = |is_external: bool, recorded_ms: i64, ran_ms: Option<i64>| {
        let rows = changed(with_attempt(AttemptState::Attached), |run| {
            (run.external, run.attached_at) = (is_external, Some(NOW - recorded_ms));
            (run.active_ms, run.attempts_without_progress) = (100, 5);
        });
        let mut crash = end(Class::Crash, NextStep::Nothing);
        crash.ending.ran = ran_ms.map(SignedDuration::from_millis);
        let record = decide(&crash, &rows).answer;
        (record.counters.attempts_without_progress, record.active_ms)
    };
    let unseen_for_long = ended(true, 600_000, Some(1_000));
    assert_eq!(unseen_for_long, (6, 1_100), "it crashed after a second, and nobody looked for ten minutes");
    let started_unseen = ended(true, 5, Some(10_800_000));
    assert_eq!(started_unseen, (0, 10_800_100), "it ran for three hours, and nobody looked");
    assert_eq!(ended(true, 600_000, None), (0, 600_100), "the pod does not say it");
    assert_eq!(ended(false, 600_000, Some(1_000)), (6, 600_100), "other workers have attached themselves");
}

#[test]
fn an_end_fences_the_run_and_leaves_its_started_calls_unsettled() {
    let mut rows = attached();
    rows.started = [(Policy::Ask, 2), (Policy::ReadOnly, 1)].into();
    rows.of_run.run.unsettled_probe = 4;
    let Decision { write, answer } = decide(&end(Class::Disruption, NextStep::Nothing), &rows);
    assert_eq!(value(&write, "capability"), Some(&Value::Bytes(None)));
    assert_eq!(answer.epoch, 2);
    assert_eq!(
        answer.calls.unsettled,
        [(Policy::Ask, 2), (Policy::ReadOnly, 1)].into(),
        "they are counted again"
    );
}

#[test]
fn the_next_step_after_an_end_is_done_once() {
    let finish = NextStep::Finish(succeeded());
    let cases = [
        (NextStep::Nothing, vec![kind::ENDED], vec![]),
        (NextStep::Reserve, vec![kind::ENDED, kind::RESERVED], vec![kind::RESERVED]),
        (finish, vec![kind::ENDED, kind::FINISHED], vec![kind::FINISHED]),
    ];
    for (then, first, of_ended) in cases {
        let write = decide(&end(Class::Crash, then.clone()), &attached()).write;
        assert_eq!(kinds(&write), first, "{then:?}");
        assert!(!write.is_change, "the operator made this change itself");
        let ended = with_attempt(AttemptState::Ended);
        assert_eq!(kinds(&decide(&end(Class::Crash, then.clone()), &ended).write), of_ended, "{then:?}");
        let mut later = changed(attached(), |run| run.attempt = 2);
        later.of_run.attempts[0].number = 2;
        assert!(
            decide(&end(Class::Crash, then), &later).write.is_empty(),
            "the ended attempt is an earlier one"
        );
    }
}

#[test]
fn a_reserved_attempt_starts_empty_under_the_epoch_of_the_end() {
    let write = decide(&end(Class::Disruption, NextStep::Reserve), &attached()).write;
    let [reserved] = &write.reserved[..] else { panic!("{write:?}") };
    assert_eq!((reserved.number, reserved.epoch, reserved.turn_at_start), (2, 2, 1));
    assert_eq!((reserved.reserved_at, reserved.state.0), (NOW, AttemptState::Reserved));
    assert_eq!((&reserved.pod_uid, &reserved.verdict, &reserved.node), (&None, &None, &None));
    for (column, expected) in [
        ("pod_uid", Value::Text(None)),
        ("verdict", Value::Text(None)),
        ("attempt_turn", Value::Integer(Some(1))),
    ] {
        assert_eq!(value(&write, column), Some(&expected), "{column}");
    }
}

#[test]
fn a_reset_forgives_the_totals_and_the_attempts_that_have_ended() {
    let counters = Counters {
        recovery_attempts: 5,
        attempts_without_progress: 3,
        disruptions: 7,
        disruptions_without_progress: 2,
        ..Counters::default()
    };
    let reset =
        |observed, to| ResetBudget(BudgetReset { observed, to, requested_by: RequestedBy::default() });
    for (state, forgiven) in [(AttemptState::Ended, 1), (AttemptState::Attached, 0)] {
        let rows = changed(with_attempt(state), |run| run.set_counters(counters));
        let record = decide(&reset(0, 3), &rows).answer;
        let expected = Counters {
            recovery_attempts: 5,
            recovery_attempts_base: 5,
            disruptions: 7,
            disruptions_base: 7,
            ..Counters::default()
        };
        assert_eq!(record.counters, expected);
        assert_eq!((record.reset_attempt, record.observed_reset_generation), (forgiven, 3));
        for nothing in [reset(1, 3), reset(0, 0)] {
            assert!(decide(&nothing, &rows).write.is_empty(), "{nothing:?}");
        }
    }
}
