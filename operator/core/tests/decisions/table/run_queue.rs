//! The queue of runs whose definition limits how many of them run at the same time.

use dalsegno_core::run_queue::{Place, QueuedRun, position};
use dalsegno_crds::ConditionType::{Ready, WorkerReady};
use dalsegno_crds::{Reason, Summary};

use crate::fixtures::{ago, case, check_all, expect_effect, expect_status, neutral, run};

fn queued(uid: &str, age: i64, place: Place) -> QueuedRun {
    QueuedRun { uid: uid.to_owned(), created: ago(age), place }
}

#[test]
fn the_oldest_runs_start_first_up_to_the_limit() {
    let runs = [
        queued("young", 10, Place::Waiting),
        queued("running", 90, Place::Taken),
        queued("old", 30, Place::Waiting),
        queued("ended", 99, Place::NotNeeded),
        queued("middle", 20, Place::Waiting),
    ];
    let positions = |max| ["old", "middle", "young"].map(|uid| position(runs.iter(), uid, max));
    assert_eq!(positions(1), [Some(1), Some(2), Some(3)]);
    assert_eq!(positions(2), [None, Some(1), Some(2)]);
    assert_eq!(positions(4), [None, None, None]);
    assert_eq!(position(runs.iter(), "running", 1), None, "it has a place");
    assert_eq!(position(runs.iter(), "unknown", 1), None);
}

#[test]
fn a_started_run_that_is_still_shown_as_waiting_starts_no_other_too_early() {
    let shown = |place| [queued("first", 20, place), queued("second", 10, Place::Waiting)];
    for place in [Place::Waiting, Place::Taken] {
        assert_eq!(position(shown(place).iter(), "second", 1), Some(1));
    }
    assert_eq!(position(shown(Place::NotNeeded).iter(), "second", 1), None);
}

#[test]
fn a_run_waits_for_its_place_only_before_its_first_pod() {
    let waiting = || {
        let mut given = run();
        given.seen.queue_position = Some(3);
        given
    };
    check_all(vec![
        case(
            "the status says the position",
            waiting(),
            expect_status(Summary::Pending, Reason::Queued)
                .condition(WorkerReady, "False", Reason::Queued)
                .condition(Ready, "False", Reason::Queued)
                .message_contains("2 runs of this AgentDefinition start before it"),
        ),
        case(
            "a run that has had a pod does not wait",
            {
                let mut past = neutral(1, dalsegno_crds::Cause::StartDeadline).ago(900);
                past.0.pod_uid = Some("pod-1".into());
                let mut given = run().reserved(2).after(past);
                given.seen.queue_position = Some(3);
                given
            },
            expect_effect("create triage-2"),
        ),
    ]);
    assert_eq!(waiting().decide().status.queue_position, Some(3));
    assert_eq!(run().decide().status.queue_position, None);
}
