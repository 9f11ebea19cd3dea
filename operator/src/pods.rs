//! Every pod of ours, as last seen: also the ones that are gone, until their end is recorded.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};

use dalsegno_core::{ObservedPod, pod};
use dalsegno_crds::names;
use futures::{Stream, StreamExt};
use k8s_openapi::api::core::v1::Pod;
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

/// Namespace and UID of an AgentRun: a pod that bears its UID elsewhere is none of its pods.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Owner {
    /// Its namespace.
    pub namespace: String,
    /// Its UID.
    pub uid: String,
}

impl Owner {
    /// Of an AgentRun as the API server shows it.
    pub fn of(run: &impl ResourceExt) -> Self {
        Self { namespace: run.namespace().unwrap_or_default(), uid: run.uid().unwrap_or_default() }
    }
}

/// What was last seen of each pod.
///
/// A cache may start work and prove nothing: `observe` asks the API server before it believes that a pod is gone.
#[derive(Clone, Debug, Default)]
pub struct PodBook(Arc<Mutex<Book>>);

#[derive(Debug, Default)]
struct Book {
    runs: HashMap<Owner, Vec<Kept>>,
    /// UIDs of pods seen since a relist began.
    relisted: HashSet<String>,
}

/// A pod as it is kept: the fields of a typed one take ten times as much, and most of them are empty.
#[derive(Debug)]
struct Kept {
    uid: String,
    node: Option<String>,
    /// What is evidence, as JSON.
    json: Box<[u8]>,
    gone: bool,
    disrupted_while_running: bool,
}

impl Kept {
    /// `None`, as if it had not been seen, if it makes no JSON. None is known that makes none.
    fn of(uid: String, sight: ObservedPod) -> Option<Self> {
        let ObservedPod { mut pod, gone, disrupted_while_running } = sight;
        let json = serde_json::to_vec(&pod).inspect_err(unkept).ok()?.into_boxed_slice();
        let node = pod.spec.take().and_then(|spec| spec.node_name);
        Some(Self { uid, node, json, gone, disrupted_while_running })
    }

    fn pod(&self) -> Option<Pod> {
        serde_json::from_slice(&self.json).inspect_err(unkept).ok()
    }

    fn sight(&self) -> Option<ObservedPod> {
        let Self { gone, disrupted_while_running, .. } = *self;
        Some(ObservedPod { pod: self.pod()?, gone, disrupted_while_running })
    }

    fn key(&self) -> Option<RunKey> {
        key_of(&self.pod()?)
    }
}

fn unkept(error: &serde_json::Error) {
    tracing::error!(%error, "what was seen of a pod could not be kept");
}

impl PodBook {
    /// Every pod of this AgentRun.
    pub fn of(&self, run: &Owner) -> Vec<ObservedPod> {
        lock(&self.0).runs.get(run).into_iter().flatten().filter_map(Kept::sight).collect()
    }

    /// Runs that have a pod on this node.
    pub fn runs_on(&self, node: &str) -> Vec<RunKey> {
        let on_node = |it: &&Kept| it.node.as_deref() == Some(node);
        lock(&self.0).runs.values().flatten().filter(on_node).filter_map(Kept::key).collect()
    }

    /// Forgets pods that are gone, but for this one.
    pub fn forget_gone(&self, run: &Owner, but: Option<&str>) {
        let mut book = lock(&self.0);
        if let Some(pods) = book.runs.get_mut(run) {
            pods.retain(|kept| !kept.gone || Some(kept.uid.as_str()) == but);
            if pods.is_empty() {
                book.runs.remove(run);
            }
        }
    }

