//! Reading a pod: which container is its worker, whether that has ended, and what it waits for.

use std::collections::BTreeMap;

use dalsegno_crds::names;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    Container, ContainerStateTerminated, ContainerStateWaiting, ContainerStatus, Pod, PodCondition, PodSpec,
    PodStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::revision::digest_in;

/// A condition of this type says who ended a pod.
const DISRUPTION_TARGET: &str = "DisruptionTarget";
/// A condition of this type says whether a pod has a node.
pub(crate) const POD_SCHEDULED: &str = "PodScheduled";

/// Of a pod only what is evidence, or says whose it is: thousands are held. No decision reads more of one.
pub fn trimmed(pod: Pod) -> Pod {
    let Pod { metadata, spec, status } = pod;
    let is_ours = |key: &str| key.starts_with(names::PREFIX) && key != names::ANNOTATION_INPUT;
    let ours = |all: BTreeMap<String, String>| all.into_iter().filter(|(key, _)| is_ours(key)).collect();
    Pod {
        metadata: ObjectMeta {
            name: metadata.name,
            namespace: metadata.namespace,
            uid: metadata.uid,
            labels: metadata.labels.map(ours),
            annotations: metadata.annotations.map(ours),
            owner_references: metadata.owner_references,
            deletion_timestamp: metadata.deletion_timestamp,
            deletion_grace_period_seconds: metadata.deletion_grace_period_seconds,
            ..ObjectMeta::default()
        },
        spec: spec.map(|spec| PodSpec {
            node_name: spec.node_name,
            containers: spec.containers.into_iter().map(trimmed_container).collect(),
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
    Container { name: it.name, image: it.image, ..Container::default() }
}

fn trimmed_statuses(all: Vec<ContainerStatus>) -> Vec<ContainerStatus> {
    let trimmed = |it: ContainerStatus| ContainerStatus {
        name: it.name,
        image_id: it.image_id,
        state: it.state,
        ..ContainerStatus::default()
    };
    all.into_iter().map(trimmed).collect()
}

fn is_evidence(condition: &PodCondition) -> bool {
    matches!(condition.type_.as_str(), DISRUPTION_TARGET | POD_SCHEDULED)
}

/// Name of the worker's container: the one named `agent`, or the only one.
pub fn worker_name(pod: &Pod) -> &str {
    let containers = pod.spec.as_ref().map(|it| it.containers.as_slice()).unwrap_or_default();
    match containers {
        [only] => &only.name,
        _ => names::WORKER_CONTAINER,
    }
}

/// Whether a worker can run in this pod no more.
pub fn has_ended(pod: &Pod) -> bool {
    is_over(pod) || worker_end(pod).is_some()
}

/// Whether nothing at all runs in this pod any more: a helper may outlive its worker.
pub fn has_stopped(pod: &Pod) -> bool {
    let all_ended = |all: &[ContainerStatus]| {
        !all.is_empty() && all.iter().all(|it| it.state.as_ref().is_some_and(|it| it.terminated.is_some()))
    };
    is_over(pod) || all_ended(own_statuses(pod))
}

/// Whether the pod's end was set in motion: it is being deleted, or is the target of a disruption.
pub fn is_disrupted(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some() || disruption_target(pod).is_some()
}

/// The pod as a whole has come to an end.
pub(crate) fn is_over(pod: &Pod) -> bool {
    let phase = status(pod).and_then(|it| it.phase.as_deref());
    matches!(phase, Some("Failed" | "Succeeded"))
}

/// How the worker's container ended.
pub(crate) fn worker_end(pod: &Pod) -> Option<&ContainerStateTerminated> {
    worker_status(pod)?.state.as_ref()?.terminated.as_ref()
}

/// A container that had to succeed before the worker could start, and did not: its name, and how it ended.
pub(crate) fn failed_before(pod: &Pod) -> Option<(&str, &ContainerStateTerminated)> {
    let before = status(pod)?.init_container_statuses.as_deref().unwrap_or_default();
    before.iter().find_map(|it| {
        let ended = it.state.as_ref()?.terminated.as_ref()?;
        (ended.exit_code != 0).then_some((it.name.as_str(), ended))
    })
}

/// When the worker's container ended.
pub(crate) fn finished_at(pod: &Pod) -> Option<Timestamp> {
    Some(worker_end(pod)?.finished_at.as_ref()?.0)
}

/// Why the worker's container, or one before it, waits, if it is for more than its turn: reason and message.
pub(crate) fn waiting(pod: &Pod) -> Option<(&str, &str)> {
    let before = status(pod)?.init_container_statuses.as_deref().unwrap_or_default();
    before.iter().chain(own_statuses(pod)).find_map(|it| {
        let ContainerStateWaiting { reason, message } = it.state.as_ref()?.waiting.as_ref()?;
        let reason = reason.as_deref().unwrap_or_default();
        let its_turn = matches!(reason, "" | "PodInitializing" | "ContainerCreating");
        (!its_turn).then(|| (reason, message.as_deref().unwrap_or_default()))
    })
}

/// Whether a container waits because its image cannot be had.
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

/// The disruption that the pod is the target of.
pub(crate) fn disruption_target(pod: &Pod) -> Option<&PodCondition> {
    condition(pod, DISRUPTION_TARGET).filter(|it| it.status == "True")
}

/// A condition of the pod.
pub(crate) fn condition<'a>(pod: &'a Pod, kind: &str) -> Option<&'a PodCondition> {
    status(pod)?.conditions.as_ref()?.iter().find(|it| it.type_ == kind)
}

/// The reason of the pod as a whole.
pub(crate) fn reason(pod: &Pod) -> &str {
    status(pod).and_then(|it| it.reason.as_deref()).unwrap_or_default()
}

/// The message of the pod as a whole.
pub(crate) fn message(pod: &Pod) -> &str {
    status(pod).and_then(|it| it.message.as_deref()).unwrap_or_default()
}

/// The node that it was given.
pub(crate) fn node(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref()
}

/// An annotation.
pub(crate) fn annotation<'a>(pod: &'a Pod, key: &str) -> Option<&'a str> {
    pod.metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

/// The digest by which the worker's image is named.
pub(crate) fn named_digest(pod: &Pod) -> Option<&str> {
    let name = worker_name(pod);
    let containers = &pod.spec.as_ref()?.containers;
    digest_in(containers.iter().find(|it| it.name == name)?.image.as_deref()?)
}

/// The digest of the worker's image: the one it is named by, else the one that the kubelet shows.
pub(crate) fn digest(pod: &Pod) -> Option<&str> {
    named_digest(pod).or_else(|| digest_in(&worker_status(pod)?.image_id))
}

fn worker_status(pod: &Pod) -> Option<&ContainerStatus> {
    let name = worker_name(pod);
    own_statuses(pod).iter().find(|it| it.name == name)
}

fn own_statuses(pod: &Pod) -> &[ContainerStatus] {
    status(pod).and_then(|it| it.container_statuses.as_deref()).unwrap_or_default()
}

fn status(pod: &Pod) -> Option<&PodStatus> {
    pod.status.as_ref()
}
