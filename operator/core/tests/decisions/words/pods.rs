//! Pods as the API server shows them: the values are those of real deaths on a real cluster.

use dalsegno_core::PodSight;
use dalsegno_crds::names;
use k8s_openapi::api::core::v1::{
    Container, ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting,
    ContainerStatus, Pod, PodCondition, PodSpec, PodStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use std::collections::BTreeMap;

use super::{NAMESPACE, RUN, TAGGED, UID, ago, by_digest, digest};

/// A pod, as last seen.
#[derive(Clone, Debug)]
pub struct Seen(pub PodSight);

/// The pod of an attempt: scheduled to node n1, its worker running, its image's digest not yet shown.
pub fn pod(attempt: i32) -> Seen {
    let owner = OwnerReference {
        api_version: "dalsegno.dev/v1alpha1".into(),
        kind: "AgentRun".into(),
        name: RUN.into(),
        uid: UID.into(),
        controller: Some(true),
        block_owner_deletion: None,
    };
    let metadata = ObjectMeta {
        name: Some(format!("{RUN}-{attempt}")),
        namespace: Some(NAMESPACE.into()),
        uid: Some(format!("pod-{attempt}")),
        labels: Some(BTreeMap::from([(names::LABEL_ATTEMPT.into(), attempt.to_string())])),
        annotations: Some(BTreeMap::from([
            (names::ANNOTATION_TURN.into(), "0/0".into()),
            (names::ANNOTATION_REVISION.into(), "sha256:made-from".into()),
        ])),
        owner_references: Some(vec![owner]),
        ..ObjectMeta::default()
    };
    let worker = Container { name: "agent".into(), image: Some(TAGGED.into()), ..Container::default() };
    let spec = PodSpec { containers: vec![worker], node_name: Some("n1".into()), ..PodSpec::default() };
    let status = PodStatus {
        phase: Some("Running".into()),
        container_statuses: Some(vec![container("agent", running())]),
        ..PodStatus::default()
    };
    let pod = Pod { metadata, spec: Some(spec), status: Some(status) };
    Seen(PodSight { pod, gone: false, disrupted_while_running: false })
}

fn container(name: &str, state: ContainerState) -> ContainerStatus {
    ContainerStatus { name: name.into(), state: Some(state), ..ContainerStatus::default() }
}

fn running() -> ContainerState {
    let running = ContainerStateRunning { started_at: Some(Time(ago(50))) };
    ContainerState { running: Some(running), ..ContainerState::default() }
}

fn terminated(code: i32, reason: &str) -> ContainerState {
    let ended = ContainerStateTerminated {
        exit_code: code,
        reason: Some(reason.into()),
        finished_at: Some(Time(ago(5))),
        started_at: Some(Time(ago(50))),
        ..ContainerStateTerminated::default()
    };
    ContainerState { terminated: Some(ended), ..ContainerState::default() }
}

impl Seen {
    // How the worker's container stands.

    /// It ended 5 s ago. The phase follows about a second later, and is not awaited.
    pub fn terminated(mut self, code: i32) -> Self {
        let reason = if code == 0 { "Completed" } else { "Error" };
        self.worker().state = Some(terminated(code, reason));
        self
    }

    pub fn oom(mut self) -> Self {
        self.worker().state = Some(terminated(137, "OOMKilled"));
        self
    }

    /// The node was restarted under it.
    pub fn lost_by_kubelet(mut self) -> Self {
        self.worker().state = Some(terminated(255, "Unknown"));
        self
    }

    pub fn finished(mut self, seconds_ago: i64) -> Self {
        self.end().finished_at = Some(Time(ago(seconds_ago)));
        self
    }

    /// Its termination message: what it wrote there, or the last lines of its log.
    pub fn said(mut self, message: &str) -> Self {
        self.end().message = Some(message.into());
        self
    }

    pub fn waiting(mut self, reason: &str, message: &str) -> Self {
        let waiting = ContainerStateWaiting { reason: Some(reason.into()), message: Some(message.into()) };
        self.worker().state = Some(ContainerState { waiting: Some(waiting), ..ContainerState::default() });
        self.phase("Pending")
    }

    /// The kubelet shows this image's digest.
    pub fn shows(mut self, image: char) -> Self {
        self.worker().image_id = by_digest(image);
        self
    }

    /// Its image is named by this digest.
    pub fn named_by(mut self, image: char) -> Self {
        self.0.pod.spec.as_mut().unwrap().containers[0].image = Some(by_digest(image));
        self
    }

    /// A container before the worker failed.
    pub fn init_failed(mut self, name: &str, code: i32) -> Self {
        let failed = ContainerStatus { name: name.into(), ..container(name, terminated(code, "Error")) };
        let waiting = ContainerStateWaiting { reason: Some("PodInitializing".into()), message: None };
        self.worker().state = Some(ContainerState { waiting: Some(waiting), ..ContainerState::default() });
        self.status().init_container_statuses = Some(vec![failed]);
        self.phase("Failed")
    }

    /// A second container, which runs on.
    pub fn with_helper(mut self) -> Self {
        let helper = Container { name: "helper".into(), ..Container::default() };
        self.0.pod.spec.as_mut().unwrap().containers.push(helper);
        self.status().container_statuses.as_mut().unwrap().push(container("helper", running()));
        self
    }

    // How the pod stands.

    pub fn phase(mut self, phase: &str) -> Self {
        self.status().phase = Some(phase.into());
        self
    }

    /// What the kubelet says of the whole pod.
    pub fn kubelet(mut self, reason: &str, message: &str) -> Self {
        self.status().reason = Some(reason.into());
        self.status().message = Some(message.into());
        self.phase("Failed")
    }

    /// The kubelet refused it before anything ran.
    pub fn nothing_ran(mut self) -> Self {
        self.status().container_statuses = None;
        self
    }

    pub fn unscheduled(mut self, message: &str) -> Self {
        self.0.pod.spec.as_mut().unwrap().node_name = None;
        self.status().container_statuses = None;
        self.condition("PodScheduled", "False", "Unschedulable", message, 60).phase("Pending")
    }

    /// The condition DisruptionTarget became True.
    pub fn disrupted(self, reason: &str, seconds_ago: i64) -> Self {
        self.condition("DisruptionTarget", "True", reason, "for a reason of theirs", seconds_ago)
    }

    /// Somebody deleted it, with a grace period of 30 s.
    pub fn deleted(mut self, seconds_ago: i64) -> Self {
        self.0.pod.metadata.deletion_timestamp = Some(Time(ago(seconds_ago - 30)));
        self.0.pod.metadata.deletion_grace_period_seconds = Some(30);
        self
    }

    /// It was seen to be disrupted while its worker ran.
    pub fn seen_before_its_end(mut self) -> Self {
        self.0.disrupted_while_running = true;
        self
    }

    /// A live look found it no more.
    pub fn gone(mut self) -> Self {
        self.0.gone = true;
        self
    }

    // What it was made as.

    pub fn resumed_from(self, turn: i32, position: i64) -> Self {
        self.annotated(names::ANNOTATION_TURN, &format!("{turn}/{position}"))
    }

    pub fn declares(self, version: &str) -> Self {
        self.annotated(names::ANNOTATION_AGENT_VERSION, version)
    }

    pub fn pinned(self) -> Self {
        self.annotated(names::ANNOTATION_PINNED, &digest('d'))
    }

    /// It has our labels, and another owner.
    pub fn of_somebody_else(mut self) -> Self {
        self.0.pod.metadata.owner_references.as_mut().unwrap()[0].uid = "somebody else".into();
        self
    }

    /// It has our labels and names our run as its owner, as anybody may write it.
    pub fn of_another_namespace(mut self) -> Self {
        self.0.pod.metadata.namespace = Some("elsewhere".into());
        self
    }

    pub fn uid(mut self, uid: &str) -> Self {
        self.0.pod.metadata.uid = Some(uid.into());
        self
    }

    fn annotated(mut self, key: &str, value: &str) -> Self {
        self.0.pod.metadata.annotations.as_mut().unwrap().insert(key.into(), value.into());
        self
    }

    fn condition(mut self, kind: &str, status: &str, reason: &str, message: &str, ago_: i64) -> Self {
        let condition = PodCondition {
            type_: kind.into(),
            status: status.into(),
            reason: Some(reason.into()),
            message: Some(message.into()),
            last_transition_time: Some(Time(ago(ago_))),
            ..PodCondition::default()
        };
        self.status().conditions.get_or_insert_default().push(condition);
        self
    }

    fn status(&mut self) -> &mut PodStatus {
        self.0.pod.status.as_mut().unwrap()
    }

    fn worker(&mut self) -> &mut ContainerStatus {
        &mut self.status().container_statuses.as_mut().unwrap()[0]
    }

    fn end(&mut self) -> &mut ContainerStateTerminated {
        self.worker().state.as_mut().unwrap().terminated.as_mut().unwrap()
    }
}
