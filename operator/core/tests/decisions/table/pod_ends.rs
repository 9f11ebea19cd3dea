//! Ends of pods as they look on a real cluster: the cause and the class of each.

use dalsegno_crds::Cause;
use dalsegno_model::Class::{Crash, CrashWithoutProgress, Disruption, Neutral};

use crate::fixtures::{Case, Given, PodFixture, case, check_all, expect_end, pod, run};

/// A worker with heartbeats on a Ready node, after turn 7.
fn with(seen: PodFixture) -> Given {
    run().attached(3).head(7).heartbeat(2).pod(seen)
}

pub fn cases() -> Vec<Case> {
    [crashes(), disruptions(), whole_pods(), unobserved()].into_iter().flatten().collect()
}

#[test]
fn each_end_has_a_cause_and_is_charged_only_to_the_agent() {
    check_all(cases());
}

fn crashes() -> Vec<Case> {
    vec![
        case(
            "an exit with an error is a crash, and the message has the last lines of the log",
            with(pod(3).terminated(1).message("Traceback\nValueError: 7")),
            expect_end(3, Cause::ExitedWithError, Crash)
                .message_contains("exit code 1: Traceback\nValueError: 7"),
        ),
        case(
            "an exit with 137 without another reason is a crash",
            with(pod(3).terminated(137)),
            expect_end(3, Cause::ExitedWithError, Crash).message_contains("exit code 137"),
        ),
        case(
            "an exit with an error before the attach is a crash",
            run().created(3).pod(pod(3).terminated(2)),
            expect_end(3, Cause::ExitedWithError, Crash).message_contains("exit code 2 before it attached"),
        ),
        case(
            "an exit with 0 without a finish is a crash",
            with(pod(3).terminated(0)),
            expect_end(3, Cause::ExitedWithoutFinish, Crash).message_contains("docs/reference/contract.md"),
        ),
        case(
            "a worker that exits with 0 and never attached does not implement the contract",
            run().created(3).pod(pod(3).terminated(0).phase("Succeeded")),
            expect_end(3, Cause::NeverAttached, Crash).message_contains("docs/reference/contract.md"),
        ),
        case(
            "an OOM kill is a crash",
            with(pod(3).oom()),
            expect_end(3, Cause::OOMKilled, Crash).message_contains("exceeded its memory limit"),
        ),
        case(
            "the end of a worker beside an injected sidecar is seen",
            with(pod(3).terminated(1).with_injected_sidecar("solo")),
            expect_end(3, Cause::ExitedWithError, Crash).message_contains("exit code 1"),
        ),
        case(
            "without a memory limit the node was short of memory, which is charged only without progress",
            with(pod(3).oom().no_memory_limit()),
            expect_end(3, Cause::NodePressure, CrashWithoutProgress).message_contains("has no memory limit"),
        ),
        case(
            "a memory limit of the whole pod is a limit of the worker",
            with(pod(3).oom().no_memory_limit().memory_limit_of_pod()),
            expect_end(3, Cause::OOMKilled, Crash),
        ),
        case(
            "a second process in the same pod is a crash",
            with(pod(3)).second_process(),
            expect_end(3, Cause::ProcessRestarted, Crash),
        ),
        case(
            "the message of a worker that exceeded its pod's deadline says so",
            with(pod(3).terminated(137).kubelet("DeadlineExceeded", "Pod was active too long")),
            expect_end(3, Cause::ExitedWithError, Crash)
                .message_contains("exit code 137: DeadlineExceeded: Pod was active too long"),
        ),
        case(
            "an init container that the node lost is no crash",
            run().created(3).pod(pod(3).init_lost("fetch")),
            expect_end(3, Cause::NodeLost, Disruption),
        ),
        case(
            "a failed init container is a crash",
            run().created(3).pod(pod(3).init_failed("fetch", 6)),
            expect_end(3, Cause::ExitedWithError, Crash)
                .message_contains("exit code 6 of the container fetch"),
        ),
        case(
            "a refused version ends the attempt without a charge",
            run().created(3).refused_version().pod(pod(3)),
            expect_end(3, Cause::VersionIncompatible, Neutral).message_contains("the versions differ"),
        ),
    ]
}

