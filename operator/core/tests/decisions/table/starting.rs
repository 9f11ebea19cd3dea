//! A pod whose worker has not attached yet, and what it waits for.

use dalsegno_crds::ConditionType::{Ready, Reconciling, WorkerReady};
use dalsegno_crds::{Cause, EventReason, Reason, Summary};

use crate::fixtures::{Given, case, check_all, crashed, expect_effect, expect_status, pod, run};

#[test]
fn the_status_of_a_starting_worker_shows_what_it_waits_for() {
    check_all(vec![
        case(
            "the node of a scheduled pod is recorded",
            run().created(1).no_node_yet().pod(pod(1)),
            expect_effect("record node n1 of attempt 1"),
        ),
        case(
            "a pod without a node is pending, and the message says why",
            run()
                .created(1)
                .no_node_yet()
                .pod(pod(1).unscheduled("0/2 nodes are available: 2 Insufficient cpu")),
            expect_status(Summary::Pending, Reason::Unschedulable)
                .message_contains("2 Insufficient cpu")
                .condition(WorkerReady, "False", Reason::Unschedulable)
                .condition(Reconciling, "True", Reason::Unschedulable),
        ),
        case(
            "a pod on its node is starting",
            run().created(1).pod(pod(1)),
            expect_status(Summary::Starting, Reason::Starting)
                .condition(Ready, "False", Reason::Starting)
                .condition(Reconciling, "True", Reason::Starting)
                .events(&[&EventReason::WorkerCreated]),
        ),
        case(
            "ContainerCreating is a normal step",
            run().created(1).pod(pod(1).waiting("ContainerCreating", "")),
            expect_status(Summary::Starting, Reason::Starting).message_contains("the worker has not attached yet"),
        ),
        case(
            "an image that cannot be pulled",
            run().created(1).pod(pod(1).waiting("ErrImagePull", "not found")),
            expect_status(Summary::Starting, Reason::ImagePullFailed).message_contains("ErrImagePull: not found").condition(
                Ready,
                "False",
                Reason::ImagePullFailed,
            ),
        ),
        case(
            "a missing ConfigMap",
            run().created(1).pod(pod(1).waiting("CreateContainerConfigError", "configmap \"c\" not found")),
            expect_status(Summary::Starting, Reason::Starting)
                .message_contains("CreateContainerConfigError: configmap \"c\" not found"),
        ),
        case(
            "after the end of an attempt the reason names its cause",
            run().created(2).pod(pod(2)).after(crashed(1, Cause::OOMKilled)),
            expect_status(Summary::Starting, Reason::OutOfMemory)
                .condition(Ready, "False", Reason::OutOfMemory)
                .message_contains(
                    "Ready: attempt 1 ended after turn 0: OOMKilled: last words; attempt 2 is starting: the worker has \
                     not attached yet",
                ),
        ),
        case(
            "a problem of the start is more important than the end of the last attempt",
            run()
                .created(2)
                .pod(pod(2).waiting("ErrImagePull", "not found"))
                .after(crashed(1, Cause::OOMKilled)),
            expect_status(Summary::Starting, Reason::ImagePullFailed),
        ),
    ]);
}

#[test]
fn alternating_messages_of_one_failed_pull_do_not_change_the_status() {
    let first = run().created(1).pod(pod(1).waiting("ErrImagePull", "not found")).status_written();
    let mut second = first.clone();
    second.seen.pods = vec![pod(1).waiting("ImagePullBackOff", "Back-off pulling image").0];
    assert_eq!(second.decide().status, first.decide().status);
}

#[test]
fn repeated_tries_for_the_same_reason_do_not_change_the_status() {
    let first =
        run().created(1).no_node_yet().pod(pod(1).unscheduled("0/2 nodes are available")).status_written();
    let mut second = first.clone();
    second.seen.pods = vec![pod(1).unscheduled("0/3 nodes are available: 3 Insufficient cpu").0];
    assert_eq!(second.decide().status, first.decide().status, "the scheduler counts other nodes");

    for (code, messages) in [
        (403, ["exceeded quota: runs, used: pods=9", "exceeded quota: runs, used: pods=10"]),
        (500, ["the webhook did not answer: EOF", "the webhook did not answer: connection refused"]),
    ] {
        let [first, second] = messages;
        let written = run().reserved(1).pod_rejected(code, first, 1, 0).status_written();
        let again = written.clone().pod_rejected(code, second, 2, 0);
        assert_eq!(again.decide().status, written.decide().status, "{second}");
    }
}

/// A run whose status shows that it backs off. Since then its pod was created, and scheduled this many seconds ago.
fn started_after_backoff(seconds_ago: i64) -> Given {
    let backing_off =
        run().reserved(2).crashes(1, 1).after(crashed(1, Cause::OOMKilled).ago(0)).status_written();
    backing_off.created(2).scheduled(seconds_ago)
}

#[test]
fn the_steps_of_a_fast_start_need_one_status_write() {
    check_all(vec![
        case(
            "the first status is written at once",
            run().created(1).scheduled(0).pod(pod(1)),
            expect_status(Summary::Starting, Reason::Starting).events(&[&EventReason::WorkerCreated]),
        ),
        case(
            "a new attempt is shown at once",
            Given { seen: run().seen, ..run().created(1).pod(pod(1)).status_written() }
                .created(2)
                .scheduled(0)
                .pod(pod(2))
                .after(crashed(1, Cause::OOMKilled)),
            expect_status(Summary::Starting, Reason::OutOfMemory)
                .events(&[&Cause::OOMKilled, &EventReason::WorkerCreated]),
        ),
        case(
            "the status of a known attempt is kept while its start is in progress",
            started_after_backoff(1).pod(pod(2)),
            expect_status(Summary::BackingOff, Reason::OutOfMemory).events(&[]).requeue_after(1),
        ),
        case(
            "after 2 s without a step the status is written",
            started_after_backoff(2).pod(pod(2)),
            expect_status(Summary::Starting, Reason::OutOfMemory).events(&[&EventReason::WorkerCreated]),
        ),
        case(
            "the attach is shown at once",
            started_after_backoff(1).attached(2).scheduled(1).pod(pod(2)),
            expect_status(Summary::Running, Reason::UnderControl)
                .events(&[&EventReason::WorkerCreated, &Reason::Attached]),
        ),
        case(
            "a problem of the start is shown at once",
            started_after_backoff(1).pod(pod(2).waiting("ErrImagePull", "not found")),
            expect_status(Summary::Starting, Reason::ImagePullFailed),
        ),
        case(
            "the end of a hold is shown at once",
            run().no_definition().status_written().created(1).scheduled(0).pod(pod(1)),
            expect_status(Summary::Starting, Reason::Starting).events(&[&EventReason::WorkerCreated]),
        ),
    ]);
}
