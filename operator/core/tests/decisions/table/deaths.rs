//! Deaths as a real cluster shows them: each by its cause, and whose fault it is.

use dalsegno_crds::Cause;
use dalsegno_model::Class::{Crash, CrashWithoutProgress, Disruption, Neutral};

use crate::words::{Case, Given, Seen, acts, case, ends, pod, run, try_all};

/// A worker that heartbeats, on a Ready node, after turn 7.
fn with(seen: Seen) -> Given {
    run().attached(3).head(7).heartbeat(2).pod(seen)
}

pub fn cases() -> Vec<Case> {
    [crashes(), disruptions(), whole_pods(), lost_sight_of()].into_iter().flatten().collect()
}

#[test]
fn each_death_is_named_and_charged_to_whoever_caused_it() {
    try_all(cases());
}

fn crashes() -> Vec<Case> {
    vec![
        case(
            "a worker that exits with an error crashed, and the last lines of its log are kept",
            with(pod(3).terminated(1).said("Traceback\nValueError: 7")),
            ends(3, Cause::ExitedWithError, Crash).says("exit code 1: Traceback\nValueError: 7"),
        ),
        case(
            "a worker killed by nobody we know of crashed",
            with(pod(3).terminated(137)),
            ends(3, Cause::ExitedWithError, Crash).says("exit code 137"),
        ),
        case(
            "a worker that exits with an error before it attached crashed",
            run().created(3).pod(pod(3).terminated(2)),
            ends(3, Cause::ExitedWithError, Crash).says("exit code 2 before it attached"),
        ),
        case(
            "a worker that exits with 0 and has not finished crashed",
            with(pod(3).terminated(0)),
            ends(3, Cause::ExitedWithoutFinish, Crash).says("docs/reference/contract.md"),
        ),
        case(
            "a worker that exits with 0 and never attached does not speak the contract",
            run().created(3).pod(pod(3).terminated(0).phase("Succeeded")),
            ends(3, Cause::NeverAttached, Crash).says("docs/reference/contract.md"),
        ),
        case(
            "a worker that the kernel killed for its memory crashed",
            with(pod(3).oom()),
            ends(3, Cause::OOMKilled, Crash).says("more memory than its limit"),
        ),
        case(
            "a worker whose process was replaced in its pod crashed",
            with(pod(3)).spent(),
            ends(3, Cause::ProcessRestarted, Crash),
        ),
        case(
            "a worker killed by its pod's own deadline says so",
            with(pod(3).terminated(137).kubelet("DeadlineExceeded", "Pod was active too long")),
            ends(3, Cause::ExitedWithError, Crash)
                .says("exit code 137: DeadlineExceeded: Pod was active too long"),
        ),
        case(
            "a container that fails before the worker is the template's fault",
            run().created(3).pod(pod(3).init_failed("fetch", 6)),
            ends(3, Cause::ExitedWithError, Crash).says("exit code 6 of the container fetch"),
        ),
        case(
            "a worker of another version than the checkpoint's may not go on, and nobody is charged",
            run().created(3).refused_version().pod(pod(3)),
            ends(3, Cause::VersionIncompatible, Neutral).says("the versions differ"),
        ),
    ]
}

fn disruptions() -> Vec<Case> {
    let disrupted = |reason: &str| with(pod(3).terminated(143).disrupted(reason, 7).deleted(7));
    vec![
        case(
            "an evicted worker was disrupted",
            disrupted("EvictionByEvictionAPI"),
            ends(3, Cause::Evicted, Disruption),
        ),
        case(
            "a worker that made room for a more important one was disrupted",
            disrupted("PreemptionByScheduler"),
            ends(3, Cause::Preempted, Disruption),
        ),
        case(
            "a worker that a taint drove away was disrupted",
            disrupted("DeletionByTaintManager"),
            ends(3, Cause::TaintEvicted, Disruption),
        ),
        case(
            "a worker whose node object is gone lost its node",
            disrupted("DeletionByPodGC"),
            ends(3, Cause::NodeLost, Disruption),
        ),
        case(
            "a worker disrupted for a reason that nobody knows yet was disrupted",
            disrupted("DeletionByTheFuture"),
            ends(3, Cause::Deleted, Disruption),
        ),
        case(
            "a deleted pod's worker was disrupted",
            with(pod(3).terminated(143).deleted(7)),
            ends(3, Cause::Deleted, Disruption),
        ),
        case(
            "a worker whose node shuts down in order was disrupted",
            with(
                pod(3)
                    .terminated(143)
                    .disrupted("TerminationByKubelet", 7)
                    .kubelet("Terminated", "node shutdown"),
            ),
            ends(3, Cause::NodeShutdown, Disruption),
        ),
        case(
            "a worker whose node shuts down and is tainted was disrupted, whoever wrote last",
            with(
                pod(3)
                    .terminated(143)
                    .disrupted("DeletionByTaintManager", 7)
                    .kubelet("Terminated", "shutdown"),
            ),
            ends(3, Cause::TaintEvicted, Disruption),
        ),
        case(
            "a worker that made room for a pod its node cannot do without was disrupted",
            with(
                pod(3).terminated(137).disrupted("TerminationByKubelet", 7).kubelet("Preempting", "critical"),
            ),
            ends(3, Cause::Preempted, Disruption),
        ),
        case(
            "a pod that is being deleted and whose worker still runs is left to end",
            with(pod(3).disrupted("EvictionByEvictionAPI", 2).deleted(2)),
            crate::words::rests(dalsegno_crds::Summary::Running, dalsegno_crds::Reason::UnderControl),
        ),
    ]
}

