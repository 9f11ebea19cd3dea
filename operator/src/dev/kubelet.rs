//! A kubelet for one machine: starts a process for each pod, and reports it as a kubelet reports a container.

use std::collections::HashMap;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dalsegno_core::ObservedPod;
use dalsegno_crds::names;
use dalsegno_protocol::env;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    Container, ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStatus, Pod,
    PodCondition, PodStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use rustix::process::Signal;
use tokio::sync::Notify;
use uuid::Uuid;

use super::process::{self, Group, Orphans, ProcessSpec};
use super::tokens::Tokens;
use crate::mutex::lock;

/// Name of the node of every pod.
const NODE: &str = "laptop";
/// Time between SIGTERM and SIGKILL. By the contract, a worker has ten seconds to commit.
pub const GRACE: Duration = Duration::from_secs(15);
/// Longest termination message that is read, in bytes. The limit of a kubelet.
const MAX_MESSAGE_BYTES: usize = 4_096;
/// Files in an attempt's folder, besides those of its process.
const TOKEN: &str = "token";
const INPUT: &str = "input";
const MESSAGE: &str = "termination-log";
/// Exit code of a program that could not be started, as in a shell.
const NOT_STARTED_EXIT_CODE: i32 = 127;

/// The pods of this machine. Clones share their content.
#[derive(Clone)]
pub struct Kubelet(Arc<Inner>);

struct Inner {
    /// Folder with one folder per attempt.
    folder: PathBuf,
    tokens: Arc<Tokens>,
    pods: Mutex<HashMap<String, LocalPod>>,
    changed: Notify,
}

struct LocalPod {
    observed: ObservedPod,
    /// `None` once the process has ended.
    group: Option<Group>,
}

impl Kubelet {
    /// Uses this folder. Kills the workers that an earlier `dalsegno dev` left running, and removes their folders. Returns
    /// what was still running.
    ///
    /// # Errors
    ///
    /// The folder cannot be written.
    pub async fn new(folder: PathBuf, tokens: Arc<Tokens>) -> io::Result<(Self, Vec<Orphans>)> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
        let mut orphans = Vec::new();
        for entry in fs::read_dir(&folder)? {
            let attempt = entry?.path();
            orphans.push(process::kill_orphans(&attempt).await?);
            remove_files(&attempt);
        }
        let inner = Inner { folder, tokens, pods: Mutex::default(), changed: Notify::new() };
        Ok((Self(Arc::new(inner)), orphans))
    }

    /// All pods that run or whose end may still be evidence.
    pub fn pods(&self) -> Vec<ObservedPod> {
        lock(&self.0.pods).values().map(|it| it.observed.clone()).collect()
    }

    /// Whether any process runs.
    pub fn is_busy(&self) -> bool {
        lock(&self.0.pods).values().any(|it| it.group.is_some())
    }

    /// Waits until a process has ended.
    pub async fn changed(&self) {
        self.0.changed.notified().await;
    }

    /// Starts the pod's process. If the program cannot be started, the pod fails at once.
    ///
    /// # Errors
    ///
    /// The attempt's folder cannot be created.
    pub fn run(&self, mut pod: Pod) -> io::Result<Pod> {
        let uid = Uuid::new_v4().to_string();
        let started = Timestamp::now();
        pod.metadata.uid = Some(uid.clone());
        pod.metadata.creation_timestamp = Some(Time(started));
        let folder = self.0.folder.join(pod.name_any());
        self.write_files(&folder, &pod, &uid)?;
        let spec = pod.spec.get_or_insert_default();
        spec.node_name = Some(NODE.to_owned());
        let spec = process_spec(spec.containers.first().cloned().unwrap_or_default(), &folder);
        match process::start(&spec)? {
            Ok((child, group)) => {
                let running = ContainerState {
                    running: Some(ContainerStateRunning { started_at: Some(Time(started)) }),
                    ..ContainerState::default()
                };
                pod.status = Some(status("Running", running));
                self.put(&uid, pod.clone(), Some(group));
                let (kubelet, uid) = (self.clone(), uid.clone());
                tokio::spawn(async move {
                    let (code, signal) = process::wait(child, group).await;
                    let message = read_message(&folder);
                    kubelet.ended(&uid, end(started, code, signal, message));
                    remove_files(&folder);
                });
            }
            Err(error) => {
                let message = format!("{} cannot be started: {error}", spec.command.join(" "));
                pod.status = Some(status("Pending", ContainerState::default()));
                self.put(&uid, pod.clone(), None);
                self.ended(&uid, end(started, NOT_STARTED_EXIT_CODE, None, Some(message)));
                remove_files(&folder);
            }
        }
        Ok(pod)
    }

    /// Deletes a pod: SIGTERM, then SIGKILL after the grace period. A pod that has ended is removed.
    pub fn delete(&self, uid: &str) {
        let mut pods = lock(&self.0.pods);
        let Some(pod) = pods.get_mut(uid) else { return };
        let Some(group) = pod.group else {
            pods.remove(uid);
            return;
        };
        let meta = &mut pod.observed.pod.metadata;
        let grace = i64::try_from(GRACE.as_secs()).unwrap_or_default();
        let at = Timestamp::now();
        meta.deletion_timestamp = at.checked_add(GRACE).ok().map(Time);
        meta.deletion_grace_period_seconds = Some(grace);
        pod.observed.disrupted_while_running = true;
        group.signal(Signal::TERM);
        let (kubelet, uid) = (self.clone(), uid.to_owned());
        tokio::spawn(async move {
            tokio::time::sleep(GRACE).await;
            kubelet.signal(Some(&uid), Signal::KILL);
        });
    }

    /// Marks every running pod as the target of a disruption, as an eviction does, and sends it this signal.
    pub fn disrupt(&self, reason: &str, message: &str, signal: Signal) {
        for pod in lock(&self.0.pods).values_mut() {
            let Some(group) = pod.group else { continue };
            let target = PodCondition {
                type_: "DisruptionTarget".to_owned(),
                status: "True".to_owned(),
                reason: Some(reason.to_owned()),
                message: Some(message.to_owned()),
                last_transition_time: Some(Time(Timestamp::now())),
                ..PodCondition::default()
            };
            pod.observed.pod.status.get_or_insert_default().conditions.get_or_insert_default().push(target);
            pod.observed.disrupted_while_running = true;
            group.signal(signal);
        }
    }

    /// Sends a signal to the process of this pod, or of all pods.
    pub fn signal(&self, uid: Option<&str>, signal: Signal) {
        let pods = lock(&self.0.pods);
        let selected = pods.iter().filter(|(key, _)| uid.is_none_or(|uid| uid == key.as_str()));
        selected.filter_map(|(_, pod)| pod.group).for_each(|group| group.signal(signal));
    }

    /// Removes the pods that have ended, except for the one with the UID `but`.
    pub fn remove_ended(&self, but: Option<&str>) {
        lock(&self.0.pods).retain(|uid, pod| pod.group.is_some() || Some(uid.as_str()) == but);
    }

    fn put(&self, uid: &str, pod: Pod, group: Option<Group>) {
        lock(&self.0.pods).insert(uid.to_owned(), LocalPod { observed: ObservedPod::of(pod), group });
    }

    fn ended(&self, uid: &str, state: ContainerState) {
        self.0.tokens.revoke(uid);
        if let Some(pod) = lock(&self.0.pods).get_mut(uid) {
            let succeeded = state.terminated.as_ref().is_some_and(|it| it.exit_code == 0);
            let phase = if succeeded { "Succeeded" } else { "Failed" };
            let conditions = pod.observed.pod.status.take().and_then(|it| it.conditions);
            pod.observed.pod.status = Some(PodStatus { conditions, ..status(phase, state) });
            pod.group = None;
        }
        self.0.changed.notify_one();
    }

    /// Writes the files of the pod's volume: token and input. Only the user can read them.
    fn write_files(&self, folder: &Path, pod: &Pod, uid: &str) -> io::Result<()> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        let token = self.0.tokens.issue(&pod.namespace().unwrap_or_default(), &pod.name_any(), uid);
        let input = pod.annotations().get(names::ANNOTATION_INPUT).map_or("null", String::as_str);
        for (name, text) in [(TOKEN, token.as_str()), (INPUT, input), (MESSAGE, "")] {
            let mut options = fs::OpenOptions::new();
            let file = options.create(true).truncate(true).write(true).mode(0o600);
            file.open(folder.join(name))?.write_all(text.as_bytes())?;
        }
        Ok(())
    }
}

