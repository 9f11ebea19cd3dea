//! What is told as events: each change once, by whoever writes the status.

use dalsegno_core::Level;
use dalsegno_crds::{Cause, Reason, Summary};
use dalsegno_model::RunOutcome;
use serde_json::json;

use crate::words::{Given, case, crashed, disrupted, pod, rests, run, try_all};

/// Attempt 3 is attached, and that was told.
fn told() -> Given {
    run().attached(3).head(7).pod(pod(3)).written()
}

/// The same run, seen anew.
fn later(given: Given) -> Given {
    Given { seen: run().seen, ..given }
}

#[test]
fn each_change_is_told_once() {
    let running = || rests(Summary::Running, Reason::UnderControl);
    let died = || later(told()).reserved(4).crashes(1, 1).after(crashed(3, Cause::OOMKilled).ago(0));
    try_all(vec![
        case(
            "the end of an attempt",
            died(),
            rests(Summary::BackingOff, Reason::OutOfMemory).tells(&["OOMKilled"]),
        ),
        case(
            "an end and a new pod that came between two looks",
            later(told()).created(4).pod(pod(4)).after(disrupted(3, Cause::Evicted)),
            rests(Summary::Starting, Reason::Disrupted).tells(&["Evicted", "WorkerCreated"]),
        ),
        case(
            "whole attempts that came and went between two looks, the earliest first",
            later(told())
                .attached(6)
                .pod(pod(6))
                .after(crashed(5, Cause::ExitedWithError))
                .after(crashed(4, Cause::OOMKilled))
                .after(disrupted(3, Cause::Evicted)),
            running().tells(&["Evicted", "OOMKilled", "ExitedWithError", "WorkerCreated", "Attached"]),
        ),
        case(
            "a hold",
            died().crashes(3, 3),
            rests(Summary::Held, Reason::RecoveryLoop).tells(&["OOMKilled", "RecoveryLoop"]),
        ),
        case(
            "a hold for another reason",
            died().crashes(3, 3).written().crashes(21, 0),
            rests(Summary::Held, Reason::RecoveryAttemptsExhausted).tells(&["RecoveryAttemptsExhausted"]),
        ),
        case(
            "a granted budget",
            told().reset(2, 3).recovery(json!({ "resetGeneration": 2 })),
            running().tells(&["BudgetReset"]),
        ),
        case("nothing, where nothing changed", told(), running().tells(&[])),
        case("nothing, where only a turn was committed", told().head(8), running().tells(&[])),
        case(
            "nothing, where the store was away and is back",
            told().store_unknown().written().attached(3).found_again(),
            running().tells(&[]),
        ),
        case(
            "the end of a run, and not besides that its last attempt was ended for it",
            told().ended_by_operator(RunOutcome::Cancelled, 1).cancelled_end(),
            rests(Summary::Cancelled, Reason::Cancelled).tells(&["Cancelled"]).stops("triage-3"),
        ),
        case(
            "no old stories, where the status is rebuilt from the store",
            run().attached(3).head(7).pod(pod(3)).after(crashed(2, Cause::OOMKilled)),
            running().tells(&["Attached"]),
        ),
    ]);
}

#[test]
fn what_somebody_may_want_to_look_at_is_a_warning() {
    let levels = |given: Given| -> Vec<Level> { given.decide().notices.iter().map(|it| it.level).collect() };
    let died = |past| later(told()).reserved(4).after(past);
    assert_eq!(levels(died(crashed(3, Cause::OOMKilled)).crashes(3, 3)), [Level::Warning, Level::Warning]);
    assert_eq!(
        levels(died(disrupted(3, Cause::Evicted)).disruptions(2, 2)).first(),
        None,
        "it is being replaced"
    );
    assert_eq!(levels(told().finished(RunOutcome::Failed, 1)), [Level::Warning]);
    assert_eq!(levels(told().finished(RunOutcome::Succeeded, 1)), [Level::Normal]);
}

#[test]
fn the_end_of_an_attempt_is_told_with_its_turn_its_charge_and_its_message() {
    let past = crashed(3, Cause::OOMKilled).after_turn(9).ago(0);
    let decision = later(told()).reserved(4).crashes(1, 1).after(past).decide();
    assert_eq!(
        decision.notices[0].note,
        "attempt 3 ended after turn 9 and is fenced off, charged. last words"
    );
}
