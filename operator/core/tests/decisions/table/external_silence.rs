//! Agents that keep their own checkpoints: nobody says whether a worker has ended, or a pod belongs to no attempt.

use dalsegno_core::Rule;
use dalsegno_crds::ConditionType::{Suspended, WorkerReady};
use dalsegno_crds::{Cause, Reason, Summary};

use super::external::{held, running, with, working};
use crate::fixtures::{Case, case, check_all, disrupted, expect_effect, expect_status, pod, run};

#[test]
fn silence_ends_nothing_and_a_person_is_told() {
    check_all(silences());
}

#[test]
fn a_second_worker_never_starts_beside_a_pod_that_belongs_to_no_attempt() {
    check_all(pods_of_no_attempt());
}

fn silences() -> Vec<Case> {
    let told = || {
        held(Reason::EndNotConfirmed)
            .condition(WorkerReady, "Unknown", Reason::EndNotConfirmed)
            .message_contains("the node n1 has not been Ready since 2026-11-20T11:50:00Z")
            .message_contains("delete the Node")
    };
    vec![
        case(
            "a node that has just fallen silent ends nothing, and is looked at again",
            working().node_not_ready(20),
            running().requeue_after(40),
        ),
        case(
            "a node that stays silent ends nothing either: the status reports it",
            working().node_not_ready(600),
            told(),
        ),
        case(
            "Kubernetes deletes the pods of a silent node, and that confirms nothing",
            with(pod(3).disrupted("DeletionByTaintManager", 300).deleted(300)).node_not_ready(600),
            told(),
        ),
        case("also if most of the zone is silent", working().node_not_ready(600).zone_lost(), told()),
        case(
            "a suspend waits for a silent node too",
            working().suspended().suspend(300, None).node_not_ready(600),
            told()
                .condition(Suspended, "False", Reason::Held)
                .deletes_pod("triage-3")
                .follows(Rule::WorkerStopped),
        ),
        case(
            "a pod that does not end, on a Ready node",
            with(pod(3).deleted(300)),
            held(Reason::EndNotConfirmed)
                .message_contains("the pod triage-3 should have ended by 2026-11-20T11:55:30Z"),
        ),
        case(
            "a pod that does not end, and then its node falls silent too",
            with(pod(3).deleted(300)).node_not_ready(5),
            held(Reason::EndNotConfirmed).message_contains("the pod triage-3 should have ended by"),
        ),
        case("a pod that takes its time to end", with(pod(3).deleted(20)), running().requeue_after(70)),
        case("a node that is Ready again", working().node_ready(5), running()),
        case(
            "a pod that waits on a silent node is not replaced",
            run().created(3).pod(pod(3).waiting("ContainerCreating", "")).external().node_not_ready(600),
            told(),
        ),
    ]
}

/// The pod `triage-3` belongs to no attempt: it was created after the operator had given up waiting, and attempt 3 ended
/// without it.
fn pods_of_no_attempt() -> Vec<Case> {
    let reserved = |fixture| run().reserved(4).after(disrupted(3, Cause::Evicted)).pod(fixture).external();
    let waiting = || {
        expect_status(Summary::Pending, Reason::Disrupted)
            .message_contains("the pod triage-3 must end first: it belongs to no attempt of the run")
    };
    vec![
        case(
            "no pod starts while another one runs, which is deleted",
            reserved(pod(3)),
            waiting().deletes_pod("triage-3"),
        ),
        case(
            "nor while it takes its time to end; it keeps its finalizer",
            reserved(pod(3).deleted(20)),
            waiting().requeue_after(70),
        ),
        case(
            "the status reports one that does not end",
            reserved(pod(3).deleted(300)),
            held(Reason::EndNotConfirmed).message_contains("the pod triage-3 should have ended by"),
        ),
        case(
            "a cancel waits for it too",
            reserved(pod(3)).cancelled().cancel(5, None),
            expect_status(Summary::Pending, Reason::Cancelling).deletes_pod("triage-3"),
        ),
        case(
            "once it has ended, the next pod is created",
            reserved(pod(3).terminated(143).deleted(20)),
            expect_effect("create triage-4"),
        ),
        case(
            "beside a worker that runs it is deleted, and let go once it has ended",
            run().attached(4).after(disrupted(3, Cause::Evicted)).pod(pod(3)).pod(pod(4)).external(),
            running().deletes_pod("triage-3"),
        ),
        case(
            "a pod whose end is recorded is not waited for",
            {
                let mut ended = disrupted(3, Cause::PodVanished);
                ended.0.pod_uid = Some("pod-3".to_owned());
                run().reserved(4).after(ended).pod(pod(3).deleted(20)).external()
            },
            expect_effect("create triage-4"),
        ),
    ]
}
