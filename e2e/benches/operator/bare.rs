//! The floors of the reaction bench: bare loops on kube. When a pod has ended or is gone, they commit one row and
//! create the pod again under the next number.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use dalsegno_e2e::{Result, objects};
use futures::{Stream, StreamExt as _, TryStreamExt as _, future};
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::api::{Api, ObjectMeta, PostParams};
use kube::runtime::controller::{Action, Controller};
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Client, ResourceExt as _};

use crate::floor::Floor;

/// The row. An attempt's row has about this size.
const ROW: [u8; 256] = [7; 256];

/// The label of a loop's objects. Its value is the loop's name.
const LABEL: &str = "bench";

/// A loop on kube.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loop {
    /// Handles each event of its watch at once: one pod at a time, without retries.
    Watch,
    /// kube's controller: events put names into a queue, and each name is reconciled alone.
    Controller,
}

impl Loop {
    /// The loop's name, which is the prefix of its pods' names.
    pub fn name(self) -> &'static str {
        match self {
            Self::Watch => "watch",
            Self::Controller => "controller",
        }
    }

    /// Creates the first pod of this name as a copy of `model`, and the ConfigMap that the controller reconciles.
    pub async fn start(self, client: &Client, model: &Pod, name: &str) -> Result {
        let namespace = model.namespace().unwrap_or_default();
        let pod = self.copy_of(model, format!("{name}-1"));
        let metadata = ObjectMeta { name: Some(name.into()), ..pod.metadata.clone() };
        let owner = ConfigMap { metadata, ..ConfigMap::default() };
        Api::namespaced(client.clone(), &namespace).create(&PostParams::default(), &owner).await?;
        Api::namespaced(client.clone(), &namespace).create(&PostParams::default(), &pod).await?;
        Ok(())
    }

    /// Loops until the watch fails.
    pub async fn run(self, client: Client, namespace: String, floor: Floor) -> Result {
        let pods = Api::namespaced(client.clone(), &namespace);
        let state =
            LoopState { kind: self, pods: pods.clone(), floor: floor.into(), queue: Mutex::default() };
        let state = Arc::new(state);
        let mut lost_pods = lost_pods(watcher(pods, self.watch_config())).boxed();
        match self {
            Self::Watch => {
                while let Some(pod) = lost_pods.try_next().await? {
                    state.replace(&pod).await?;
                }
            }
            Self::Controller => {
                let queue = state.clone();
                let requests =
                    lost_pods.filter_map(move |pod| future::ready(pod.ok().map(|pod| queue.enqueue(pod))));
                Controller::new(Api::<ConfigMap>::namespaced(client, &namespace), self.watch_config())
                    .reconcile_on(requests)
                    .run(LoopState::reconcile, |_, _, _| Action::await_change(), state)
                    .for_each(|_| future::ready(()))
                    .await;
            }
        }
        Ok(())
    }

    fn watch_config(self) -> watcher::Config {
        watcher::Config::default().labels(&format!("{LABEL}={}", self.name()))
    }

    /// A copy of a pod for this loop, not yet on a node.
    fn copy_of(self, pod: &Pod, name: String) -> Pod {
        let mut spec = pod.spec.clone();
        if let Some(spec) = &mut spec {
            spec.node_name = None;
        }
        let metadata = ObjectMeta {
            name: Some(name),
            annotations: pod.metadata.annotations.clone(),
            labels: Some([(LABEL.to_owned(), self.name().to_owned())].into()),
            ..ObjectMeta::default()
        };
        Pod { metadata, spec, status: None }
    }
}

/// The pods with number 1 that have ended or are gone.
fn lost_pods(
    events: impl Stream<Item = watcher::Result<Event<Pod>>>,
) -> impl Stream<Item = watcher::Result<Pod>> {
    events.try_filter_map(|event| {
        future::ready(Ok(match event {
            Event::Apply(pod) if objects::has_ended(&pod) => Some(pod),
            Event::Delete(pod) => Some(pod),
            _ => None,
        }
        .filter(|pod| base_name(pod).is_some())))
    })
}

/// The name of a pod with number 1, without the number.
fn base_name(pod: &Pod) -> Option<&str> {
    pod.metadata.name.as_deref()?.strip_suffix("-1")
}

/// The state of a loop.
struct LoopState {
    kind: Loop,
    pods: Api<Pod>,
    floor: tokio::sync::Mutex<Floor>,
    /// Lost pods that wait for the controller, by their base names.
    queue: Mutex<HashMap<String, Pod>>,
}

impl LoopState {
    async fn replace(&self, pod: &Pod) -> kube::Result<()> {
        let name = format!("{}-2", base_name(pod).unwrap_or_default());
        self.floor.lock().await.insert(&ROW).await;
        self.pods.create(&PostParams::default(), &self.kind.copy_of(pod, name)).await?;
        Ok(())
    }

    /// Stores the pod for [`Self::reconcile`] and returns the object to reconcile.
    fn enqueue(&self, pod: Pod) -> ObjectRef<ConfigMap> {
        let (name, namespace) =
            (base_name(&pod).unwrap_or_default().to_owned(), pod.namespace().unwrap_or_default());
        self.queue.lock().unwrap().insert(name.clone(), pod);
        ObjectRef::new(&name).within(&namespace)
    }

    async fn reconcile(object: Arc<ConfigMap>, state: Arc<Self>) -> kube::Result<Action> {
        let lost = state.queue.lock().unwrap().remove(&object.name_any());
        if let Some(pod) = lost {
            state.replace(&pod).await?;
        }
        Ok(Action::await_change())
    }
}
