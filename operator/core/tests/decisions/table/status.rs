//! The status: conditions that follow the rules of kstatus, and fields that do not change without reason.

use dalsegno_crds::ConditionType::{
    CheckpointAvailable, Held, Ready, Reconciling, Stalled, VersionCompatible, WorkerReady,
};
use dalsegno_crds::{Cause, EventReason, Reason, Summary, find_condition};
use dalsegno_model::RunOutcome;
use jiff::SignedDuration;
use serde_json::json;

use crate::fixtures::{
    Case, Given, PodFixture, ago, case, check_all, crashed, disrupted, expect_status, now, pod, run,
};

#[test]
fn conditions_follow_the_rules_of_kstatus() {
    check_all(ready());
    check_all(versions());
}

/// Attempt 1 is attached, and the status shows it.
fn attached() -> Given {
    run().attached(1).head(7).pod(pod(1)).status_written()
}

/// The attempt crashed 0 s ago, and the next one is backing off.
fn backing_off(given: Given) -> Given {
    let mut given = given.reserved(2).crashes(1, 1).after(crashed(1, Cause::OOMKilled).attached(50).ago(0));
    given.seen.pods.clear();
    given
}

/// The first worker crashed this long ago, and the pod of the second attempt is starting.
fn restarting(seconds_ago: i64, pod: PodFixture) -> Given {
    let first = crashed(1, Cause::OOMKilled).attached(500).ago(seconds_ago);
    let mut given = attached().created(2).crashes(1, 1).after(first);
    given.seen.pods.clear();
    given.pod(pod)
}

fn ready() -> Vec<Case> {
    let starting = || run().created(1).pod(pod(1));
    vec![
        case(
            "a run is reconciling until its first attach",
            starting(),
            expect_status(Summary::Starting, Reason::Starting)
                .condition(Ready, "False", Reason::Starting)
                .condition(Reconciling, "True", Reason::Starting)
                .no_condition(Stalled),
        ),
        case(
            "after the first attach the run is Ready",
            attached(),
            expect_status(Summary::Running, Reason::UnderControl)
                .condition(Ready, "True", Reason::UnderControl)
                .condition(WorkerReady, "True", Reason::Attached)
                .condition(CheckpointAvailable, "True", Reason::Committed)
                .condition(Held, "False", Reason::NotHeld)
                .no_condition(Reconciling)
                .no_condition(Stalled),
        ),
        case(
            "a recovering run stays Ready",
            backing_off(attached()),
            expect_status(Summary::BackingOff, Reason::OutOfMemory)
                .condition(Ready, "True", Reason::OutOfMemory)
                .message_contains("Ready: attempt 1 ended before its first turn: OOMKilled: last words; attempt 2 starts at 2026-11-20T12:00:0")
                .no_condition(Reconciling),
        ),
        case(
            "a run without a worker for almost three minutes is Ready, and looked at again when they are over",
            restarting(179, pod(2)),
            expect_status(Summary::Starting, Reason::OutOfMemory)
                .condition(Ready, "True", Reason::OutOfMemory)
                .requeue_after(1),
        ),
        case(
            "a run without a worker for three minutes is not Ready",
            restarting(181, pod(2)),
            expect_status(Summary::Starting, Reason::OutOfMemory)
                .condition(Ready, "False", Reason::OutOfMemory)
                .no_condition(Reconciling)
                .no_condition(Stalled),
        ),
        case(
            "a run whose next worker cannot pull its image is not Ready, whatever attempt it is",
            restarting(5, pod(2).waiting("ErrImagePull", "no such tag")).on_mismatch("Allow"),
            expect_status(Summary::Starting, Reason::ImagePullFailed)
                .condition(Ready, "False", Reason::ImagePullFailed)
                .message_contains("attempt 2 cannot start: ErrImagePull: no such tag")
                .no_condition(Reconciling)
                .no_condition(Stalled),
        ),
        case(
            "an edited run that recovers is reconciling until the next attach",
            backing_off(attached()).edited(),
            expect_status(Summary::BackingOff, Reason::OutOfMemory).condition(Ready, "False", Reason::OutOfMemory).condition(
                Reconciling,
                "True",
                Reason::OutOfMemory,
            ),
        ),
        case(
            "the next decision does not change that",
            backing_off(attached()).edited().status_written(),
            expect_status(Summary::BackingOff, Reason::OutOfMemory).condition(Reconciling, "True", Reason::OutOfMemory),
        ),
        case(
            "an edit does not change the conditions of an attached run",
            attached().edited(),
            expect_status(Summary::Running, Reason::UnderControl)
                .condition(Ready, "True", Reason::UnderControl)
                .no_condition(Reconciling),
        ),
        case(
            "attempts that never attached do not end the reconciling",
            backing_off(starting().status_written()).edited(),
            expect_status(Summary::BackingOff, Reason::OutOfMemory).condition(Reconciling, "True", Reason::OutOfMemory),
        ),
        case(
            "a held run is stalled",
            run().reserved(4).crashes(3, 3).status_written(),
            expect_status(Summary::Held, Reason::RecoveryLoop)
                .condition(Stalled, "True", Reason::RecoveryLoop)
                .condition(WorkerReady, "False", Reason::NoWorker)
                .no_condition(Reconciling),
        ),
        case(
            "an unavailable store changes only Ready",
            backing_off(attached()).status_written().store_unavailable(),
            expect_status(Summary::BackingOff, Reason::StoreUnavailable)
                .condition(Ready, "Unknown", Reason::StoreUnavailable)
                .condition(WorkerReady, "False", Reason::BackingOff)
                .condition(CheckpointAvailable, "True", Reason::Committed),
        ),
    ]
}