    /// Forgets every run but these.
    pub fn forget_all_but(&self, runs: &HashSet<Owner>) {
        lock(&self.0).runs.retain(|run, _| runs.contains(run));
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
                for kept in book.runs.values_mut().flatten() {
                    if !kept.gone && !relisted.contains(&kept.uid) {
                        kept.gone = true;
                        changed.extend(kept.key());
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
        let mut seen = ObservedPod { gone, ..ObservedPod::of(pod::trimmed(pod)) };
        let mut book = lock(&self.0);
        let pods = book.runs.entry(run).or_default();
        let known = pods.iter().position(|kept| kept.uid == uid).map(|at| pods.swap_remove(at));
        seen.disrupted_while_running |= known.is_some_and(|kept| kept.disrupted_while_running);
        pods.extend(Kept::of(uid, seen));
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

fn ids_of(pod: &Pod) -> Option<(Owner, String)> {
    let run = Owner { namespace: pod.namespace()?, uid: pod.labels().get(names::LABEL_RUN_UID)?.clone() };
    Some((run, pod.uid()?))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a case that cannot go on has failed")]

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
    fn a_pod_is_told_of_as_it_was_seen_but_for_what_is_no_evidence() {
        let book = PodBook::default();
        let seen = evicted("a");
        assert_eq!(book.take(Event::Apply(seen.clone())), [key_of(&seen).unwrap()]);
        assert_eq!(book.of(&run(1))[0].pod, pod::trimmed(seen.clone()));
        assert_ne!(book.of(&run(1))[0].pod, seen);
        assert_eq!(book.runs_on("n1"), [key_of(&seen).unwrap()]);
        assert_eq!((book.runs_on("n2").len(), book.of(&run(2)).len()), (0, 0));
    }

    #[test]
    fn a_disruption_that_was_seen_before_the_end_is_remembered_after_it() {
        let book = PodBook::default();
        book.take(Event::Apply(evicted("a")));
        book.take(Event::Delete(pod("a", json!({ "phase": "Failed" }))));
        let [seen] = book.of(&run(1)).try_into().unwrap();
        assert!(seen.gone && seen.disrupted_while_running);
        book.forget_gone(&run(1), Some("a"));
        assert_eq!(book.of(&run(1)).len(), 1, "its end is not recorded yet");
        book.forget_gone(&run(1), None);
        assert!(book.of(&run(1)).is_empty());
    }

    #[test]
    fn a_pod_that_a_relist_does_not_name_is_gone() {
        let book = PodBook::default();
        for uid in ["a", "b"] {
            book.take(Event::Apply(pod(uid, json!({}))));
        }
        book.take(Event::Init);
        book.take(Event::InitApply(pod("b", json!({}))));
        assert_eq!(book.take(Event::InitDone), [key_of(&pod("a", json!({}))).unwrap()]);
        let gone = |uid: &str| book.of(&run(1)).iter().find(|it| it.uid() == uid).unwrap().gone;
        assert!(gone("a") && !gone("b"));
    }

    #[test]
    fn a_pod_of_another_namespace_is_none_of_the_runs_whose_uid_it_bears() {
        let book = PodBook::default();
        let mut foreign = pod("b", json!({}));
        foreign.metadata.namespace = Some("elsewhere".into());
        book.take(Event::Apply(pod("a", json!({}))));
        assert_eq!(
            book.take(Event::Apply(foreign)),
            [RunKey { namespace: "elsewhere".into(), name: "nightly".into() }]
        );
        assert_eq!(book.of(&run(1)).iter().map(ObservedPod::uid).collect::<Vec<_>>(), ["a"]);
    }

    #[test]
    fn what_is_heard_of_the_pods_of_a_deleted_run_is_forgotten_and_evidence_of_others_is_kept() {
        let book = PodBook::default();
        let deleted = pod("a", json!({ "phase": "Failed" }));
        book.take(Event::Delete(deleted.clone()));
        book.forget_all_but(&[run(1)].into());
        assert_eq!(book.of(&run(1)).len(), 1, "its end is not recorded yet");
        for event in [Event::Apply, Event::Delete] {
            book.forget_all_but(&HashSet::new());
            assert!(lock(&book.0).runs.is_empty());
            book.take(event(deleted.clone()));
        }
        book.forget_all_but(&[run(2)].into());
        assert!(lock(&book.0).runs.is_empty());
    }
}
