//! The end of an attempt, as its pod's status shows it.

use dalsegno_crds::Cause;
use dalsegno_model::{Attempt, AttemptState, Class};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStateTerminated, Pod};

use crate::end::End;
use crate::observed::ObservedPod;
use crate::pod;
use crate::termination_message;
use crate::text::{reason_and_message, with_log};

/// How far the clocks of a node and of the control plane may differ, in seconds. The times are compared only if the
/// operator did not see the disruption begin. Then a crash just before a deletion counts as the deletion's.
pub(crate) const CLOCK_SKEW_SECONDS: i64 = 10;
/// Exit code of a process that SIGTERM ended.
pub(crate) const SIGTERM_EXIT: i32 = 143;
/// Exit code of a process that SIGKILL ended.
pub(crate) const SIGKILL_EXIT: i32 = 137;
/// Reason of the condition `DisruptionTarget` if the kubelet itself ends the pod.
const TERMINATION_BY_KUBELET: &str = "TerminationByKubelet";
/// Reason of a pod that the kubelet ends to make room for a critical pod.
const PREEMPTING: &str = "Preempting";

/// How the attempt ended, if its worker has ended.
///
/// The most certain evidence comes first: the worker's own message, an OOM kill for the worker's memory limit, a
/// disruption that began no later than the worker's end, the kubelet's reason for the whole pod, an OOM kill without a
/// limit, the exit code.
pub(crate) fn of(attempt: &Attempt, seen: &ObservedPod) -> Option<End> {
    if !pod::worker_has_ended(&seen.pod) {
        return None;
    }
    let attached = attempt.state == AttemptState::Attached;
    let terminated = pod::worker_terminated(&seen.pod);
    let end = terminated
        .filter(|_| attached)
        .and_then(|it| termination_message::parse(it.message.as_deref()?))
        .or_else(|| terminated.and_then(|it| limit_exceeded(&seen.pod, it)))
        .or_else(|| disruption(seen))
        .or_else(|| kubelet_reason(&seen.pod))
        .or_else(|| terminated.and_then(node_out_of_memory))
        .or_else(|| terminated.map(|it| exit(&seen.pod, it, attached)))
        .unwrap_or_else(|| worker_never_started(&seen.pod));
    let code = terminated.map(|it| it.exit_code).or(end.exit_code);
    Some(end.with_exit_code(code))
}

/// Whether a worker that has checkpoints of its own has done its task: it exited with 0, and there is no other evidence.
pub(crate) fn is_exit_with_0(end: &End) -> bool {
    matches!(end.cause, Cause::ExitedWithoutFinish | Cause::NeverAttached)
}

fn is_oom_kill(terminated: &ContainerStateTerminated) -> bool {
    terminated.reason.as_deref() == Some("OOMKilled")
}

/// The kernel killed a worker that has a memory limit.
fn limit_exceeded(pod: &Pod, terminated: &ContainerStateTerminated) -> Option<End> {
    let message = "the kernel killed the worker, because it exceeded its memory limit";
    (is_oom_kill(terminated) && pod::worker_has_memory_limit(pod))
        .then(|| End::new(Cause::OOMKilled, Class::Crash, message))
}

/// The kernel killed a worker that has no memory limit. The kubelet reports `OOMKilled` for every process that the kernel
/// kills in the container, also if the whole node ran out of memory.
fn node_out_of_memory(terminated: &ContainerStateTerminated) -> Option<End> {
    let message =
        "the kernel killed the worker, because the node ran out of memory; the worker has no memory limit";
    is_oom_kill(terminated).then(|| End::new(Cause::NodePressure, Class::CrashWithoutProgress, message))
}

/// A disruption that began no later than the worker's end. The end has the time of the node's clock, the disruption the
/// time of the control plane's clock. A worker that has not ended, or whose end has no time, counts as running until now.
pub(crate) fn disruption(seen: &ObservedPod) -> Option<End> {
    let pod = &seen.pod;
    let finished = pod::finished_at(pod);
    let in_time = |began: Option<Timestamp>| {
        let before =
            |(began, end): (Timestamp, Timestamp)| began.as_second() - end.as_second() <= CLOCK_SKEW_SECONDS;
        seen.disrupted_while_running || began.zip(finished).is_none_or(before)
    };
    if let Some(target) = pod::disruption_target(pod)
        && let reason = target.reason.as_deref().unwrap_or_default()
        // The kubelet stamps its own condition at any time until the pod's last status.
        && (reason == TERMINATION_BY_KUBELET || in_time(target.last_transition_time.as_ref().map(|it| it.0)))
    {
        let (cause, class) = disruption_cause(reason, pod::reason(pod));
        return Some(End::new(cause, class, target.message.as_deref().unwrap_or_default()));
    }
    in_time(Some(pod::deletion_began(pod)?))
        .then(|| End::new(Cause::Deleted, Class::Disruption, "somebody deleted the pod"))
}

