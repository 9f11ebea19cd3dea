//! The floors of a reaction: bare loops on kube. A pod that has ended or is gone is made again, under the next number,
//! once one row is committed.

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

/// Bytes of the row: about what a row of an attempt has.
const ROW: [u8; 256] = [7; 256];

/// The label that a loop knows its objects by; its name is the value.
const LABEL: &str = "bench";

/// A loop on kube.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loop {
    /// Acts on each event of its watch at once: two pods never at the same time, and what failed is not tried again.
    Watch,
    /// kube's controller: events queue the name of what they are about, and each name is worked on alone.
    Controller,
}

impl Loop {
    /// Its name, with which those of its pods begin.
    pub fn name(self) -> &'static str {
        match self {
            Self::Watch => "watch",
            Self::Controller => "controller",
        }
    }

    /// Makes the first pod of this name, like `model`, and what the controller is asked to look at.
    pub async fn start(self, client: &Client, model: &Pod, name: &str) -> Result {
        let namespace = model.namespace().unwrap_or_default();
        let pod = self.like(model, format!("{name}-1"));
        let metadata = ObjectMeta { name: Some(name.into()), ..pod.metadata.clone() };
        let whole = ConfigMap { metadata, ..ConfigMap::default() };
        Api::namespaced(client.clone(), &namespace).create(&PostParams::default(), &whole).await?;
        Api::namespaced(client.clone(), &namespace).create(&PostParams::default(), &pod).await?;
        Ok(())
    }

    /// Loops until the watch fails.
    pub async fn run(self, client: Client, namespace: String, floor: Floor) -> Result {
        let pods = Api::namespaced(client.clone(), &namespace);
        let repair = Repair { by: self, pods: pods.clone(), floor: floor.into(), waiting: Mutex::default() };
        let repair = Arc::new(repair);
        let mut lost = lost(watcher(pods, self.objects())).boxed();
        match self {
            Self::Watch => {
                while let Some(pod) = lost.try_next().await? {
                    repair.make_again(&pod).await?;
                }
            }
            Self::Controller => {
                let queue = repair.clone();
                let wakes = lost.filter_map(move |pod| future::ready(pod.ok().map(|pod| queue.queue(pod))));
                Controller::new(Api::<ConfigMap>::namespaced(client, &namespace), self.objects())
                    .reconcile_on(wakes)
                    .run(Repair::reconcile, |_, _, _| Action::await_change(), repair)
                    .for_each(|_| future::ready(()))
                    .await;
            }
        }
        Ok(())
    }

    fn objects(self) -> watcher::Config {
        watcher::Config::default().labels(&format!("{LABEL}={}", self.name()))
    }

    /// A new pod of the loop like this one, on no node yet.
    fn like(self, pod: &Pod, name: String) -> Pod {
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

/// First pods that have ended or are gone.
fn lost(events: impl Stream<Item = watcher::Result<Event<Pod>>>) -> impl Stream<Item = watcher::Result<Pod>> {
    events.try_filter_map(|event| {
        future::ready(Ok(match event {
            Event::Apply(pod) if objects::has_ended(&pod) => Some(pod),
            Event::Delete(pod) => Some(pod),
            _ => None,
        }
        .filter(|pod| whole(pod).is_some())))
    })
}

/// What a first pod's name is made of.
fn whole(pod: &Pod) -> Option<&str> {
    pod.metadata.name.as_deref()?.strip_suffix("-1")
}

/// What a loop needs to make a pod again.
struct Repair {
    by: Loop,
    pods: Api<Pod>,
    floor: tokio::sync::Mutex<Floor>,
    /// Lost pods that wait for the controller's call, by what their names are made of.
    waiting: Mutex<HashMap<String, Pod>>,
}

impl Repair {
    async fn make_again(&self, pod: &Pod) -> kube::Result<()> {
        let name = format!("{}-2", whole(pod).unwrap_or_default());
        self.floor.lock().await.insert(&ROW).await;
        self.pods.create(&PostParams::default(), &self.by.like(pod, name)).await?;
        Ok(())
    }

    /// Keeps the pod for [`Self::reconcile`] and says what to call it for.
    fn queue(&self, pod: Pod) -> ObjectRef<ConfigMap> {
        let (name, namespace) =
            (whole(&pod).unwrap_or_default().to_owned(), pod.namespace().unwrap_or_default());
        self.waiting.lock().unwrap().insert(name.clone(), pod);
        ObjectRef::new(&name).within(&namespace)
    }

    async fn reconcile(thing: Arc<ConfigMap>, repair: Arc<Self>) -> kube::Result<Action> {
        let lost = repair.waiting.lock().unwrap().remove(&thing.name_any());
        if let Some(pod) = lost {
            repair.make_again(&pod).await?;
        }
        Ok(Action::await_change())
    }
}
