//! A pod whose worker has not attached: what it waits for.

use dalsegno_crds::ConditionType::{Ready, Reconciling, WorkerReady};
use dalsegno_crds::{Cause, Reason, Summary};

use crate::words::{Given, acts, case, crashed, pod, rests, run, try_all};

#[test]
fn a_worker_that_has_not_attached_says_what_it_waits_for() {
    try_all(vec![
        case(
            "a pod that was given a node is recorded with it",
            run().created(1).no_node_yet().pod(pod(1)),
            acts("record node n1 of attempt 1"),
        ),
        case(
            "a pod without a node is pending, and says why",
            run()
                .created(1)
                .no_node_yet()
                .pod(pod(1).unscheduled("0/2 nodes are available: 2 Insufficient cpu")),
            rests(Summary::Pending, Reason::Unschedulable)
                .says("2 Insufficient cpu")
                .is(WorkerReady, "False", Reason::Unschedulable)
                .is(Reconciling, "True", Reason::Unschedulable),
        ),
        case(
            "a pod on its node is starting",
            run().created(1).pod(pod(1)),
            rests(Summary::Starting, Reason::Starting)
                .is(Ready, "False", Reason::Starting)
                .is(Reconciling, "True", Reason::Starting)
                .tells(&["WorkerCreated"]),
        ),
        case(
            "a container that is being created is no problem",
            run().created(1).pod(pod(1).waiting("ContainerCreating", "")),
            rests(Summary::Starting, Reason::Starting).says("the worker has not attached yet"),
        ),
        case(
            "an image that cannot be pulled",
            run().created(1).pod(pod(1).waiting("ErrImagePull", "not found")),
            rests(Summary::Starting, Reason::ImagePullFailed).says("ErrImagePull: not found").is(
                Ready,
                "False",
                Reason::ImagePullFailed,
            ),
        ),
        case(
            "another thing that it waits for",
            run().created(1).pod(pod(1).waiting("CreateContainerConfigError", "configmap \"c\" not found")),
            rests(Summary::Starting, Reason::Starting)
                .says("CreateContainerConfigError: configmap \"c\" not found"),
        ),
        case(
            "after a loss the columns say what it was",
            run().created(2).pod(pod(2)).after(crashed(1, Cause::OOMKilled)),
            rests(Summary::Starting, Reason::OutOfMemory)
                .is(Ready, "False", Reason::OutOfMemory)
                .says(
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
            rests(Summary::Starting, Reason::ImagePullFailed),
        ),
    ]);
}

#[test]
fn the_kubelets_several_words_for_one_failed_pull_make_one_status() {
    let first = run().created(1).pod(pod(1).waiting("ErrImagePull", "not found")).written();
    let mut second = first.clone();
    second.seen.pods = vec![pod(1).waiting("ImagePullBackOff", "Back-off pulling image").0];
    assert_eq!(second.decide().status, first.decide().status);
}

/// A run whose status told that it backs off; since then it has got a pod, and that a node some seconds ago.
fn made_after_backing_off(seconds_ago: i64) -> Given {
    let backing_off = run().reserved(2).crashes(1, 1).after(crashed(1, Cause::OOMKilled).ago(0)).written();
    backing_off.created(2).scheduled(seconds_ago)
}

#[test]
fn the_quick_steps_of_a_start_make_one_status() {
    try_all(vec![
        case(
            "the first status is written at once",
            run().created(1).scheduled(0).pod(pod(1)),
            rests(Summary::Starting, Reason::Starting).tells(&["WorkerCreated"]),
        ),
        case(
            "a new attempt is told at once",
            Given { seen: run().seen, ..run().created(1).pod(pod(1)).written() }
                .created(2)
                .scheduled(0)
                .pod(pod(2))
                .after(crashed(1, Cause::OOMKilled)),
            rests(Summary::Starting, Reason::OutOfMemory).tells(&["OOMKilled", "WorkerCreated"]),
        ),
        case(
            "an attempt that was told of keeps its status while its start goes on",
            made_after_backing_off(1).pod(pod(2)),
            rests(Summary::BackingOff, Reason::OutOfMemory).tells(&[]).again(1),
        ),
        case(
            "until it rests",
            made_after_backing_off(2).pod(pod(2)),
            rests(Summary::Starting, Reason::OutOfMemory).tells(&["WorkerCreated"]),
        ),
        case(
            "or its worker attaches",
            made_after_backing_off(1).attached(2).scheduled(1).pod(pod(2)),
            rests(Summary::Running, Reason::UnderControl).tells(&["WorkerCreated", "Attached"]),
        ),
        case(
            "what keeps it from starting is told at once",
            made_after_backing_off(1).pod(pod(2).waiting("ErrImagePull", "not found")),
            rests(Summary::Starting, Reason::ImagePullFailed),
        ),
        case(
            "and so is it that a run is not held any more",
            run().no_definition().written().created(1).scheduled(0).pod(pod(1)),
            rests(Summary::Starting, Reason::Starting).tells(&["WorkerCreated"]),
        ),
    ]);
}
