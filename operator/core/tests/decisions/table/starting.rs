//! A pod whose worker has not attached: what it waits for.

use dalsegno_crds::ConditionType::{Ready, Reconciling, WorkerReady};
use dalsegno_crds::{Cause, Reason, Summary};

use crate::fixtures::{Given, case, check_all, crashed, expect_effect, expect_status, pod, run};

#[test]
fn a_worker_that_has_not_attached_says_what_it_waits_for() {
    check_all(vec![
        case(
            "a pod that was given a node is recorded with it",
            run().created(1).no_node_yet().pod(pod(1)),
            expect_effect("record node n1 of attempt 1"),
        ),
        case(
            "a pod without a node is pending, and says why",
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
                .events(&["WorkerCreated"]),
        ),
        case(
            "a container that is being created is no problem",
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
            "another thing that it waits for",
            run().created(1).pod(pod(1).waiting("CreateContainerConfigError", "configmap \"c\" not found")),
            expect_status(Summary::Starting, Reason::Starting)
                .message_contains("CreateContainerConfigError: configmap \"c\" not found"),
        ),
        case(
            "after a loss the columns say what it was",
            run().created(2).pod(pod(2)).after(crashed(1, Cause::OOMKilled)),
            expect_status(Summary::Starting, Reason::OutOfMemory)
                .condition(Ready, "False", Reason::OutOfMemory)
                .message_contains(
                    "Ready: attempt 1 ended after turn 0: OOMKilled: last words; attempt 2 is starting: the worker has \
                     not attached yet",
                ),
        ),
        case(
            "but a person's attention is led to what keeps it from starting",
            run()
                .created(2)
                .pod(pod(2).waiting("ErrImagePull", "not found"))
                .after(crashed(1, Cause::OOMKilled)),
            expect_status(Summary::Starting, Reason::ImagePullFailed),
        ),
    ]);
}

#[test]
fn the_kubelets_several_words_for_one_failed_pull_make_one_status() {
    let first = run().created(1).pod(pod(1).waiting("ErrImagePull", "not found")).status_written();
    let mut second = first.clone();
    second.seen.pods = vec![pod(1).waiting("ImagePullBackOff", "Back-off pulling image").0];
    assert_eq!(second.decide().status, first.decide().status);
}

/// A run whose status told that it backs off; since then it has got a pod, and that a node some seconds ago.
fn made_after_backing_off(seconds_ago: i64) -> Given {
    let backing_off =
        run().reserved(2).crashes(1, 1).after(crashed(1, Cause::OOMKilled).ago(0)).status_written();
    backing_off.created(2).scheduled(seconds_ago)
}

#[test]
fn the_quick_steps_of_a_start_make_one_status() {
    check_all(vec![
        case(
            "the first status is written at once",
            run().created(1).scheduled(0).pod(pod(1)),
            expect_status(Summary::Starting, Reason::Starting).events(&["WorkerCreated"]),
        ),
        case(
            "a new attempt is told at once",
            Given { seen: run().seen, ..run().created(1).pod(pod(1)).status_written() }
                .created(2)
                .scheduled(0)
                .pod(pod(2))
                .after(crashed(1, Cause::OOMKilled)),
            expect_status(Summary::Starting, Reason::OutOfMemory).events(&["OOMKilled", "WorkerCreated"]),
        ),
        case(
            "an attempt that was told of keeps its status while its start goes on",
            made_after_backing_off(1).pod(pod(2)),
            expect_status(Summary::BackingOff, Reason::OutOfMemory).events(&[]).requeue_after(1),
        ),
        case(
            "until it rests",
            made_after_backing_off(2).pod(pod(2)),
            expect_status(Summary::Starting, Reason::OutOfMemory).events(&["WorkerCreated"]),
        ),
        case(
            "or its worker attaches",
            made_after_backing_off(1).attached(2).scheduled(1).pod(pod(2)),
            expect_status(Summary::Running, Reason::UnderControl).events(&["WorkerCreated", "Attached"]),
        ),
        case(
            "what keeps it from starting is told at once",
            made_after_backing_off(1).pod(pod(2).waiting("ErrImagePull", "not found")),
            expect_status(Summary::Starting, Reason::ImagePullFailed),
        ),
        case(
            "and so is it that a run is not held any more",
            run().no_definition().status_written().created(1).scheduled(0).pod(pod(1)),
            expect_status(Summary::Starting, Reason::Starting).events(&["WorkerCreated"]),
        ),
    ]);
}
