//! Why an attempt ended, and who caused it.
//!
//! The evidence is taken in a fixed order, the most certain first:
//!
//! 1. what the store's row says: the image's version was refused, another process attached;
//! 2. how the worker's container ended: its own termination message, the kernel's OOM kill, a disruption that began no
//!    later than its end, the kubelet's verdict on the pod, the exit code;
//! 3. the pod is gone and nobody saw it end;
//! 4. silence: a deadline that ran out in the store, or a node that is not Ready ([`crate::silence`]).
//!
//! Silence is judged last because it is the absence of evidence: a container that is known to have ended is not
//! silent, and a worker that is being evicted may well be.

use dalsegno_crds::Cause;
use dalsegno_model::{Attempt, AttemptState, BEAT_GAP_MS, BeatRow, Class, Ending, RunRecord, Verdict};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{ContainerStateTerminated, Pod};
use serde::Deserialize;

use crate::pod;
use crate::silence;
use crate::text::{self, said, with_log};
use crate::{NodeSight, PodSight};

/// A crash this close to a silence of the gateways may be its consequence.
const GAP_MARGIN: SignedDuration = SignedDuration::from_secs(5);

/// Why an attempt ended.
#[derive(Clone, Debug, PartialEq)]
pub struct End {
    /// The cause.
    pub cause: Cause,
    /// Who caused it.
    pub class: Class,
    /// The worker's exit code.
    pub exit_code: Option<i32>,
    /// For people.
    pub message: String,
}

impl End {
    /// An end without an exit code.
    pub fn new(cause: Cause, class: Class, message: impl Into<String>) -> Self {
        Self { cause, class, exit_code: None, message: message.into() }
    }

    fn with_code(self, exit_code: Option<i32>) -> Self {
        Self { exit_code, ..self }
    }

    /// As the store takes it. The end of a message says more than its beginning, since it may be a log.
    pub fn of(self, attempt: i32) -> Ending {
        let Self { cause, class, exit_code, message } = self;
        let message = text::tail(&message, text::END_BYTES);
        Ending { attempt, cause, class, exit_code, message }
    }
}

/// Why the current attempt (created or attached) is over; `None` while it goes on.
///
/// `pod` is its recorded pod, as last seen; `None` if nothing was ever seen of it and a live look found nothing.
pub fn end_of(
    run: &RunRecord,
    pod: Option<&PodSight>,
    node: Option<NodeSight>,
    now: Timestamp,
) -> Option<End> {
    if let Some(end) = said_by_the_row(&run.attempt) {
        return Some(end);
    }
    let Some(seen) = pod else { return Some(vanished()) };
    if let Some(end) = end_of_container(&run.attempt, seen) {
        let end = spare_a_refused_key(end, run);
        return Some(spare_our_own_gap(end, pod::finished_at(&seen.pod), &run.beat, run.now));
    }
    if seen.gone {
        return Some(disruption(seen).unwrap_or_else(vanished));
    }
    silence::end_of(run, seen, node, now)
}

/// A worker whose call's key was refused can do nothing but exit: however it does, that is no crash.
fn spare_a_refused_key(end: End, run: &RunRecord) -> End {
    if run.calls.keys_refused > 0 && end.class == Class::Crash {
        End { cause: Cause::KeyRefused, class: Class::Neutral, ..end }
    } else {
        end
    }
}

/// The end that an attempt has in the store.
pub(crate) fn known_end(attempt: &Attempt) -> Ending {
    let end = attempt.end.as_ref();
    Ending {
        attempt: attempt.number,
        cause: end.map_or(Cause::Finished, |it| it.cause),
        class: end.map_or(Class::Neutral, |it| it.class),
        exit_code: end.and_then(|it| it.exit_code),
        message: end.map_or_else(String::new, |it| it.message.clone()),
    }
}

/// Evidence 1.
fn said_by_the_row(attempt: &Attempt) -> Option<End> {
    if let Some(identity) = &attempt.identity
        && identity.verdict == Verdict::Refused
    {
        return Some(End::new(Cause::VersionIncompatible, Class::Neutral, &identity.remark));
    }
    attempt.spent.then(|| {
        let what = "a second process of this attempt tried to attach; the first one's memory is lost";
        End::new(Cause::ProcessRestarted, Class::Crash, what)
    })
}

/// Evidence 2: how the worker ended, by what its pod tells. The first that can say it does.
fn end_of_container(attempt: &Attempt, seen: &PodSight) -> Option<End> {
    if !pod::has_ended(&seen.pod) {
        return None;
    }
    let attached = attempt.state == AttemptState::Attached;
    let ended = pod::worker_end(&seen.pod);
    let end = ended
        .filter(|_| attached)
        .and_then(|it| last_words(it.message.as_deref()?))
        .or_else(|| ended.and_then(out_of_memory))
        .or_else(|| disruption(seen))
        .or_else(|| verdict_of_kubelet(&seen.pod))
        .or_else(|| ended.map(|ended| exit(&seen.pod, ended, attached)))
        .unwrap_or_else(|| never_began(&seen.pod));
    let code = ended.map(|it| it.exit_code).or(end.exit_code);
    Some(end.with_code(code))
}

