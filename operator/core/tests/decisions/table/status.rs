//! What a person reads: conditions by the rules of kstatus, and a status that stands once it is written.

use dalsegno_crds::ConditionType::{
    CheckpointAvailable, Held, Ready, Reconciling, Stalled, VersionCompatible, WorkerReady,
};
use dalsegno_crds::{Cause, Reason, Summary, find_condition};
use dalsegno_model::RunOutcome;
use jiff::SignedDuration;
use serde_json::json;

use crate::words::{Case, Given, ago, case, crashed, disrupted, now, pod, rests, run, try_all};

#[test]
fn conditions_are_true_and_mean_what_kstatus_takes_them_for() {
    try_all(ready());
    try_all(versions());
}

/// Attempt 1 attached, and that was written.
fn begun() -> Given {
    run().attached(1).head(7).pod(pod(1)).written()
}

/// It died 0 s ago, and the next one waits.
fn backing_off(given: Given) -> Given {
    let mut given = given.reserved(2).crashes(1, 1).after(crashed(1, Cause::OOMKilled).attached(50).ago(0));
    given.seen.pods.clear();
    given
}

fn ready() -> Vec<Case> {
    let starting = || run().created(1).pod(pod(1));
    vec![
        case(
            "a run is reconciling until its first attach",
            starting(),
            rests(Summary::Starting, Reason::Starting)
                .is(Ready, "False", Reason::Starting)
                .is(Reconciling, "True", Reason::Starting)
                .lacks(Stalled),
        ),
        case(
            "then it is ready",
            begun(),
            rests(Summary::Running, Reason::UnderControl)
                .is(Ready, "True", Reason::UnderControl)
                .is(WorkerReady, "True", Reason::Attached)
                .is(CheckpointAvailable, "True", Reason::Committed)
                .is(Held, "False", Reason::NotHeld)
                .lacks(Reconciling)
                .lacks(Stalled),
        ),
        case(
            "and stays so while it recovers",
            backing_off(begun()),
            rests(Summary::BackingOff, Reason::OutOfMemory)
                .is(Ready, "True", Reason::OutOfMemory)
                .says("Ready: attempt 1 ended after turn 0: OOMKilled: last words; attempt 2 starts at 2026-11-20T12:00:0")
                .lacks(Reconciling),
        ),
        case(
            "an edit of a run that recovers is reconciling until the next attach",
            backing_off(begun()).edited(),
            rests(Summary::BackingOff, Reason::OutOfMemory).is(Ready, "False", Reason::OutOfMemory).is(
                Reconciling,
                "True",
                Reason::OutOfMemory,
            ),
        ),
        case(
            "and still is when it is looked at again",
            backing_off(begun()).edited().written(),
            rests(Summary::BackingOff, Reason::OutOfMemory).is(Reconciling, "True", Reason::OutOfMemory),
        ),
        case(
            "an edit of a run whose worker is attached changes nothing for it",
            begun().edited(),
            rests(Summary::Running, Reason::UnderControl)
                .is(Ready, "True", Reason::UnderControl)
                .lacks(Reconciling),
        ),
        case(
            "attempts that never attached do not end it",
            backing_off(starting().written()).edited(),
            rests(Summary::BackingOff, Reason::OutOfMemory).is(Reconciling, "True", Reason::OutOfMemory),
        ),
        case(
            "a run that is held needs a person",
            run().reserved(4).crashes(3, 3).written(),
            rests(Summary::Held, Reason::RecoveryLoop)
                .is(Stalled, "True", Reason::RecoveryLoop)
                .is(WorkerReady, "False", Reason::NoWorker)
                .lacks(Reconciling),
        ),
        case(
            "a store that is away changes one condition",
            backing_off(begun()).written().store_unknown(),
            rests(Summary::BackingOff, Reason::StoreUnavailable)
                .is(Ready, "Unknown", Reason::StoreUnavailable)
                .is(WorkerReady, "False", Reason::BackingOff)
                .is(CheckpointAvailable, "True", Reason::Committed),
        ),
    ]
}

fn versions() -> Vec<Case> {
    let running = || rests(Summary::Running, Reason::UnderControl);
    vec![
        case("the same version", begun(), running().is(VersionCompatible, "True", Reason::Same)),
        case(
            "a compatible one says so",
            {
                let mut it = begun();
                it.row.attempt.identity.as_mut().unwrap().remark = "listed".into();
                it
            },
            running().is(VersionCompatible, "True", Reason::Compatible),
        ),
        case(
            "an allowed one says so, and is told",
            run().attached(1).allowed_version().head(7).pod(pod(1)),
            running().is(VersionCompatible, "True", Reason::Allowed).tells(&[
                "WorkerCreated",
                "VersionAllowed",
                "Attached",
            ]),
        ),
        case(
            "a pinned one says so",
            run().attached(2).head(7).pod(pod(2).pinned()),
            running().is(VersionCompatible, "True", Reason::Pinned),
        ),
        case(
            "and still does when its pod is gone",
            {
                let pinned = run().attached(2).head(7).pod(pod(2).pinned()).written();
                let mut done = pinned.finished(RunOutcome::Succeeded, 60);
                done.seen.pods.clear();
                done
            },
            rests(Summary::Succeeded, Reason::Completed).is(VersionCompatible, "True", Reason::Pinned),
        ),
    ]
}

#[test]
fn the_time_of_a_condition_is_that_of_its_last_change() {
    let mut given = begun();
    for condition in &mut given.status().conditions {
        condition.last_transition_time.0 = ago(500);
    }
    let status = backing_off(given).decide().status;
    let since = |kind| find_condition(&status.conditions, kind).unwrap().last_transition_time.0;
    assert_eq!(since(Ready), ago(500), "it was True, and still is");
    assert_eq!(since(WorkerReady), now(), "it was True, and is no longer");
}

#[test]
fn times_are_whole_seconds_as_the_api_server_keeps_them() {
    let mut given = run().attached(1).head(7).pod(pod(1));
    given.row.head.as_mut().unwrap().at = now() - SignedDuration::from_millis(1_234);
    let status = given.decide().status;
    assert_eq!(status.checkpoint.unwrap().created_time.unwrap().0, ago(2));
}

#[test]
fn a_run_has_started_when_its_first_worker_attached_and_that_stays_so() {
    assert_eq!(run().created(1).pod(pod(1)).decide().status.start_time, None);
    let status = begun().decide().status;
    assert_eq!(status.start_time.map(|it| it.0), Some(ago(50)));
    let mut later = backing_off(begun());
    later.row.past[0].attached_at = Some(ago(10));
    assert_eq!(later.decide().status.start_time.map(|it| it.0), Some(ago(50)));
}

#[test]
fn an_output_is_written_once_however_the_api_server_spells_it() {
    let mut given = run().attached(1).head(7).finished(RunOutcome::Succeeded, 60).written();
    assert_eq!(given.decide().status.result.unwrap().output, Some(json!({ "answer": 1.0 })));
    given.status().result.as_mut().unwrap().output = Some(json!({ "answer": 1 }));
    assert_eq!(Some(given.decide().status), given.run.status);
}

#[test]
fn an_output_too_deep_to_be_shown_is_left_out() {
    let mut given = run().attached(1).head(7).finished(RunOutcome::Succeeded, 60);
    let mut output = |levels: usize| {
        given.row.finish.as_mut().unwrap().output = Some("[".repeat(levels) + &"]".repeat(levels));
        given.decide().status.result.unwrap().output
    };
    assert!(output(64).is_some());
    assert_eq!(output(65), None);
}

#[test]
fn the_history_has_the_last_ten_ends_and_the_operators_own() {
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