fn disruptions() -> Vec<Case> {
    let disrupted = |reason: &str| with(pod(3).terminated(143).disrupted(reason, 7).deleted(7));
    vec![
        case(
            "an eviction is a disruption",
            disrupted("EvictionByEvictionAPI"),
            expect_end(3, Cause::Evicted, Disruption),
        ),
        case(
            "a preemption is a disruption",
            disrupted("PreemptionByScheduler"),
            expect_end(3, Cause::Preempted, Disruption),
        ),
        case(
            "an eviction by a taint is a disruption",
            disrupted("DeletionByTaintManager"),
            expect_end(3, Cause::TaintEvicted, Disruption),
        ),
        case(
            "a worker whose Node object is gone has lost its node",
            disrupted("DeletionByPodGC"),
            expect_end(3, Cause::NodeLost, Disruption),
        ),
        case(
            "a disruption for an unknown reason is a disruption",
            disrupted("DeletionByTheFuture"),
            expect_end(3, Cause::Deleted, Disruption),
        ),
        case(
            "a deletion of the pod is a disruption",
            with(pod(3).terminated(143).deleted(7)),
            expect_end(3, Cause::Deleted, Disruption),
        ),
        case(
            "a graceful node shutdown is a disruption",
            with(
                pod(3)
                    .terminated(143)
                    .disrupted("TerminationByKubelet", 7)
                    .kubelet("Terminated", "node shutdown"),
            ),
            expect_end(3, Cause::NodeShutdown, Disruption),
        ),
        case(
            "a node that shuts down and has a taint is a disruption, whichever reason was written last",
            with(
                pod(3)
                    .terminated(143)
                    .disrupted("DeletionByTaintManager", 7)
                    .kubelet("Terminated", "shutdown"),
            ),
            expect_end(3, Cause::TaintEvicted, Disruption),
        ),
        case(
            "a preemption by a critical pod is a disruption",
            with(
                pod(3).terminated(137).disrupted("TerminationByKubelet", 7).kubelet("Preempting", "critical"),
            ),
            expect_end(3, Cause::Preempted, Disruption),
        ),
        case(
            "the kubelet may stamp the condition of its preemption after the end",
            with(
                pod(3).terminated(137).disrupted("TerminationByKubelet", 2).kubelet("Preempting", "critical"),
            ),
            expect_end(3, Cause::Preempted, Disruption),
        ),
        case(
            "a preemption by a critical pod may come without a condition",
            with(pod(3).terminated(137).kubelet("Preempting", "Preempted in order to admit critical pod")),
            expect_end(3, Cause::Preempted, Disruption).message_contains("admit critical pod"),
        ),
        case(
            "a worker that a signal ended on a node that is not Ready has lost its node",
            with(pod(3).terminated(143)).node_not_ready(2),
            expect_end(3, Cause::NodeLost, Disruption).message_contains("lost or restarted"),
        ),
        case(
            "a worker that a signal ended before its node became Ready again has lost its node",
            with(pod(3).terminated(137).finished(50)).node_ready(49),
            expect_end(3, Cause::NodeLost, Disruption).message_contains("exit code 137"),
        ),
        case(
            "a worker that a signal ended on a node that was Ready all the time has crashed",
            with(pod(3).terminated(137).finished(50)).node_ready(51),
            expect_end(3, Cause::ExitedWithError, Crash),
        ),
        case(
            "an exit with an error on a node that is not Ready is a crash",
            with(pod(3).terminated(1)).node_not_ready(2),
            expect_end(3, Cause::ExitedWithError, Crash),
        ),
        case(
            "a worker that SIGTERM ended without a disruption is charged only if it made no progress",
            with(pod(3).terminated(143)),
            expect_end(3, Cause::ExitedWithError, CrashWithoutProgress),
        ),
        case(
            "a deletion that began 10 s after the end by another clock is still the cause",
            with(pod(3).terminated(1).finished(20).deleted(10)),
            expect_end(3, Cause::Deleted, Disruption),
        ),
        case(
            "a deletion that began 11 s after the end is not the cause",
            with(pod(3).terminated(1).finished(20).deleted(9)),
            expect_end(3, Cause::ExitedWithError, Crash),
        ),
        case(
            "a worker whose pod is being deleted may run until it ends",
            with(pod(3).disrupted("EvictionByEvictionAPI", 2).deleted(2)),
            crate::fixtures::expect_status(
                dalsegno_crds::Summary::Running,
                dalsegno_crds::Reason::UnderControl,
            ),
        ),
    ]
}