/// The cause of a disruption, by the reason of the pod's condition `DisruptionTarget` and the reason of the pod itself.
fn disruption_cause(condition_reason: &str, pod_reason: &str) -> (Cause, Class) {
    match (condition_reason, pod_reason) {
        ("EvictionByEvictionAPI", _) => (Cause::Evicted, Class::Disruption),
        ("PreemptionByScheduler", _) => (Cause::Preempted, Class::Disruption),
        ("DeletionByTaintManager", _) => (Cause::TaintEvicted, Class::Disruption),
        ("DeletionByPodGC", _) => (Cause::NodeLost, Class::Disruption),
        (TERMINATION_BY_KUBELET, "Terminated") => (Cause::NodeShutdown, Class::Disruption),
        (TERMINATION_BY_KUBELET, PREEMPTING) => (Cause::Preempted, Class::Disruption),
        (TERMINATION_BY_KUBELET, _) => (Cause::NodePressure, Class::CrashWithoutProgress),
        _ => (Cause::Deleted, Class::Disruption),
    }
}

/// The kubelet's reason for the end of the whole pod, if it says more than an exit code.
fn kubelet_reason(pod: &Pod) -> Option<End> {
    let message = pod::message(pod);
    let (cause, class) = match pod::reason(pod) {
        "Evicted" if message.contains("was low on resource") => {
            (Cause::NodePressure, Class::CrashWithoutProgress)
        }
        "Evicted" if message.contains("was rejected") => (Cause::PodFailed, Class::Disruption),
        "Evicted" => (Cause::StorageLimitExceeded, Class::Crash),
        "Terminated" | "Shutdown" | "NodeShutdown" => (Cause::NodeShutdown, Class::Disruption),
        PREEMPTING => (Cause::Preempted, Class::Disruption),
        "NodeLost" => (Cause::NodeLost, Class::Disruption),
        _ => return None,
    };
    Some(End::new(cause, class, message))
}

/// The end by the worker's exit code. It is the least certain evidence of a container's end.
fn exit(pod: &Pod, terminated: &ContainerStateTerminated, attached: bool) -> End {
    if pod::is_unknown_end(terminated) {
        return lost_container();
    }
    let (cause, message) = match (terminated.exit_code, attached) {
        (0, true) => (
            Cause::ExitedWithoutFinish,
            "the worker exited with 0 and did not commit a finish; see docs/reference/contract.md".to_owned(),
        ),
        (0, false) => (
            Cause::NeverAttached,
            "the worker exited with 0 and never attached, so its image does not implement the contract; see \
             docs/reference/contract.md"
                .to_owned(),
        ),
        (code, _) => {
            let when = if attached { "" } else { " before it attached" };
            let pod_message = reason_and_message(pod::reason(pod), pod::message(pod));
            let description = reason_and_message(&format!("exit code {code}{when}"), &pod_message);
            let log = terminated.message.as_deref().unwrap_or_default();
            let started = attached || !pod::could_not_start(terminated);
            let cause = if started { Cause::ExitedWithError } else { Cause::StartFailed };
            (cause, with_log(&description, log))
        }
    };
    // Only the kubelet and the node send SIGTERM: for a failed probe, or for a shutdown that no condition shows yet.
    let class = match terminated.exit_code {
        SIGTERM_EXIT => Class::CrashWithoutProgress,
        _ => Class::Crash,
    };
    End::new(cause, class, message)
}

fn lost_container() -> End {
    let message = "the node restarted or lost the container, so its exit code is not known";
    End::new(Cause::NodeLost, Class::Disruption, message)
}

/// The end of a pod whose worker never started.
fn worker_never_started(pod: &Pod) -> End {
    if let Some((name, terminated)) = pod::failed_init_container(pod) {
        if pod::is_unknown_end(terminated) {
            return lost_container();
        }
        let code = terminated.exit_code;
        let description = format!("exit code {code} of the container {name}, which runs before the worker");
        let message = with_log(&description, terminated.message.as_deref().unwrap_or_default());
        return End::new(Cause::ExitedWithError, Class::Crash, message).with_exit_code(Some(code));
    }
    let message = reason_and_message(pod::reason(pod), pod::message(pod));
    End::new(Cause::PodFailed, Class::Disruption, message)
}