/// The worker's own word, which outranks its exit code.
#[derive(Deserialize)]
struct LastWords {
    dalsegno: u32,
    class: SaidClass,
    #[serde(default)]
    message: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum SaidClass {
    Crash,
    Disruption,
    Fatal,
}

/// What a termination message says, if it is one of the contract's.
pub fn last_words(message: &str) -> Option<End> {
    let said: LastWords = serde_json::from_str(message.trim()).ok()?;
    let (cause, class) = match said.class {
        SaidClass::Crash => (Cause::WorkerReported, Class::Crash),
        SaidClass::Disruption => (Cause::WorkerReported, Class::Disruption),
        SaidClass::Fatal => (Cause::WorkerFatal, Class::Crash),
    };
    (said.dalsegno == 1).then(|| End::new(cause, class, said.message))
}

fn out_of_memory(ended: &ContainerStateTerminated) -> Option<End> {
    let what = "the kernel ended the worker: it used more memory than its limit";
    (ended.reason.as_deref() == Some("OOMKilled")).then(|| End::new(Cause::OOMKilled, Class::Crash, what))
}

/// A disruption that began no later than the worker's end; the same second counts. A worker that has not ended, or
/// whose end has no time, is taken to have run until now.
pub(crate) fn disruption(seen: &PodSight) -> Option<End> {
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
        let (cause, class) = disruptor(reason, pod::reason(pod));
        return Some(End::new(cause, class, target.message.as_deref().unwrap_or_default()));
    }
    let grace = SignedDuration::from_secs(pod.metadata.deletion_grace_period_seconds.unwrap_or_default());
    let began = pod.metadata.deletion_timestamp.as_ref()?.0.checked_sub(grace).ok();
    in_time(began).then(|| End::new(Cause::Deleted, Class::Disruption, "somebody deleted the pod"))
}

/// Who disrupted a pod, by the reason of its condition `DisruptionTarget`, and its own.
fn disruptor(reason: &str, pod_reason: &str) -> (Cause, Class) {
    match (reason, pod_reason) {
        ("EvictionByEvictionAPI", _) => (Cause::Evicted, Class::Disruption),
        ("PreemptionByScheduler", _) => (Cause::Preempted, Class::Disruption),
        ("DeletionByTaintManager", _) => (Cause::TaintEvicted, Class::Disruption),
        ("DeletionByPodGC", _) => (Cause::NodeLost, Class::Disruption),
        ("TerminationByKubelet", "Terminated") => (Cause::NodeShutdown, Class::Disruption),
        // A pod that a node cannot do without took its place.
        ("TerminationByKubelet", "Preempting") => (Cause::Preempted, Class::Disruption),
        ("TerminationByKubelet", _) => (Cause::NodePressure, Class::CrashWithoutProgress),
        _ => (Cause::Deleted, Class::Disruption),
    }
}

/// What the kubelet says of the whole pod, where it says more than an exit code.
fn verdict_of_kubelet(pod: &Pod) -> Option<End> {
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

/// By the exit code, when nothing else says more.
fn exit(pod: &Pod, ended: &ContainerStateTerminated, attached: bool) -> End {
    if matches!(ended.reason.as_deref(), Some("ContainerStatusUnknown" | "Unknown")) {
        let what = "the node restarted, or lost the container; nobody saw how it ended";
        return End::new(Cause::NodeLost, Class::Disruption, what);
    }
    let (cause, message) = match (ended.exit_code, attached) {
        (0, true) => (
            Cause::ExitedWithoutFinish,
            "the worker exited with 0, but never committed a finish; see docs/reference/contract.md"
                .to_owned(),
        ),
        (0, false) => (
            Cause::NeverAttached,
            "the worker exited with 0 and never attached: its image does not speak the contract; see \
             docs/reference/contract.md"
                .to_owned(),
        ),
        (code, _) => {
            let when = if attached { "" } else { " before it attached" };
            let what = said(&format!("exit code {code}{when}"), &said(pod::reason(pod), pod::message(pod)));
            (Cause::ExitedWithError, with_log(&what, ended.message.as_deref().unwrap_or_default()))
        }
    };
    End::new(cause, Class::Crash, message)
}

/// The pod is over, and its worker never ran.
fn never_began(pod: &Pod) -> End {
    if let Some((name, ended)) = pod::failed_before(pod) {
        let what =
            format!("exit code {} of the container {name}, which runs before the worker", ended.exit_code);
        let message = with_log(&what, ended.message.as_deref().unwrap_or_default());
        return End::new(Cause::ExitedWithError, Class::Crash, message).with_code(Some(ended.exit_code));
    }
    End::new(Cause::PodFailed, Class::Disruption, said(pod::reason(pod), pod::message(pod)))
}

/// Evidence 3.
fn vanished() -> End {
    let what = "the pod is gone, and nobody saw how its worker ended";
    End::new(Cause::PodVanished, Class::Disruption, what)
}

/// A crash whose container ended inside a silence of ours is recorded and not charged: it may be the silence's fault.
fn spare_our_own_gap(end: End, finished: Option<Timestamp>, beat: &BeatRow, now: Timestamp) -> End {
    let is_crash = matches!(end.class, Class::Crash | Class::CrashWithoutProgress);
    let Some(finished) = finished.filter(|_| is_crash && end.cause != Cause::WorkerFatal) else { return end };
    let within = |from: Timestamp, to: Timestamp| {
        finished.duration_since(from) >= -GAP_MARGIN && finished.duration_since(to) <= GAP_MARGIN
    };
    let closed = beat.gap_from < beat.since && within(beat.gap_from, beat.since);
    let open = now.duration_since(beat.last).as_millis() > i128::from(BEAT_GAP_MS) && within(beat.last, now);
    if !closed && !open {
        return end;
    }
    let message = with_log("not charged, the gateway was away at the time", &end.message);
    End { class: Class::Neutral, message, ..end }
}
