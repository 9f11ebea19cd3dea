//! Reads a pod: which container is the worker, whether the worker has ended, and what it waits for.

use std::collections::BTreeMap;

use dalsegno_crds::names;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{
    Container, ContainerState, ContainerStateTerminated, ContainerStateWaiting, ContainerStatus, Pod,
    PodCondition, PodSpec, PodStatus, ResourceRequirements,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};

use crate::revision::ImageDigest;

/// Type of the pod condition that says what disrupted a pod.
const DISRUPTION_TARGET: &str = "DisruptionTarget";
/// Type of the pod condition that says whether a pod has a sandbox with a network.
const READY_TO_START_CONTAINERS: &str = "PodReadyToStartContainers";
/// Type of the pod condition that says whether a pod has a node.
pub(crate) const POD_SCHEDULED: &str = "PodScheduled";

/// Name of the resource memory.
const MEMORY: &str = "memory";

/// Removes every field that no decision reads, because the operator keeps thousands of pods in memory. What remains
/// shows how the pod ended and whose pod it is.
pub fn trimmed(pod: Pod) -> Pod {
    let Pod { metadata, spec, status } = pod;
    let is_large = |key: &str| key == names::ANNOTATION_INPUT || key == names::ANNOTATION_CA;
    let is_ours = |key: &str| key.starts_with(names::PREFIX) && !is_large(key);
    let ours = |all: BTreeMap<String, String>| all.into_iter().filter(|(key, _)| is_ours(key)).collect();
    Pod {
        metadata: ObjectMeta {
            name: metadata.name,
            namespace: metadata.namespace,
            uid: metadata.uid,
            labels: metadata.labels.map(ours),
            annotations: metadata.annotations.map(ours),
            owner_references: metadata.owner_references,
            finalizers: metadata.finalizers.map(|all| all.into_iter().filter(|it| is_ours(it)).collect()),
            deletion_timestamp: metadata.deletion_timestamp,
            deletion_grace_period_seconds: metadata.deletion_grace_period_seconds,
            ..ObjectMeta::default()
        },
        spec: spec.map(|spec| PodSpec {
            node_name: spec.node_name,
            containers: spec.containers.into_iter().map(trimmed_container).collect(),
            resources: spec.resources.and_then(trimmed_resources),
            ..PodSpec::default()
        }),
        status: status.map(|status| PodStatus {
            phase: status.phase,
            reason: status.reason,
            message: status.message,
            conditions: status.conditions.map(|all| all.into_iter().filter(is_evidence).collect()),
            init_container_statuses: status.init_container_statuses.map(trimmed_statuses),
            container_statuses: status.container_statuses.map(trimmed_statuses),
            ..PodStatus::default()
        }),
    }
}

fn trimmed_container(it: Container) -> Container {
    let resources = it.resources.and_then(trimmed_resources);
    Container { name: it.name, image: it.image, resources, ..Container::default() }
}

/// Keeps the memory limit.
fn trimmed_resources(it: ResourceRequirements) -> Option<ResourceRequirements> {
    let memory = it.limits?.remove_entry(MEMORY)?;
    Some(ResourceRequirements { limits: Some(BTreeMap::from([memory])), ..ResourceRequirements::default() })
}

fn trimmed_statuses(all: Vec<ContainerStatus>) -> Vec<ContainerStatus> {
    let trimmed = |it: ContainerStatus| ContainerStatus {
        name: it.name,
        image_id: it.image_id,
        // Of a container that has run, its state says enough.
        container_id: it.container_id.filter(|_| it.state.as_ref().is_some_and(has_no_known_run)),
        state: it.state,
        ..ContainerStatus::default()
    };
    all.into_iter().map(trimmed).collect()
}

fn is_evidence(condition: &PodCondition) -> bool {
    match condition.type_.as_str() {
        DISRUPTION_TARGET | POD_SCHEDULED => true,
        READY_TO_START_CONTAINERS => condition.status == "False",
        _ => false,
    }
}

/// Name of the worker's container, as the pod's annotation says. The containers themselves do not show it, because
/// admission may have added others.
pub fn worker_container_name(pod: &Pod) -> &str {
    annotation(pod, names::ANNOTATION_WORKER).unwrap_or(names::WORKER_CONTAINER)
}

/// Whether the worker's container or the whole pod has a memory limit. The pod shows also the defaults of its namespace.
pub(crate) fn worker_has_memory_limit(pod: &Pod) -> bool {
    let Some(spec) = &pod.spec else { return false };
    let name = worker_container_name(pod);
    let worker = spec.containers.iter().find(|it| it.name == name).and_then(|it| it.resources.as_ref());
    let has_limit = |it: &ResourceRequirements| it.limits.as_ref().is_some_and(|it| it.contains_key(MEMORY));
    worker.into_iter().chain(&spec.resources).any(has_limit)
}

