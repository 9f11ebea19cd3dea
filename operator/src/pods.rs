//! Every pod of ours, as last seen: also the ones that are gone, until their end is recorded.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};

use dalsegno_core::{PodSight, pod};
use dalsegno_crds::names;
use futures::{Stream, StreamExt};
use k8s_openapi::api::core::v1::{Container, Pod};
use kube::ResourceExt;
use kube::runtime::watcher::{self, Event};

use crate::sync::lock;

/// Name and namespace of an AgentRun.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RunKey {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// The last status seen of each pod UID.
///
/// A cache may start work and prove nothing: `observe` asks the API server before it believes that a pod is gone.
#[derive(Clone, Debug, Default)]
pub struct PodBook(Arc<Mutex<Book>>);

#[derive(Debug, Default)]
struct Book {
    /// By UID of the AgentRun, then of the pod.
    runs: HashMap<String, HashMap<String, PodSight>>,
    /// UIDs of pods seen since a relist began.
    relisted: HashSet<String>,
}

impl PodBook {
    /// Every pod of this AgentRun.
    pub fn of(&self, run_uid: &str) -> Vec<PodSight> {
        lock(&self.0).runs.get(run_uid).map(|pods| pods.values().cloned().collect()).unwrap_or_default()
    }

    /// Runs that have a pod on this node.
    pub fn runs_on(&self, node: &str) -> Vec<RunKey> {
        let on_node =
            |it: &&PodSight| it.pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) == Some(node);
        lock(&self.0)
            .runs
            .values()
            .flat_map(HashMap::values)
            .filter(on_node)
            .filter_map(|it| key_of(&it.pod))
            .collect()
    }

    /// Forgets pods that are gone, but for this one.
    pub fn forget_gone(&self, run_uid: &str, but: Option<&str>) {
        let mut book = lock(&self.0);
        if let Some(pods) = book.runs.get_mut(run_uid) {
            pods.retain(|uid, seen| !seen.gone || Some(uid.as_str()) == but);
            if pods.is_empty() {
                book.runs.remove(run_uid);
            }
        }
    }

    /// Forgets a run.
    pub fn forget(&self, run_uid: &str) {
        lock(&self.0).runs.remove(run_uid);
    }

    /// Takes in what a watch said; answers whose pods changed.
    fn take(&self, event: Event<Pod>) -> Vec<RunKey> {
        match event {
            Event::Init => {
                lock(&self.0).relisted.clear();
                Vec::new()
            }
            Event::InitApply(pod) => {
                let key = key_of(&pod);
                lock(&self.0).relisted.extend(pod.uid());
                self.put(pod, false);
                key.into_iter().collect()
            }
            Event::InitDone => {
                let mut book = lock(&self.0);
                let relisted = std::mem::take(&mut book.relisted);
                let mut changed = Vec::new();
                for (uid, seen) in book.runs.values_mut().flatten() {
                    if !seen.gone && !relisted.contains(uid) {
                        seen.gone = true;
                        changed.extend(key_of(&seen.pod));
                    }
                }
                changed
            }
            Event::Apply(pod) => {
                let key = key_of(&pod);
                self.put(pod, false);
                key.into_iter().collect()
            }
            Event::Delete(pod) => {
                let key = key_of(&pod);
                self.put(pod, true);
                key.into_iter().collect()
            }
        }
    }

    fn put(&self, mut pod: Pod, gone: bool) {
        let Some((run, uid)) = ids_of(&pod) else { return };
        trim(&mut pod);
        let disrupted = pod::is_disrupted(&pod) && !pod::has_ended(&pod);
        let mut book = lock(&self.0);
        let pods = book.runs.entry(run).or_default();
        let before = pods.get(&uid).is_some_and(|seen| seen.disrupted_while_running);
        pods.insert(uid, PodSight { pod, gone, disrupted_while_running: before || disrupted });
    }
}

/// Keeps the book, and says whose pods changed.
pub fn follow(
    book: PodBook,
    watch: impl Stream<Item = watcher::Result<Event<Pod>>>,
) -> impl Stream<Item = (Vec<RunKey>, bool)> {
    watch.filter_map(move |event| {
        let book = book.clone();
        async move {
            match event {
                Ok(event) => {
                    let ready = matches!(event, Event::InitDone);
                    Some((book.take(event), ready))
                }
                Err(error) => {
                    tracing::debug!(%error, "the watch of pods was interrupted");
                    None
                }
            }
        }
    })
}

/// Whose pod it is, by its labels.
pub fn key_of(pod: &Pod) -> Option<RunKey> {
    Some(RunKey { namespace: pod.namespace()?, name: pod.labels().get(names::LABEL_RUN)?.clone() })
}

fn ids_of(pod: &Pod) -> Option<(String, String)> {
    Some((pod.labels().get(names::LABEL_RUN_UID)?.clone(), pod.uid()?))
}

/// Keeps only what is evidence: thousands of pods are held.
fn trim(pod: &mut Pod) {
    pod.metadata.managed_fields = None;
    if let Some(annotations) = &mut pod.metadata.annotations {
        annotations.retain(|key, _| key.starts_with(names::PREFIX) && key != names::ANNOTATION_INPUT);
    }
    if let Some(spec) = &mut pod.spec {
        let containers = spec.containers.drain(..);
        let containers = containers
            .map(|it| Container { name: it.name, image: it.image, ..Container::default() })
            .collect();
        let node_name = spec.node_name.take();
        *spec = k8s_openapi::api::core::v1::PodSpec { containers, node_name, ..Default::default() };
    }
}
