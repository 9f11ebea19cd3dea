//! A cache of all worker pods. A pod that is gone stays cached until its end is recorded.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use dalsegno_core::certificates::PodTrust;
use dalsegno_core::{ObservedPod, pod};
use dalsegno_crds::{AgentRun, names};
use futures::{Stream, StreamExt};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::runtime::watcher::{self, Event};
use kube::{Resource as _, ResourceExt};

use crate::mutex::lock;

/// Namespace and name of an AgentRun.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RunKey {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// Namespace and UID of an AgentRun. A pod that carries the UID in another namespace does not belong to the run.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Owner {
    /// Namespace of the AgentRun.
    pub namespace: String,
    /// UID of the AgentRun.
    pub uid: String,
}

impl Owner {
    /// Of an AgentRun.
    pub fn of(run: &impl ResourceExt) -> Self {
        Self { namespace: run.namespace().unwrap_or_default(), uid: run.uid().unwrap_or_default() }
    }
}

/// The pods of each run, as the watch last showed them. Clones share their content.
#[derive(Clone, Debug, Default)]
pub struct PodCache(Arc<Mutex<Pods>>);

#[derive(Debug, Default)]
struct Pods {
    runs: HashMap<Owner, Vec<CachedPod>>,
    /// UIDs of the pods that the current relist has shown.
    relisted: HashSet<String>,
}

/// A pod as JSON. A typed pod takes ten times the memory, mostly for empty fields.
#[derive(Debug)]
struct CachedPod {
    uid: String,
    node: Option<String>,
    /// The fields that are evidence, as JSON.
    json: Box<[u8]>,
    gone: bool,
    disrupted_while_running: bool,
    /// When the watch first showed that the worker has ended.
    end_seen: Option<Instant>,
    /// The CAs that its worker trusts. `None`: its worker has ended.
    trust: Option<Box<PodTrust>>,
}

impl CachedPod {
    /// `None` if the pod cannot be serialized; it then counts as not seen. No such pod is known.
    fn new(uid: String, observed: ObservedPod) -> Option<Self> {
        let ObservedPod { mut pod, gone, watched: _, disrupted_while_running, volume_problem: _ } = observed;
        let end_seen = (gone || pod::worker_has_ended(&pod)).then(Instant::now);
        let trust = PodTrust::of(&pod).filter(|_| !gone).map(Box::new);
        let json = serde_json::to_vec(&pod).inspect_err(log_uncacheable).ok()?.into_boxed_slice();
        let node = pod.spec.take().and_then(|spec| spec.node_name);
        Some(Self { uid, node, json, gone, disrupted_while_running, end_seen, trust })
    }

    fn pod(&self) -> Option<Pod> {
        serde_json::from_slice(&self.json).inspect_err(log_uncacheable).ok()
    }

    fn observed(&self) -> Option<ObservedPod> {
        let Self { gone, disrupted_while_running, .. } = *self;
        let pod = self.pod()?;
        Some(ObservedPod { pod, gone, watched: !gone, disrupted_while_running, volume_problem: None })
    }

    fn key(&self) -> Option<RunKey> {
        key_of(&self.pod()?)
    }
}

fn log_uncacheable(error: &serde_json::Error) {
    tracing::error!(%error, "a pod could not be cached");
}

impl PodCache {
    /// All pods of this AgentRun.
    pub fn of(&self, run: &Owner) -> Vec<ObservedPod> {
        lock(&self.0).runs.get(run).into_iter().flatten().filter_map(CachedPod::observed).collect()
    }

    /// When the watch first showed that the worker of this pod has ended.
    pub fn end_seen(&self, run: &Owner, uid: &str) -> Option<Instant> {
        lock(&self.0).runs.get(run)?.iter().find(|pod| pod.uid == uid)?.end_seen
    }

    /// What the pods trust whose worker may still run.
    pub fn trust(&self) -> Vec<PodTrust> {
        let pods = lock(&self.0);
        let running = pods.runs.values().flatten().filter(|pod| !pod.gone);
        running.filter_map(|pod| pod.trust.as_deref().cloned()).collect()
    }

    /// The runs that have a pod on this node.
    pub fn runs_on(&self, node: &str) -> Vec<RunKey> {
        let is_on_node = |it: &&CachedPod| it.node.as_deref() == Some(node);
        lock(&self.0).runs.values().flatten().filter(is_on_node).filter_map(CachedPod::key).collect()
    }

    /// Removes the run's pods that are gone, except for the one with the UID `but`.
    pub fn remove_gone(&self, run: &Owner, but: Option<&str>) {
        let mut cache = lock(&self.0);
        if let Some(pods) = cache.runs.get_mut(run) {
            pods.retain(|pod| !pod.gone || Some(pod.uid.as_str()) == but);
            if pods.is_empty() {
                cache.runs.remove(run);
            }
        }
    }

