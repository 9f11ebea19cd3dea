//! The end of an attempt, as its pod's status shows it.

use dalsegno_crds::Cause;
use dalsegno_model::{Attempt, AttemptState, Class};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{ContainerStateTerminated, Pod};

use crate::end::End;
use crate::observed::ObservedPod;
use crate::pod;
use crate::termination_message;
use crate::text::{reason_and_message, with_log};

/// How the attempt ended, if its worker has ended.
///
/// The most certain evidence comes first: the worker's own message, the kernel's OOM kill, a disruption that began no
/// later than the worker's end, the kubelet's reason for the whole pod, the exit code.
pub(crate) fn of(attempt: &Attempt, seen: &ObservedPod) -> Option<End> {
    if !pod::worker_has_ended(&seen.pod) {
        return None;
    }
    let attached = attempt.state == AttemptState::Attached;
    let terminated = pod::worker_terminated(&seen.pod);
    let end = terminated
        .filter(|_| attached)
        .and_then(|it| termination_message::parse(it.message.as_deref()?))
        .or_else(|| terminated.and_then(oom_kill))
        .or_else(|| disruption(seen))
        .or_else(|| kubelet_reason(&seen.pod))
        .or_else(|| terminated.map(|it| exit(&seen.pod, it, attached)))
        .unwrap_or_else(|| worker_never_started(&seen.pod));
    let code = terminated.map(|it| it.exit_code).or(end.exit_code);
    Some(end.with_exit_code(code))
}

fn oom_kill(terminated: &ContainerStateTerminated) -> Option<End> {
    let message = "the kernel killed the worker, because it exceeded its memory limit";
    (terminated.reason.as_deref() == Some("OOMKilled"))
        .then(|| End::new(Cause::OOMKilled, Class::Crash, message))
}

/// A disruption that began no later than the worker's end. Both times have a resolution of one second, and the same
/// second counts. A worker that has not ended, or whose end has no time, counts as running until now.
pub(crate) fn disruption(seen: &ObservedPod) -> Option<End> {
    let pod = &seen.pod;
    let finished = pod::finished_at(pod);
    let in_time = |began: Option<Timestamp>| {
        let before = began.zip(finished).is_none_or(|(began, end)| began.as_second() <= end.as_second());
        seen.disrupted_while_running || before
    };
    if let Some(target) = pod::disruption_target(pod)
        && in_time(target.last_transition_time.as_ref().map(|it| it.0))
    {
        let reason = target.reason.as_deref().unwrap_or_default();
        let (cause, class) = disruption_cause(reason, pod::reason(pod));
        return Some(End::new(cause, class, target.message.as_deref().unwrap_or_default()));
    }
    let grace = SignedDuration::from_secs(pod.metadata.deletion_grace_period_seconds.unwrap_or_default());
    let began = pod.metadata.deletion_timestamp.as_ref()?.0.checked_sub(grace).ok();
    in_time(began).then(|| End::new(Cause::Deleted, Class::Disruption, "somebody deleted the pod"))
}

/// The cause of a disruption, by the reason of the pod's condition `DisruptionTarget` and the reason of the pod itself.
fn disruption_cause(condition_reason: &str, pod_reason: &str) -> (Cause, Class) {
    match (condition_reason, pod_reason) {
        ("EvictionByEvictionAPI", _) => (Cause::Evicted, Class::Disruption),
        ("PreemptionByScheduler", _) => (Cause::Preempted, Class::Disruption),
        ("DeletionByTaintManager", _) => (Cause::TaintEvicted, Class::Disruption),
        ("DeletionByPodGC", _) => (Cause::NodeLost, Class::Disruption),
        ("TerminationByKubelet", "Terminated") => (Cause::NodeShutdown, Class::Disruption),
        // The kubelet made room for a critical pod.
        ("TerminationByKubelet", "Preempting") => (Cause::Preempted, Class::Disruption),
        ("TerminationByKubelet", _) => (Cause::NodePressure, Class::CrashWithoutProgress),
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
        "NodeLost" => (Cause::NodeLost, Class::Disruption),
        _ => return None,
    };
    Some(End::new(cause, class, message))
}

/// The end by the worker's exit code. It is the least certain evidence of a container's end.
fn exit(pod: &Pod, terminated: &ContainerStateTerminated, attached: bool) -> End {
    if matches!(terminated.reason.as_deref(), Some("ContainerStatusUnknown" | "Unknown")) {
        let message = "the node restarted or lost the container, so its exit code is not known";
        return End::new(Cause::NodeLost, Class::Disruption, message);
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
            (Cause::ExitedWithError, with_log(&description, log))
        }
    };
    End::new(cause, Class::Crash, message)
}

/// The end of a pod whose worker never started.
fn worker_never_started(pod: &Pod) -> End {
    if let Some((name, terminated)) = pod::failed_init_container(pod) {
        let code = terminated.exit_code;
        let description = format!("exit code {code} of the container {name}, which runs before the worker");
        let message = with_log(&description, terminated.message.as_deref().unwrap_or_default());
        return End::new(Cause::ExitedWithError, Class::Crash, message).with_exit_code(Some(code));
    }
    let message = reason_and_message(pod::reason(pod), pod::message(pod));
    End::new(Cause::PodFailed, Class::Disruption, message)
}