fn versions() -> Vec<Case> {
    let running = || expect_status(Summary::Running, Reason::UnderControl);
    vec![
        case("the same version", attached(), running().condition(VersionCompatible, "True", Reason::Same)),
        case(
            "a compatible version",
            {
                let mut it = attached();
                it.row.attempt.identity.as_mut().unwrap().remark = "listed".into();
                it
            },
            running().condition(VersionCompatible, "True", Reason::Compatible),
        ),
        case(
            "an allowed version, with an event",
            run().attached(1).allowed_version().head(7).pod(pod(1)),
            running().condition(VersionCompatible, "True", Reason::Allowed).events(&[
                &EventReason::WorkerCreated,
                &EventReason::VersionAllowed,
                &Reason::Attached,
            ]),
        ),
        case(
            "a pinned version",
            run().attached(2).head(7).pod(pod(2).pinned()),
            running().condition(VersionCompatible, "True", Reason::Pinned),
        ),
        case(
            "a pinned version whose pod is gone",
            {
                let pinned = run().attached(2).head(7).pod(pod(2).pinned()).status_written();
                let mut done = pinned.finished(RunOutcome::Succeeded, 60);
                done.seen.pods.clear();
                done
            },
            expect_status(Summary::Succeeded, Reason::Completed).condition(
                VersionCompatible,
                "True",
                Reason::Pinned,
            ),
        ),
    ]
}

#[test]
fn a_condition_has_the_time_of_its_last_transition() {
    let mut given = attached();
    for condition in &mut given.status().conditions {
        condition.last_transition_time.0 = ago(500);
    }
    let status = backing_off(given).decide().status;
    let since = |kind| find_condition(&status.conditions, kind).unwrap().last_transition_time.0;
    assert_eq!(since(Ready), ago(500), "it was True, and is True");
    assert_eq!(since(WorkerReady), now(), "it was True, and is False");
}

#[test]
fn times_are_whole_seconds_as_in_the_api_server() {
    let mut given = run().attached(1).head(7).pod(pod(1));
    given.row.head.as_mut().unwrap().at = now() - SignedDuration::from_millis(1_234);
    let status = given.decide().status;
    assert_eq!(status.checkpoint.unwrap().created_time.unwrap().0, ago(2));
}

#[test]
fn the_start_time_is_that_of_the_first_attach_and_does_not_change() {
    assert_eq!(run().created(1).pod(pod(1)).decide().status.start_time, None);
    let status = attached().decide().status;
    assert_eq!(status.start_time.map(|it| it.0), Some(ago(50)));
    let mut later = backing_off(attached());
    later.row.past[0].attached_at = Some(ago(10));
    assert_eq!(later.decide().status.start_time.map(|it| it.0), Some(ago(50)));
}

#[test]
fn a_status_does_not_change_if_a_worker_attached_ahead_of_the_operators_clock() {
    let mut given = backing_off(attached());
    given.run.status = None;
    given.row.past[0].attached_at = Some(ago(-5));
    let status = given.decide().status;
    assert_eq!(given.status_written().decide().status, status);
}

#[test]
fn an_output_is_written_once_even_if_the_api_server_spells_it_differently() {
    let mut given = run().attached(1).head(7).finished(RunOutcome::Succeeded, 60).status_written();
    assert_eq!(given.decide().status.result.unwrap().output, Some(json!({ "answer": 1.0 })));
    given.status().result.as_mut().unwrap().output = Some(json!({ "answer": 1 }));
    assert_eq!(Some(given.decide().status), given.run.status);
}

#[test]
fn an_output_with_too_many_levels_is_omitted() {
    let mut given = run().attached(1).head(7).finished(RunOutcome::Succeeded, 60);
    let mut output = |levels: usize| {
        given.row.finish.as_mut().unwrap().output = Some("[".repeat(levels) + &"]".repeat(levels));
        given.decide().status.result.unwrap().output
    };
    assert!(output(64).is_some());
    assert_eq!(output(65), None);
}

#[test]
fn the_history_has_the_last_ten_ends() {
    let past = (1..12)
        .rev()
        .fold(run().reserved(12), |it, n| it.after(disrupted(n, Cause::Evicted)))
        .disruptions(11, 11);
    let history = |given: &Given| -> Vec<i32> {
        let recovery = given.decide().status.recovery.unwrap();
        recovery.history.iter().map(|it| it.attempt).collect()
    };
    assert_eq!(history(&past), [11, 10, 9, 8, 7, 6, 5, 4, 3, 2]);
    let over = past.ended_by_operator(RunOutcome::Failed, 1);
    assert_eq!(history(&over), [12, 11, 10, 9, 8, 7, 6, 5, 4, 3]);
}