fn whole_pods() -> Vec<Case> {
    let low = "The node was low on resource: ephemeral-storage. Container agent was using 200Mi";
    let limit = "Pod ephemeral local storage usage exceeds the total limit of containers 64Mi.";
    vec![
        case(
            "the kubelet's own pressure is charged only to a worker that gained nothing",
            with(pod(3).terminated(137).disrupted("TerminationByKubelet", 6).kubelet("Evicted", low)),
            ends(3, Cause::NodePressure, CrashWithoutProgress),
        ),
        case(
            "pressure is pressure, though no condition says so",
            with(pod(3).terminated(137).kubelet("Evicted", low)),
            ends(3, Cause::NodePressure, CrashWithoutProgress).says(low),
        ),
        case(
            "a worker that used more storage than its limit crashed",
            with(pod(3).terminated(137).kubelet("Evicted", limit)),
            ends(3, Cause::StorageLimitExceeded, Crash).says(limit),
        ),
        case(
            "a pod that a kubelet rejected when it came back was disrupted",
            with(
                pod(3)
                    .nothing_ran()
                    .kubelet("Evicted", "Pod was rejected: The node had condition: [DiskPressure]"),
            ),
            ends(3, Cause::PodFailed, Disruption).says("[DiskPressure]"),
        ),
        case(
            "a pod that fits its node no more was disrupted",
            run()
                .created(3)
                .pod(pod(3).nothing_ran().kubelet("OutOfcpu", "Node didn't have enough resource: cpu")),
            ends(3, Cause::PodFailed, Disruption).says("OutOfcpu: Node didn't have enough resource"),
        ),
        case(
            "a pod that failed without a word was disrupted",
            run().created(3).pod(pod(3).nothing_ran().phase("Failed")),
            ends(3, Cause::PodFailed, Disruption),
        ),
        case(
            "a node that shut down without a condition is known by the pod's reason",
            with(pod(3).terminated(137).kubelet("NodeShutdown", "Pod was terminated")),
            ends(3, Cause::NodeShutdown, Disruption),
        ),
        case(
            "a worker whose node was restarted under it lost its node",
            with(pod(3).lost_by_kubelet().phase("Failed")),
            ends(3, Cause::NodeLost, Disruption).says("nobody saw how it ended"),
        ),
    ]
}

fn lost_sight_of() -> Vec<Case> {
    vec![
        case(
            "a pod that is gone, and nobody saw its end, was disrupted",
            with(pod(3).gone()),
            ends(3, Cause::PodVanished, Disruption),
        ),
        case(
            "a pod that nobody ever saw and that is not there was disrupted",
            run().attached(3).head(7),
            ends(3, Cause::PodVanished, Disruption),
        ),
        case(
            "a pod that was deleted by force is known by its last words",
            with(pod(3).deleted(5).gone()),
            ends(3, Cause::Deleted, Disruption),
        ),
        case(
            "a pod that was drained while nobody looked is not charged",
            run().attached(3).head(7).heartbeat(600),
            ends(3, Cause::PodVanished, Disruption),
        ),
        case(
            "a pod that is gone after its worker had crashed had crashed",
            with(pod(3).terminated(1).gone()),
            ends(3, Cause::ExitedWithError, Crash),
        ),
        case(
            "an attempt that is ended and has no successor gets one, and is not ended in another way",
            run().attached(3).ended(),
            acts("end 3: Evicted, Disruption, then reserve").says("moved on"),
        ),
    ]
}