/// Whether the pod's worker has ended and cannot run again.
pub fn worker_has_ended(pod: &Pod) -> bool {
    is_in_terminal_phase(pod) || worker_terminated(pod).is_some()
}

/// Whether the agent of this pod keeps its own checkpoints. Such a pod begins with a finalizer, and knows of no gateway. A
/// person who removes the finalizer confirms the end of the pod: nothing is left to do for it then.
pub fn is_external(metadata: &ObjectMeta) -> bool {
    metadata.finalizers.iter().flatten().any(|it| it == names::POD_FINALIZER)
}

/// Whether the worker's process has run. A container that could not be started has an end, too.
pub(crate) fn worker_has_started(pod: &Pod) -> bool {
    let state = worker_status(pod).and_then(|it| it.state.as_ref());
    let has_run = |it: &ContainerStateTerminated| started_at(pod).is_some() && !could_not_start(it);
    state.is_some_and(|it| it.running.is_some() || it.terminated.as_ref().is_some_and(has_run))
}

/// Whether the container's command could not be started: the codes of shells and container runtimes for a command that
/// cannot be executed, does not exist or cannot be started, or the kernel's error for a program of another architecture.
pub(crate) fn could_not_start(terminated: &ContainerStateTerminated) -> bool {
    let log = terminated.message.as_deref().unwrap_or_default();
    matches!(terminated.exit_code, 126..=128) || log.contains("exec format error")
}

/// Whether a container of the pod has begun.
pub(crate) fn has_begun(pod: &Pod) -> bool {
    let mut states =
        init_container_statuses(pod).iter().chain(container_statuses(pod)).filter_map(|it| it.state.as_ref());
    states.any(|it| it.running.is_some() || it.terminated.is_some())
}

/// Whether the kubelet does not know how the container ended. When it ends a pod, it says so also of the containers that it
/// has not started.
pub(crate) fn is_unknown_end(terminated: &ContainerStateTerminated) -> bool {
    matches!(terminated.reason.as_deref(), Some("ContainerStatusUnknown" | "Unknown"))
}

/// When the deletion of the pod began, by the API server's clock.
pub(crate) fn deletion_began(pod: &Pod) -> Option<Timestamp> {
    let grace = SignedDuration::from_secs(pod.metadata.deletion_grace_period_seconds.unwrap_or_default());
    pod.metadata.deletion_timestamp.as_ref()?.0.checked_sub(grace).ok()
}

/// When the pod lost its sandbox, if its worker has not started. It had one if a container was ever created.
pub(crate) fn sandbox_lost_at(pod: &Pod) -> Option<Timestamp> {
    let worker_waits = has_no_known_run(worker_status(pod)?.state.as_ref()?);
    let created = |it: &ContainerStatus| {
        it.container_id.is_some() || it.state.as_ref().is_some_and(|it| !has_no_known_run(it))
    };
    let had_sandbox = init_container_statuses(pod).iter().chain(container_statuses(pod)).any(created);
    let without = condition(pod, READY_TO_START_CONTAINERS).filter(|it| it.status == "False")?;
    let at = without.last_transition_time.as_ref()?.0;
    (worker_waits && had_sandbox).then_some(at)
}

/// Whether the container waits, or its pod was ended and the kubelet does not know whether it ran.
fn has_no_known_run(state: &ContainerState) -> bool {
    let is_unknown =
        |it: &ContainerStateTerminated| is_unknown_end(it) && start_of(it.started_at.as_ref()).is_none();
    state.running.is_none() && state.terminated.as_ref().is_none_or(is_unknown)
}

/// Whether all containers of the pod have ended. A helper container may run longer than the worker.
pub fn all_containers_ended(pod: &Pod) -> bool {
    let all_ended = |all: &[ContainerStatus]| {
        !all.is_empty() && all.iter().all(|it| it.state.as_ref().is_some_and(|it| it.terminated.is_some()))
    };
    is_in_terminal_phase(pod) || all_ended(container_statuses(pod))
}

/// Whether the pod is being deleted, or is the target of a disruption.
pub fn is_disrupted(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some() || disruption_target(pod).is_some()
}

/// Whether the pod's phase is `Failed` or `Succeeded`.
fn is_in_terminal_phase(pod: &Pod) -> bool {
    let phase = status(pod).and_then(|it| it.phase.as_deref());
    matches!(phase, Some("Failed" | "Succeeded"))
}

/// How the worker's container ended.
pub(crate) fn worker_terminated(pod: &Pod) -> Option<&ContainerStateTerminated> {
    worker_status(pod)?.state.as_ref()?.terminated.as_ref()
}