/// The process of a container. Its volume is a folder, so its variables get other paths.
fn process_spec(container: Container, folder: &Path) -> ProcessSpec {
    let mount = container.volume_mounts.unwrap_or_default().pop().map(|it| it.mount_path);
    let here = |value: String| match mount.as_deref().and_then(|mount| value.strip_prefix(mount)) {
        Some(rest) => format!("{}{rest}", folder.display()),
        None => value,
    };
    let message = (env::TERMINATION_LOG.to_owned(), folder.join(MESSAGE).display().to_string());
    let variables = container.env.unwrap_or_default().into_iter();
    ProcessSpec {
        command: container.command.unwrap_or_default(),
        env: variables.map(|it| (it.name, here(it.value.unwrap_or_default()))).chain([message]).collect(),
        folder: folder.to_path_buf(),
    }
}

fn status(phase: &str, state: ContainerState) -> PodStatus {
    let worker = ContainerStatus {
        name: names::WORKER_CONTAINER.to_owned(),
        ready: state.running.is_some(),
        state: Some(state),
        ..ContainerStatus::default()
    };
    PodStatus {
        phase: Some(phase.to_owned()),
        container_statuses: Some(vec![worker]),
        ..PodStatus::default()
    }
}

fn end(started: Timestamp, code: i32, signal: Option<i32>, message: Option<String>) -> ContainerState {
    let terminated = ContainerStateTerminated {
        exit_code: code,
        signal,
        message,
        reason: Some(if code == 0 { "Completed" } else { "Error" }.to_owned()),
        started_at: Some(Time(started)),
        finished_at: Some(Time(Timestamp::now())),
        ..ContainerStateTerminated::default()
    };
    ContainerState { terminated: Some(terminated), ..ContainerState::default() }
}

fn read_message(folder: &Path) -> Option<String> {
    let bytes = fs::read(folder.join(MESSAGE)).ok().filter(|it| !it.is_empty())?;
    let bytes = &bytes[..bytes.len().min(MAX_MESSAGE_BYTES)];
    Some(String::from_utf8_lossy(bytes).into_owned())
}

/// Removes our files from an attempt's folder, and the folder if it is empty then. The next start removes what is left.
fn remove_files(folder: &Path) {
    for name in [TOKEN, INPUT, MESSAGE, process::LOCK, process::GROUP] {
        let _ = fs::remove_file(folder.join(name));
    }
    let _ = fs::remove_dir(folder);
}
