//! What the watch of AgentApprovals has shown, by run.
//!
//! A cache may start work, but proves nothing: an approval times out only after a live read.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Mutex;

use dalsegno_core::approvals::ObservedApproval;
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
    by_run: HashMap<String, BTreeMap<(String, String), AgentApproval>>,
    /// UID of the AgentRun of each.
    run_of: HashMap<(String, String), String>,
    /// What a list that is not complete yet has shown.
    listed: HashSet<(String, String)>,
}

impl ApprovalCache {
    /// The approvals that name the AgentRun with this UID.
    pub fn of(&self, run: &str) -> Vec<ObservedApproval> {
        let found = lock(&self.0);
        let found = found.by_run.get(run).into_iter().flat_map(BTreeMap::values);
        found.map(|object| ObservedApproval { object: object.clone(), live: false }).collect()
    }

    /// The AgentRuns that approvals of this cache name.
    pub fn runs(&self) -> Vec<RunKey> {
        let approvals = lock(&self.0);
        approvals.by_run.values().filter_map(|it| it.values().next()).map(run_of).collect()
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
        let run = run_of(&approval);
        let uid = approval.spec.run_ref.uid.clone();
        self.run_of.insert(key.clone(), uid.clone());
        self.by_run.entry(uid).or_default().insert(key, approval);
        Some(run)
    }

    fn remove(&mut self, key: &(String, String)) -> Option<RunKey> {
        let uid = self.run_of.remove(key)?;
        let of_run = self.by_run.get_mut(&uid)?;
        let removed = of_run.remove(key);
        if of_run.is_empty() {
            self.by_run.remove(&uid);
        }
        removed.as_ref().map(run_of)
    }
}

fn key_of(object: &RawApproval) -> (String, String) {
    (object.namespace().unwrap_or_default(), object.name_any())
}

fn run_of(approval: &AgentApproval) -> RunKey {
    RunKey { namespace: approval.namespace().unwrap_or_default(), name: approval.spec.run_ref.name.clone() }
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
        cache.of(&format!("uid of {run}")).iter().map(|it| it.name().to_owned()).collect()
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