/// The init container that failed, so that the worker could not start: its name, and how it ended.
pub(crate) fn failed_init_container(pod: &Pod) -> Option<(&str, &ContainerStateTerminated)> {
    init_container_statuses(pod).iter().find_map(|it| {
        let terminated = it.state.as_ref()?.terminated.as_ref()?;
        (terminated.exit_code != 0).then_some((it.name.as_str(), terminated))
    })
}

/// When the worker's container started. `None`: it has not, or the kubelet does not know.
pub(crate) fn started_at(pod: &Pod) -> Option<Timestamp> {
    let state = worker_status(pod)?.state.as_ref()?;
    let running = state.running.as_ref().and_then(|it| it.started_at.as_ref());
    let terminated = state.terminated.as_ref().and_then(|it| it.started_at.as_ref());
    start_of(running.or(terminated))
}

/// The kubelet writes the epoch if it does not know.
fn start_of(time: Option<&Time>) -> Option<Timestamp> {
    time.map(|it| it.0).filter(|at| *at > Timestamp::UNIX_EPOCH)
}

/// When the worker's container ended.
pub(crate) fn finished_at(pod: &Pod) -> Option<Timestamp> {
    Some(worker_terminated(pod)?.finished_at.as_ref()?.0)
}

/// Why a container of the pod cannot start, as the kubelet's reason and message. The normal steps of a start, such as
/// `ContainerCreating`, do not count.
pub(crate) fn waiting(pod: &Pod) -> Option<(&str, &str)> {
    init_container_statuses(pod).iter().chain(container_statuses(pod)).find_map(|it| {
        let ContainerStateWaiting { reason, message } = it.state.as_ref()?.waiting.as_ref()?;
        let reason = reason.as_deref().unwrap_or_default();
        let is_normal = matches!(reason, "" | "PodInitializing" | "ContainerCreating");
        (!is_normal).then(|| (reason, message.as_deref().unwrap_or_default()))
    })
}

/// Whether a container waits because its image cannot be pulled, by the kubelet's reason.
pub(crate) fn is_image_problem(reason: &str) -> bool {
    matches!(
        reason,
        "ErrImagePull"
            | "ImagePullBackOff"
            | "InvalidImageName"
            | "ImageInspectError"
            | "ErrImageNeverPull"
            | "RegistryUnavailable"
            | "SignatureValidationFailed"
    )
}

/// The condition that names the pod as the target of a disruption, if it is True.
pub(crate) fn disruption_target(pod: &Pod) -> Option<&PodCondition> {
    condition(pod, DISRUPTION_TARGET).filter(|it| it.status == "True")
}

/// The condition of this type.
pub(crate) fn condition<'a>(pod: &'a Pod, kind: &str) -> Option<&'a PodCondition> {
    status(pod)?.conditions.as_ref()?.iter().find(|it| it.type_ == kind)
}

/// Reason of the pod as a whole.
pub(crate) fn reason(pod: &Pod) -> &str {
    status(pod).and_then(|it| it.reason.as_deref()).unwrap_or_default()
}

/// Message of the pod as a whole.
pub(crate) fn message(pod: &Pod) -> &str {
    status(pod).and_then(|it| it.message.as_deref()).unwrap_or_default()
}

/// Name of the node that the pod is assigned to.
pub(crate) fn node(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref()
}

/// The nonce of the attempt that the pod was created for.
pub fn nonce(pod: &Pod) -> Option<&str> {
    annotation(pod, names::ANNOTATION_NONCE)
}

/// Value of an annotation.
pub(crate) fn annotation<'a>(pod: &'a Pod, key: &str) -> Option<&'a str> {
    pod.metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

/// Digest in the name of the worker's image, if the image is named by digest.
pub(crate) fn named_digest(pod: &Pod) -> Option<ImageDigest<'_>> {
    let name = worker_container_name(pod);
    let containers = &pod.spec.as_ref()?.containers;
    ImageDigest::of(containers.iter().find(|it| it.name == name)?.image.as_deref()?)
}

/// Digest of the worker's image: the one in its name, or else the one that the kubelet reports.
pub(crate) fn digest(pod: &Pod) -> Option<ImageDigest<'_>> {
    named_digest(pod).or_else(|| ImageDigest::of(&worker_status(pod)?.image_id))
}

fn worker_status(pod: &Pod) -> Option<&ContainerStatus> {
    let name = worker_container_name(pod);
    container_statuses(pod).iter().find(|it| it.name == name)
}

fn container_statuses(pod: &Pod) -> &[ContainerStatus] {
    status(pod).and_then(|it| it.container_statuses.as_deref()).unwrap_or_default()
}

fn init_container_statuses(pod: &Pod) -> &[ContainerStatus] {
    status(pod).and_then(|it| it.init_container_statuses.as_deref()).unwrap_or_default()
}

fn status(pod: &Pod) -> Option<&PodStatus> {
    pod.status.as_ref()
}
