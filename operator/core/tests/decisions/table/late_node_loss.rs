//! A worker that a signal ended, on a node that is found lost only after that.

use dalsegno_crds::{Cause, Reason, Summary};
use serde_json::json;

use crate::fixtures::{
    Given, case, check_all, crashed, expect_effect, expect_finish, expect_status, pod, run,
};

/// Attempt 3 was charged for this exit code so many seconds ago. Its node was Ready then, and is Ready.
fn killed(code: i32, seconds_ago: i64) -> Given {
    let past = crashed(3, Cause::ExitedWithError).exit_code(code).on("n1").ago(seconds_ago);
    run().reserved(4).crashes(1, 1).after(past).past_node("n1", true, 86_400)
}

/// Three attempts were charged for SIGKILL, as many as the run's limit. The last one ended so many seconds ago.
fn exhausted(seconds_ago: i64) -> Given {
    killed(137, seconds_ago).crashes(3, 3)
}

#[test]
fn the_charge_of_a_worker_whose_node_is_found_lost_is_taken_back() {
    let taken_back = || expect_effect("forgive 3: NodeLost");
    let next = || expect_effect("create triage-4");
    let fail = json!({ "onExhausted": "Fail" });
    check_all(vec![
        case("the next attempt does not wait for the node's verdict", killed(137, 2), next()),
        case("the node is not Ready", killed(137, 45).past_node("n1", false, 3), taken_back()),
        case("SIGTERM counts like SIGKILL", killed(143, 45).past_node("n1", false, 3), taken_back()),
        case("the node has restarted", killed(137, 45).past_node("n1", true, 20), taken_back()),
        case(
            "the node was restarted before the worker ended",
            killed(137, 45).past_node("n1", true, 46),
            next(),
        ),
        case(
            "the clocks of the store and of the API server may differ by some seconds",
            killed(137, 45).past_node("n1", true, 40),
            next(),
        ),
        case(
            "the next worker runs already",
            killed(137, 45).attached(4).pod(pod(4)).past_node("n1", false, 3),
            taken_back(),
        ),
        case("the verdict comes too late", killed(137, 70).past_node("n1", false, 3), next()),
        case("another exit code is the agent's", killed(1, 45).past_node("n1", false, 3), next()),
        case("another node is lost", killed(137, 45).past_node("n2", false, 3), next()),
        case(
            "a granted budget has forgiven the attempt already",
            killed(137, 45).past_node("n1", false, 3).budget_reset(1, 3),
            next(),
        ),
        case(
            "an exhausted budget waits for the verdict",
            exhausted(10),
            expect_status(Summary::BackingOff, Reason::Crashed).requeue_after(50),
        ),
        case(
            "on a laptop there is no node to wait for",
            exhausted(10).on_laptop(),
            expect_status(Summary::Held, Reason::RecoveryLoop),
        ),
        case(
            "and the run is held after it",
            exhausted(60),
            expect_status(Summary::Held, Reason::RecoveryLoop),
        ),
        case(
            "no run fails before the verdict",
            exhausted(10).recovery(fail.clone()),
            expect_status(Summary::BackingOff, Reason::Crashed).requeue_after(50),
        ),
        case(
            "it fails after the verdict",
            exhausted(60).recovery(fail),
            expect_finish(4, Cause::Finished, dalsegno_model::RunOutcome::Failed, Reason::RecoveryLoop),
        ),
    ]);
}

#[test]
fn the_decision_wakes_for_the_last_look_at_the_node() {
    let wakes = |given: Given| given.decide().requeue.map(|after| after.as_secs());
    assert_eq!(wakes(killed(137, 12).attached(4).pod(pod(4).unwatched())), Some(10), "before that time");
    assert_eq!(wakes(killed(137, 12).attached(4).pod(pod(4))), Some(48));
    assert_eq!(wakes(killed(137, 61).attached(4).pod(pod(4))), None);
}
