//! A suspend that is lifted.

use dalsegno_crds::ConditionType::{Reconciling, Suspended};
use dalsegno_crds::{Cause, EventReason, Reason, Summary};
use serde_json::json;

use super::suspend::{parked, working};
use crate::fixtures::{Case, Given, case, check_all, crashed, expect_effect, expect_status, run};

#[test]
fn a_run_whose_suspend_is_lifted_goes_on() {
    check_all(lifted());
}

fn lifted() -> Vec<Case> {
    let lift = |given: Given| given.status_written().spec(json!({ "operatingMode": null })).edited();
    let resumed = |given: Given| {
        let mut given = lift(given);
        given.row.suspend = None;
        given
    };
    vec![
        case("the lifting is recorded in the store first", lift(parked(600)), expect_effect("resume")),
        case(
            "`Running` lifts it too",
            parked(600).status_written().spec(json!({ "operatingMode": "Running" })),
            expect_effect("resume"),
        ),
        case(
            "the suspend of a run that another AgentRun adopted is lifted",
            run().suspend(600, None),
            expect_effect("resume"),
        ),
        case(
            "then the next attempt gets its pod at once",
            resumed(parked(600)),
            expect_effect("create triage-4"),
        ),
        case(
            "a run that was never started gets its first pod",
            resumed(run().suspended().suspend(600, None)),
            expect_effect("create triage-1"),
        ),
        case(
            "a run that was never started waits in the queue again",
            {
                let mut given = resumed(run().suspended().suspend(600, None));
                given.seen.queue_position = Some(2);
                given
            },
            expect_status(Summary::Pending, Reason::Queued)
                .condition(Reconciling, "True", Reason::Queued)
                .no_condition(Suspended)
                .events(&[&EventReason::Resumed]),
        ),
        case(
            "the backoff of a crash goes on while the run is suspended",
            resumed(
                run()
                    .reserved(4)
                    .crashes(2, 2)
                    .after(crashed(3, Cause::OOMKilled).ago(0))
                    .suspended()
                    .suspend(1, None),
            ),
            expect_status(Summary::BackingOff, Reason::OutOfMemory)
                .no_condition(Suspended)
                .events(&[&EventReason::Resumed]),
        ),
        case(
            "a worker that has not parked yet goes on",
            resumed(working().suspended().suspend(5, Some(5))),
            expect_status(Summary::Running, Reason::UnderControl)
                .no_condition(Suspended)
                .events(&[&EventReason::Resumed]),
        ),
        case(
            "a run whose checkpoint turns out to be damaged is held then",
            resumed(parked(600)).corrupt(None, &[]),
            expect_status(Summary::Held, Reason::CheckpointCorrupt).no_condition(Suspended),
        ),
    ]
}

#[test]
fn the_event_of_a_lifted_suspend_says_who_lifted_it_and_why() {
    let suspended = || {
        let given = run().suspended().suspend(90, None).operating_mode_written(Some("too expensive"));
        given.status_written()
    };
    let note = |given: Given, reason| {
        let mut given = given.spec(json!({ "operatingMode": "Running" })).operating_mode_written(reason);
        given.row.suspend = None;
        given.seen.queue_position = Some(1);
        given.decide().events.remove(0).note
    };
    let who = "the run is no longer suspended; resumed by kubectl-patch";
    assert_eq!(note(suspended(), Some("too expensive")), who);
    assert_eq!(note(suspended(), Some("the price fell")), format!("{who}; reason: the price fell"));
}