    /// The pods of all runs but these, with a finalizer that nobody removes any more.
    pub fn held_of_all_but(&self, runs: &HashSet<Owner>) -> Vec<(Owner, ObservedPod)> {
        let pods = lock(&self.0);
        let others = pods.runs.iter().filter(|(run, _)| !runs.contains(run));
        let others = others.flat_map(|(run, pods)| pods.iter().map(move |it| (run, it)));
        let observed = others.filter_map(|(run, it)| Some((run.clone(), it.observed()?)));
        observed.filter(|(_, it)| !it.gone && pod::is_external(&it.pod.metadata)).collect()
    }

    /// Removes the pods of all runs but these.
    pub fn remove_all_but(&self, runs: &HashSet<Owner>) {
        lock(&self.0).runs.retain(|run, _| runs.contains(run));
    }

    /// Applies an event of the watch. Returns the runs whose pods changed.
    fn apply(&self, event: Event<Pod>) -> Vec<RunKey> {
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
                let mut cache = lock(&self.0);
                let relisted = std::mem::take(&mut cache.relisted);
                let mut changed = Vec::new();
                for pod in cache.runs.values_mut().flatten() {
                    if !pod.gone && !relisted.contains(&pod.uid) {
                        pod.gone = true;
                        pod.end_seen.get_or_insert_with(Instant::now);
                        changed.extend(pod.key());
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

    fn put(&self, pod: Pod, gone: bool) {
        let Some((run, uid)) = ids_of(&pod) else { return };
        let mut observed = ObservedPod { gone, ..ObservedPod::of(pod::trimmed(pod)) };
        let mut cache = lock(&self.0);
        let pods = cache.runs.entry(run).or_default();
        let before = pods.iter().position(|pod| pod.uid == uid).map(|at| pods.swap_remove(at));
        observed.disrupted_while_running |= before.as_ref().is_some_and(|pod| pod.disrupted_while_running);
        pods.extend(CachedPod::new(uid, observed).map(|mut pod| {
            pod.end_seen = before.and_then(|before| before.end_seen).or(pod.end_seen);
            pod
        }));
    }
}

/// What an event of the watch changed.
pub struct PodChange {
    /// The runs whose pods changed.
    pub runs: Vec<RunKey>,
    /// The event completed a list: the cache is filled.
    pub is_listed: bool,
}

/// Applies the events of a watch to the cache.
pub fn watch(
    cache: PodCache,
    events: impl Stream<Item = watcher::Result<Event<Pod>>>,
) -> impl Stream<Item = PodChange> {
    events.filter_map(move |event| {
        let cache = cache.clone();
        async move {
            match event {
                Ok(event) => {
                    let is_listed = matches!(event, Event::InitDone);
                    Some(PodChange { runs: cache.apply(event), is_listed })
                }
                Err(error) => {
                    tracing::debug!(%error, "the watch of pods was interrupted");
                    None
                }
            }
        }
    })
}

/// The run of a pod, from its owner reference, or else from its labels. Anybody may change the labels of a pod that runs.
pub fn key_of(pod: &Pod) -> Option<RunKey> {
    let name = match owning_run(pod) {
        Some(owner) => &owner.name,
        None => pod.labels().get(names::LABEL_RUN)?,
    };
    Some(RunKey { namespace: pod.namespace()?, name: name.clone() })
}

fn ids_of(pod: &Pod) -> Option<(Owner, String)> {
    let run = match owning_run(pod) {
        Some(owner) => &owner.uid,
        None => pod.labels().get(names::LABEL_RUN_UID)?,
    };
    Some((Owner { namespace: pod.namespace()?, uid: run.clone() }, pod.uid()?))
}

fn owning_run(pod: &Pod) -> Option<&OwnerReference> {
    let is_run = |it: &&OwnerReference| it.controller == Some(true) && it.kind == AgentRun::kind(&());
    pod.owner_references().iter().find(is_run)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a panic fails the test")]

    use serde_json::{Value, json};

    use super::*;

    fn run(number: u8) -> Owner {
        Owner { namespace: "shop".into(), uid: format!("run-{number}") }
    }

    fn pod(uid: &str, status: Value) -> Pod {
        let metadata = json!({
            "name": format!("nightly-{uid}"), "namespace": "shop", "uid": uid,
            "labels": { names::LABEL_RUN: "nightly", names::LABEL_RUN_UID: "run-1", names::LABEL_ATTEMPT: "1" },
            "annotations": { names::ANNOTATION_REVISION: "sha256:r", names::ANNOTATION_INPUT: "long", "other": "x" },
        });
        let container = json!({ "name": "agent", "image": "i", "env": [{ "name": "A", "value": "b" }] });
        let spec = json!({ "nodeName": "n1", "containers": [container] });
        serde_json::from_value(json!({ "metadata": metadata, "spec": spec, "status": status })).unwrap()
    }

    fn evicted(uid: &str) -> Pod {
        let target = json!({ "type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI",
                             "lastTransitionTime": "2026-01-01T00:00:00Z" });
        pod(uid, json!({ "phase": "Running", "conditions": [target] }))
    }

    #[test]
    fn a_cached_pod_has_all_fields_that_are_evidence() {
        let cache = PodCache::default();
        let seen = evicted("a");
        assert_eq!(cache.apply(Event::Apply(seen.clone())), [key_of(&seen).unwrap()]);
        assert_eq!(cache.of(&run(1))[0].pod, pod::trimmed(seen.clone()));
        assert_ne!(cache.of(&run(1))[0].pod, seen);
        assert_eq!(cache.runs_on("n1"), [key_of(&seen).unwrap()]);
        assert_eq!((cache.runs_on("n2").len(), cache.of(&run(2)).len()), (0, 0));
    }

    #[test]
    fn a_disruption_is_remembered_after_the_pod_is_gone() {
        let cache = PodCache::default();
        cache.apply(Event::Apply(evicted("a")));
        cache.apply(Event::Delete(pod("a", json!({ "phase": "Failed" }))));
        let [seen] = cache.of(&run(1)).try_into().unwrap();
        assert!(seen.gone && seen.disrupted_while_running);
        cache.remove_gone(&run(1), Some("a"));
        assert_eq!(cache.of(&run(1)).len(), 1, "its end is not recorded yet");
        cache.remove_gone(&run(1), None);
        assert!(cache.of(&run(1)).is_empty());
    }

    #[test]
    fn the_death_of_a_pod_whose_labels_were_changed_is_seen() {
        let cache = PodCache::default();
        let mut seen = pod("a", json!({ "phase": "Running" }));
        let owner = json!({ "apiVersion": "dalsegno.dev/v1alpha1", "kind": "AgentRun", "name": "nightly", "uid": "run-1",
                            "controller": true });
        seen.metadata.owner_references = Some(vec![serde_json::from_value(owner).unwrap()]);
        let run_key = key_of(&seen).unwrap();
        cache.apply(Event::Apply(seen.clone()));
        seen.metadata.labels = None;
        seen.status.as_mut().unwrap().phase = Some("Failed".into());
        assert_eq!(cache.apply(Event::Apply(seen)), [run_key]);
        let [seen] = cache.of(&run(1)).try_into().unwrap();
        assert!(pod::worker_has_ended(&seen.pod));
    }

    #[test]
    fn a_watch_that_does_not_show_a_pod_does_not_prove_that_it_is_gone() {
        let cache = PodCache::default();
        cache.apply(Event::Apply(evicted("a")));
        assert!(cache.of(&run(1))[0].watched);
        cache.apply(Event::Delete(evicted("a")));
        assert!(!cache.of(&run(1))[0].watched);
    }

    #[test]
    fn a_pod_that_is_missing_from_a_relist_is_gone() {
        let cache = PodCache::default();
        for uid in ["a", "b"] {
            cache.apply(Event::Apply(pod(uid, json!({}))));
        }
        cache.apply(Event::Init);
        cache.apply(Event::InitApply(pod("b", json!({}))));
        assert_eq!(cache.apply(Event::InitDone), [key_of(&pod("a", json!({}))).unwrap()]);
        let gone = |uid: &str| cache.of(&run(1)).iter().find(|it| it.uid() == uid).unwrap().gone;
        assert!(gone("a") && !gone("b"));
    }

    #[test]
    fn a_pod_of_another_namespace_does_not_belong_to_the_run_whose_uid_it_carries() {
        let cache = PodCache::default();
        let mut foreign = pod("b", json!({}));
        foreign.metadata.namespace = Some("elsewhere".into());
        cache.apply(Event::Apply(pod("a", json!({}))));
        assert_eq!(
            cache.apply(Event::Apply(foreign)),
            [RunKey { namespace: "elsewhere".into(), name: "nightly".into() }]
        );
        assert_eq!(cache.of(&run(1)).iter().map(ObservedPod::uid).collect::<Vec<_>>(), ["a"]);
    }

    #[test]
    fn late_events_of_a_deleted_runs_pods_are_removed_and_evidence_of_other_runs_stays() {
        let cache = PodCache::default();
        let deleted = pod("a", json!({ "phase": "Failed" }));
        cache.apply(Event::Delete(deleted.clone()));
        cache.remove_all_but(&[run(1)].into());
        assert_eq!(cache.of(&run(1)).len(), 1, "its end is not recorded yet");
        for event in [Event::Apply, Event::Delete] {
            cache.remove_all_but(&HashSet::new());
            assert!(lock(&cache.0).runs.is_empty());
            cache.apply(event(deleted.clone()));
        }
        cache.remove_all_but(&[run(2)].into());
        assert!(lock(&cache.0).runs.is_empty());
    }
}
