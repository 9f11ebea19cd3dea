//! What the watch of AgentApprovals has shown, by run.
//!
//! A cache may start work, but proves nothing: an approval times out only after a live read.
//!
//! Of an approval that is over, only a stub is kept: a run keeps up to twenty of them, and each may have many kilobytes.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Mutex;

use dalsegno_core::approvals::{ObservedApproval, OverApproval, is_over};
use dalsegno_crds::AgentApproval;
use kube::ResourceExt;
use kube::runtime::watcher::Event;

use super::pods::RunKey;
use super::raw_object::RawApproval;
use crate::mutex::lock;

/// The AgentApprovals that the watch has shown.
#[derive(Default)]
pub struct ApprovalCache(Mutex<Approvals>);

#[derive(Default)]
struct Approvals {
    /// By UID of the AgentRun that they name, and by their own namespace and name.
    by_run: HashMap<String, BTreeMap<(String, String), Cached>>,
    /// UID of the AgentRun of each.
    run_of: HashMap<(String, String), String>,
    /// What a list that is not complete yet has shown.
    listed: HashSet<(String, String)>,
}

struct Cached {
    /// Name of the AgentRun that it names.
    run: Box<str>,
    object: CachedObject,
}

enum CachedObject {
    Pending(Box<AgentApproval>),
    Over(OverApproval),
}

impl Cached {
    fn of(approval: AgentApproval) -> Self {
        let run = approval.spec.run_ref.name.as_str().into();
        let object = match is_over(&approval) {
            true => CachedObject::Over(OverApproval::of(&ObservedApproval::cached(approval))),
            false => CachedObject::Pending(Box::new(approval)),
        };
        Self { run, object }
    }
}

impl ApprovalCache {
    /// The approvals that name the AgentRun with this UID, and what is kept of those that are over.
    pub fn of(&self, run: &str) -> (Vec<ObservedApproval>, Vec<OverApproval>) {
        let (mut pending, mut over) = (Vec::new(), Vec::new());
        for cached in lock(&self.0).by_run.get(run).into_iter().flat_map(BTreeMap::values) {
            match &cached.object {
                CachedObject::Pending(object) => pending.push(ObservedApproval::cached((**object).clone())),
                CachedObject::Over(stub) => over.push(stub.clone()),
            }
        }
        (pending, over)
    }

    /// The AgentRuns that approvals of this cache name.
    pub fn runs(&self) -> Vec<RunKey> {
        let approvals = lock(&self.0);
        let first = |it: &BTreeMap<_, _>| it.iter().next().map(|(key, cached)| run_of(key, cached));
        approvals.by_run.values().filter_map(first).collect()
    }

    /// Applies an event of the watch. Returns the runs that it concerns. An object that cannot be parsed counts as
    /// missing: only the operator writes these objects.
    pub fn apply(&self, event: Event<RawApproval>) -> Vec<RunKey> {
        let mut approvals = lock(&self.0);
        match event {
            Event::Init => {
                approvals.listed.clear();
                Vec::new()
            }
            Event::InitApply(object) => {
                approvals.listed.insert(key_of(&object));
                approvals.add(&object).into_iter().collect()
            }
            Event::InitDone => {
                let listed = std::mem::take(&mut approvals.listed);
                let gone = approvals.run_of.keys().filter(|it| !listed.contains(*it)).cloned();
                let gone: Vec<_> = gone.collect();
                gone.iter().filter_map(|it| approvals.remove(it)).collect()
            }
            Event::Apply(object) => approvals.add(&object).into_iter().collect(),
            Event::Delete(object) => approvals.remove(&key_of(&object)).into_iter().collect(),
        }
    }
}

impl Approvals {
    fn add(&mut self, object: &RawApproval) -> Option<RunKey> {
        let key = key_of(object);
        let approval = match object.parse() {
            Ok(approval) => approval,
            Err(error) => {
                tracing::warn!(namespace = key.0, approval = key.1, %error, "an AgentApproval cannot be parsed");
                return self.remove(&key);
            }
        };
        self.remove(&key);
        let uid = approval.spec.run_ref.uid.clone();
        self.run_of.insert(key.clone(), uid.clone());
        let cached = Cached::of(approval);
        let run = run_of(&key, &cached);
        self.by_run.entry(uid).or_default().insert(key, cached);
        Some(run)
    }

    fn remove(&mut self, key: &(String, String)) -> Option<RunKey> {
        let uid = self.run_of.remove(key)?;
        let of_run = self.by_run.get_mut(&uid)?;
        let removed = of_run.remove(key);
        if of_run.is_empty() {
            self.by_run.remove(&uid);
        }
        removed.as_ref().map(|it| run_of(key, it))
    }
}