fn whole_pods() -> Vec<Case> {
    let low = "The node was low on resource: ephemeral-storage. Container agent was using 200Mi";
    let limit = "Pod ephemeral local storage usage exceeds the total limit of containers 64Mi.";
    vec![
        case(
            "a node pressure eviction is charged only without progress",
            with(pod(3).terminated(137).disrupted("TerminationByKubelet", 6).kubelet("Evicted", low)),
            expect_end(3, Cause::NodePressure, CrashWithoutProgress),
        ),
        case(
            "a node pressure eviction may come without a condition",
            with(pod(3).terminated(137).kubelet("Evicted", low)),
            expect_end(3, Cause::NodePressure, CrashWithoutProgress).message_contains(low),
        ),
        case(
            "exceeding the storage limit is a crash",
            with(pod(3).terminated(137).kubelet("Evicted", limit)),
            expect_end(3, Cause::StorageLimitExceeded, Crash).message_contains(limit),
        ),
        case(
            "a pod that a restarted kubelet rejects is a disruption",
            with(
                pod(3)
                    .nothing_ran()
                    .kubelet("Evicted", "Pod was rejected: The node had condition: [DiskPressure]"),
            ),
            expect_end(3, Cause::PodFailed, Disruption).message_contains("[DiskPressure]"),
        ),
        case(
            "a pod that no longer fits its node is a disruption",
            run()
                .created(3)
                .pod(pod(3).nothing_ran().kubelet("OutOfcpu", "Node didn't have enough resource: cpu")),
            expect_end(3, Cause::PodFailed, Disruption)
                .message_contains("OutOfcpu: Node didn't have enough resource"),
        ),
        case(
            "a pod that failed without a reason is a disruption",
            run().created(3).pod(pod(3).nothing_ran().phase("Failed")),
            expect_end(3, Cause::PodFailed, Disruption),
        ),
        case(
            "a node shutdown without a condition is recognized by the pod's reason",
            with(pod(3).terminated(137).kubelet("NodeShutdown", "Pod was terminated")),
            expect_end(3, Cause::NodeShutdown, Disruption),
        ),
        case(
            "a worker whose node restarted has lost its node",
            with(pod(3).lost_by_kubelet().phase("Failed")),
            expect_end(3, Cause::NodeLost, Disruption).message_contains("its exit code is not known"),
        ),
    ]
}

fn unobserved() -> Vec<Case> {
    vec![
        case(
            "a pod that is gone without an observed end is a disruption",
            with(pod(3).gone()),
            expect_end(3, Cause::PodVanished, Disruption),
        ),
        case(
            "a pod that was never seen and does not exist is a disruption",
            run().attached(3).head(7),
            expect_end(3, Cause::PodVanished, Disruption),
        ),
        case(
            "the last seen state shows that a pod was force deleted",
            with(pod(3).deleted(5).gone()),
            expect_end(3, Cause::Deleted, Disruption),
        ),
        case(
            "a pod that was drained while the operator was down is not charged",
            run().attached(3).head(7).heartbeat(600),
            expect_end(3, Cause::PodVanished, Disruption),
        ),
        case(
            "a pod that is gone after its worker crashed is a crash",
            with(pod(3).terminated(1).gone()),
            expect_end(3, Cause::ExitedWithError, Crash),
        ),
        case(
            "an ended attempt without a successor gets one, and keeps its recorded end",
            run().attached(3).ended(),
            expect_end(3, Cause::Evicted, Disruption).message_contains("moved on"),
        ),
    ]
}
