//! What is told as events: each change once, by whoever writes the status.

use dalsegno_core::EventLevel;
use dalsegno_crds::{Cause, Reason, Summary};
use dalsegno_store::RunOutcome;
use serde_json::json;

use crate::fixtures::{Given, case, check_all, crashed, disrupted, expect_status, pod, run};

/// Attempt 3 is attached, and that was told.
fn told() -> Given {
    run().attached(3).head(7).pod(pod(3)).status_written()
}

/// The same run, seen anew.
fn later(given: Given) -> Given {
    Given { seen: run().seen, ..given }
}

#[test]
fn each_change_is_told_once() {
    let running = || expect_status(Summary::Running, Reason::UnderControl);
    let died = || later(told()).reserved(4).crashes(1, 1).after(crashed(3, Cause::OOMKilled).ago(0));
    check_all(vec![
        case(
            "the end of an attempt",
            died(),
            expect_status(Summary::BackingOff, Reason::OutOfMemory).events(&["OOMKilled"]),
        ),
        case(
            "an end and a new pod that came between two looks",
            later(told()).created(4).pod(pod(4)).after(disrupted(3, Cause::Evicted)),
            expect_status(Summary::Starting, Reason::Disrupted).events(&["Evicted", "WorkerCreated"]),
        ),
        case(
            "whole attempts that came and went between two looks, the earliest first",
            later(told())
                .attached(6)
                .pod(pod(6))
                .after(crashed(5, Cause::ExitedWithError))
                .after(crashed(4, Cause::OOMKilled))
                .after(disrupted(3, Cause::Evicted)),
            running().events(&["Evicted", "OOMKilled", "ExitedWithError", "WorkerCreated", "Attached"]),
        ),
        case(
            "a hold",
            died().crashes(3, 3),
            expect_status(Summary::Held, Reason::RecoveryLoop).events(&["OOMKilled", "RecoveryLoop"]),
        ),
        case(
            "a hold for another reason",
            died().crashes(3, 3).status_written().crashes(21, 0),
            expect_status(Summary::Held, Reason::RecoveryAttemptsExhausted)
                .events(&["RecoveryAttemptsExhausted"]),
        ),
        case(
            "a granted budget",
            told().budget_reset(2, 3).recovery(json!({ "resetGeneration": 2 })),
            running().events(&["BudgetReset"]),
        ),
        case("nothing, where nothing changed", told(), running().events(&[])),
        case("nothing, where only a turn was committed", told().head(8), running().events(&[])),
        case(
            "nothing, where the store was away and is back",
            told().store_unavailable().status_written().attached(3).store_available(),
            running().events(&[]),
        ),
        case(
            "the end of a run, and not besides that its last attempt was ended for it",
            told().ended_by_operator(RunOutcome::Cancelled, 1).cancelled_end(),
            expect_status(Summary::Cancelled, Reason::Cancelled)
                .events(&["Cancelled"])
                .deletes_pod("triage-3"),
        ),
        case(
            "no old stories, where the status is rebuilt from the store",
            run().attached(3).head(7).pod(pod(3)).after(crashed(2, Cause::OOMKilled)),
            running().events(&["Attached"]),
        ),
    ]);
}

#[test]
fn what_somebody_may_want_to_look_at_is_a_warning() {
    let levels =
        |given: Given| -> Vec<EventLevel> { given.decide().events.iter().map(|it| it.level).collect() };
    let died = |past| later(told()).reserved(4).after(past);
    assert_eq!(
        levels(died(crashed(3, Cause::OOMKilled)).crashes(3, 3)),
        [EventLevel::Warning, EventLevel::Warning]
    );
    assert_eq!(
        levels(died(disrupted(3, Cause::Evicted)).disruptions(2, 2)).first(),
        None,
        "it is being replaced"
    );
    assert_eq!(levels(told().finished(RunOutcome::Failed, 1)), [EventLevel::Warning]);
    assert_eq!(levels(told().finished(RunOutcome::Succeeded, 1)), [EventLevel::Normal]);
}

#[test]
fn the_end_of_an_attempt_is_told_with_its_turn_its_charge_and_its_message() {
    let past = crashed(3, Cause::OOMKilled).after_turn(9).ago(0);
    let decision = later(told()).reserved(4).crashes(1, 1).after(past).decide();
    assert_eq!(
        decision.events[0].note,
        "attempt 3 ended after turn 9 and is fenced, charged. last words"
    );
}