fn key_of(object: &RawApproval) -> (String, String) {
    (object.namespace().unwrap_or_default(), object.name_any())
}

fn run_of((namespace, _): &(String, String), cached: &Cached) -> RunKey {
    RunKey { namespace: namespace.clone(), name: cached.run.as_ref().into() }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a panic fails the test")]

    use serde_json::json;

    use super::*;

    fn approval(name: &str, run: &str) -> RawApproval {
        let hash = format!("sha256:{}", "0".repeat(64));
        let object = json!({
            "apiVersion": "dalsegno.dev/v1alpha1", "kind": "AgentApproval",
            "metadata": { "name": name, "namespace": "shop" },
            "spec": { "runRef": { "name": run, "uid": format!("uid of {run}") }, "waitID": "pay", "epoch": 1, "turn": 1,
                      "proposalHash": hash, "title": "t", "summary": "s", "onTimeout": "Answer", "fourEyes": false },
        });
        serde_json::from_str(&object.to_string()).unwrap()
    }

    fn names(cache: &ApprovalCache, run: &str) -> Vec<String> {
        cache.of(&format!("uid of {run}")).0.iter().map(|it| it.name().to_owned()).collect()
    }

    fn woken(runs: Vec<RunKey>) -> Vec<String> {
        runs.into_iter().map(|it| it.name).collect()
    }

    #[test]
    fn a_change_wakes_the_run_that_the_approval_names_and_a_list_removes_what_is_gone() {
        let cache = ApprovalCache::default();
        for event in
            [Event::Init, Event::InitApply(approval("a", "one")), Event::InitApply(approval("b", "two"))]
        {
            cache.apply(event);
        }
        assert!(cache.apply(Event::InitDone).is_empty());
        assert_eq!(woken(cache.apply(Event::Apply(approval("c", "one")))), ["one"]);
        assert_eq!(names(&cache, "one"), ["a", "c"]);
        assert_eq!(woken(cache.apply(Event::Delete(approval("a", "one")))), ["one"]);
        assert_eq!(
            (names(&cache, "one"), names(&cache, "two")),
            (vec!["c".to_owned()], vec!["b".to_owned()])
        );
        cache.apply(Event::Init);
        cache.apply(Event::InitApply(approval("b", "two")));
        assert_eq!(woken(cache.apply(Event::InitDone)), ["one"]);
        assert!(names(&cache, "one").is_empty());
    }

    #[test]
    fn of_an_approval_that_is_over_only_a_stub_is_kept() {
        let cache = ApprovalCache::default();
        cache.apply(Event::Apply(approval("a", "one")));
        let mut over = serde_json::to_value(approval("a", "one")).unwrap();
        (over["metadata"]["uid"], over["metadata"]["creationTimestamp"]) =
            (json!("uid of a"), json!("2026-05-01T00:00:00Z"));
        over["status"] = json!({ "conditions": [{ "type": "Applied", "status": "True", "reason": "Answered",
            "message": "", "lastTransitionTime": "2026-05-01T00:00:00Z" }] });
        let over: RawApproval = serde_json::from_str(&over.to_string()).unwrap();
        assert_eq!(woken(cache.apply(Event::Apply(over))), ["one"]);
        let stub = OverApproval {
            name: "a".into(),
            uid: "uid of a".into(),
            created: "2026-05-01T00:00:00Z".parse().ok(),
            is_being_deleted: false,
        };
        let (pending, kept) = cache.of("uid of one");
        assert_eq!((pending.len(), kept), (0, vec![stub]));
        assert_eq!(woken(cache.runs()), ["one"]);
        assert_eq!(woken(cache.apply(Event::Delete(approval("a", "one")))), ["one"]);
        assert!(cache.of("uid of one").1.is_empty());
    }

    #[test]
    fn an_approval_that_cannot_be_parsed_counts_as_missing() {
        let cache = ApprovalCache::default();
        cache.apply(Event::Apply(approval("a", "one")));
        let broken = json!({ "apiVersion": "dalsegno.dev/v1alpha1", "kind": "AgentApproval", "spec": 7,
                             "metadata": { "name": "a", "namespace": "shop" } });
        let broken: RawApproval = serde_json::from_str(&broken.to_string()).unwrap();
        assert_eq!(woken(cache.apply(Event::Apply(broken))), ["one"]);
        assert!(names(&cache, "one").is_empty());
    }
}
