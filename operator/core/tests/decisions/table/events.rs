//! Kubernetes events: one for each change of the status.

use dalsegno_core::EventLevel;
use dalsegno_crds::{Cause, EventReason, Reason, Summary};
use dalsegno_model::RunOutcome;
use serde_json::json;

use crate::fixtures::{Given, case, check_all, crashed, disrupted, expect_status, pod, run};

/// Attempt 3 is attached, and the status shows it.
fn attached() -> Given {
    run().attached(3).head(7).pod(pod(3)).status_written()
}

/// The same run with a new observation.
fn observed_again(given: Given) -> Given {
    Given { seen: run().seen, ..given }
}

#[test]
fn each_change_has_one_event() {
    let running = || expect_status(Summary::Running, Reason::UnderControl);
    let crashed_run =
        || observed_again(attached()).reserved(4).crashes(1, 1).after(crashed(3, Cause::OOMKilled).ago(0));
    check_all(vec![
        case(
            "the end of an attempt",
            crashed_run(),
            expect_status(Summary::BackingOff, Reason::OutOfMemory).events(&[&Cause::OOMKilled]),
        ),
        case(
            "an end and a new pod between two observations",
            observed_again(attached()).created(4).pod(pod(4)).after(disrupted(3, Cause::Evicted)),
            expect_status(Summary::Starting, Reason::Disrupted)
                .events(&[&Cause::Evicted, &EventReason::WorkerCreated]),
        ),
        case(
            "several attempts between two observations, the earliest first",
            observed_again(attached())
                .attached(6)
                .pod(pod(6))
                .after(crashed(5, Cause::ExitedWithError))
                .after(crashed(4, Cause::OOMKilled))
                .after(disrupted(3, Cause::Evicted)),
            running().events(&[
                &Cause::Evicted,
                &Cause::OOMKilled,
                &Cause::ExitedWithError,
                &EventReason::WorkerCreated,
                &Reason::Attached,
            ]),
        ),
        case(
            "a hold",
            crashed_run().crashes(3, 3),
            expect_status(Summary::Held, Reason::RecoveryLoop)
                .events(&[&Cause::OOMKilled, &Reason::RecoveryLoop]),
        ),
        case(
            "a hold for another reason",
            crashed_run().crashes(3, 3).status_written().crashes(21, 0),
            expect_status(Summary::Held, Reason::RecoveryAttemptsExhausted)
                .events(&[&Reason::RecoveryAttemptsExhausted]),
        ),
        case(
            "a granted budget",
            attached().budget_reset(2, 3).recovery(json!({ "resetGeneration": 2 })),
            running().events(&[&EventReason::BudgetReset]),
        ),
        case("no event without a change", attached(), running().events(&[])),
        case("no event for a committed turn", attached().head(8), running().events(&[])),
        case(
            "no event when the store is available again",
            attached().store_unavailable().status_written().attached(3).store_available(),
            running().events(&[]),
        ),
        case(
            "one event for the end of a run, and none for the end of its last attempt",
            attached().ended_by_operator(RunOutcome::Cancelled, 1).cancelled_end(),
            expect_status(Summary::Cancelled, Reason::Cancelled)
                .events(&[&Reason::Cancelled])
                .deletes_pod("triage-3"),
        ),
        case(
            "no events for old attempts when the status is rebuilt from the store",
            run().attached(3).head(7).pod(pod(3)).after(crashed(2, Cause::OOMKilled)),
            running().events(&[&Reason::Attached]),
        ),
    ]);
}

#[test]
fn problems_are_warnings() {
    let levels =
        |given: Given| -> Vec<EventLevel> { given.decide().events.iter().map(|it| it.level).collect() };
    let ended = |past| observed_again(attached()).reserved(4).after(past);
    assert_eq!(
        levels(ended(crashed(3, Cause::OOMKilled)).crashes(3, 3)),
        [EventLevel::Warning, EventLevel::Warning]
    );
    assert_eq!(
        levels(ended(disrupted(3, Cause::Evicted)).disruptions(2, 2)).first(),
        None,
        "the attempt is replaced at once"
    );
    assert_eq!(levels(attached().finished(RunOutcome::Failed, 1)), [EventLevel::Warning]);
    assert_eq!(levels(attached().finished(RunOutcome::Succeeded, 1)), [EventLevel::Normal]);
}

#[test]
fn the_event_for_the_end_of_an_attempt_has_its_turn_charge_and_message() {
    let past = crashed(3, Cause::OOMKilled).after_turn(9).ago(0);
    let decision = observed_again(attached()).reserved(4).crashes(1, 1).after(past).decide();
    assert_eq!(decision.events[0].note, "attempt 3 ended after turn 9 and is fenced, charged. last words");
}

#[test]
fn the_events_of_a_run_without_a_turn_name_no_turn_0() {
    let note = |given: Given| given.decide().events.remove(0).note;
    let unscheduled = observed_again(run().status_written());
    assert_eq!(note(unscheduled.created(1).pod(pod(1))), "created pod triage-1 to start at turn 1");
    let starting = observed_again(run().created(1).pod(pod(1)).status_written());
    assert_eq!(note(starting.attached(1).pod(pod(1))), "the worker of attempt 1 starts at turn 1");
    let attached = observed_again(run().attached(1).pod(pod(1)).status_written());
    let past = crashed(1, Cause::OOMKilled).after_turn(0).ago(0);
    let ended = attached.reserved(2).crashes(1, 1).after(past);
    assert_eq!(note(ended), "attempt 1 ended before its first turn and is fenced, charged. last words");
}

#[test]
fn the_event_of_a_cancel_says_who_cancelled_and_why() {
    let note =
        |given: Given, reason: Option<&str>| given.operating_mode_written(reason).decide().events.remove(0);
    let cancelled = || attached().cancelled();
    let by_worker = note(cancelled().acknowledged(1).cancelled_end(), Some("it reads the wrong mailbox"));
    assert_eq!(
        by_worker.note,
        "the run has ended. the run was cancelled; cancelled by kubectl-patch; reason: it reads the wrong mailbox"
    );
    assert_eq!(by_worker.log, "the run has ended", "the log has no text of a person");
    let by_operator = note(cancelled().ended_by_operator(RunOutcome::Cancelled, 1).cancelled_end(), None);
    assert!(by_operator.note.ends_with("; cancelled by kubectl-patch"), "{}", by_operator.note);
}
