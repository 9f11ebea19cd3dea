//! A cache of the readiness of all nodes. A node that is gone stays cached while pods are on it.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};

use dalsegno_core::ObservedNode;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use kube::runtime::watcher::Event;

use crate::mutex::lock;

/// Whether each node is Ready, and since when. Clones share their content.
#[derive(Clone, Debug, Default)]
pub struct NodeCache(Arc<Mutex<Nodes>>);

#[derive(Debug, Default)]
struct Nodes {
    by_name: HashMap<String, CachedNode>,
    /// Names of the nodes that the current relist has shown.
    relisted: HashSet<String>,
}

#[derive(Debug)]
struct CachedNode {
    observed: ObservedNode,
    /// The watch shows the node. If false, the watch has never shown it, or it showed that the node is gone.
    watched: bool,
}

impl NodeCache {
    /// A node that the watch shows.
    pub fn watched(&self, name: &str) -> Option<ObservedNode> {
        lock(&self.0).by_name.get(name).filter(|it| it.watched).map(|it| it.observed)
    }

    /// Number of nodes that are Ready.
    pub fn ready_count(&self) -> usize {
        lock(&self.0).by_name.values().filter(|it| it.watched && it.observed.ready).count()
    }

    /// Records a live read of a node that the watch does not show. Returns its readiness: of a node that does not exist,
    /// not Ready since it was first missing.
    ///
    /// The result is valid for one observation only, and the node stays unwatched: the watch may have shown its deletion
    /// while the read was under way, and would not show it again.
    pub fn record_read(&self, name: &str, node: Option<&Node>, now: Timestamp) -> ObservedNode {
        let mut nodes = lock(&self.0);
        let before = nodes.by_name.get(name);
        if let Some(cached) = before.filter(|it| it.watched) {
            return cached.observed;
        }
        let since = before.filter(|it| !it.observed.ready).map_or(now, |it| it.observed.since);
        let observed = node.map_or(ObservedNode { ready: false, since }, |node| readiness_of(node, since));
        nodes.by_name.insert(name.to_owned(), CachedNode { observed, watched: false });
        observed
    }

    /// Removes the nodes that the watch does not show, except for those that `keep` accepts.
    pub fn remove_gone(&self, keep: impl Fn(&str) -> bool) {
        lock(&self.0).by_name.retain(|name, cached| cached.watched || keep(name));
    }

    /// Applies an event of the watch. Returns the nodes whose readiness changed.
    pub fn apply(&self, event: Event<Node>, now: Timestamp) -> Vec<String> {
        let mut nodes = lock(&self.0);
        match event {
            Event::Init => {
                nodes.relisted.clear();
                Vec::new()
            }
            Event::InitApply(node) => {
                nodes.relisted.insert(node.name_any());
                nodes.put(&node, now)
            }
            Event::Apply(node) => nodes.put(&node, now),
            Event::InitDone => {
                let relisted = std::mem::take(&mut nodes.relisted);
                nodes.mark_gone(|name| !relisted.contains(name), now)
            }
            Event::Delete(node) => nodes.mark_gone(|name| name == node.name_any(), now),
        }
    }
}

impl Nodes {
    fn put(&mut self, node: &Node, now: Timestamp) -> Vec<String> {
        let (name, observed) = (node.name_any(), readiness_of(node, now));
        let before = self.by_name.insert(name.clone(), CachedNode { observed, watched: true });
        let changed = before.is_none_or(|it| it.observed.ready != observed.ready);
        changed.then_some(name).into_iter().collect()
    }

    /// Marks nodes as gone. A node that was not Ready before keeps its time.
    fn mark_gone(&mut self, is_gone: impl Fn(&str) -> bool, now: Timestamp) -> Vec<String> {
        let mut changed = Vec::new();
        for (name, cached) in self.by_name.iter_mut().filter(|(name, _)| is_gone(name)) {
            cached.watched = false;
            if cached.observed.ready {
                cached.observed = ObservedNode { ready: false, since: now };
                changed.push(name.clone());
            }
        }
        changed
    }
}

fn readiness_of(node: &Node, now: Timestamp) -> ObservedNode {
    let conditions = node.status.as_ref().and_then(|it| it.conditions.as_deref()).unwrap_or_default();
    match conditions.iter().find(|it| it.type_ == "Ready") {
        Some(ready) => ObservedNode {
            ready: ready.status == "True",
            since: ready.last_transition_time.as_ref().map_or(now, |it| it.0),
        },
        None => ObservedNode { ready: false, since: now },
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a panic fails the test")]

    use serde_json::json;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    /// Ready, or not, since second 1.
    fn node(name: &str, ready: bool) -> Node {
        let condition = json!({ "type": "Ready", "status": if ready { "True" } else { "False" },
                                "lastTransitionTime": "1970-01-01T00:00:01Z" });
        serde_json::from_value(
            json!({ "metadata": { "name": name }, "status": { "conditions": [condition] } }),
        )
        .unwrap()
    }

    fn ready(since: i64) -> ObservedNode {
        ObservedNode { ready: true, since: at(since) }
    }

    fn not_ready(since: i64) -> ObservedNode {
        ObservedNode { ready: false, since: at(since) }
    }

    #[test]
    fn a_node_that_is_missing_from_a_relist_or_was_deleted_is_not_ready_since_then() {
        let cache = NodeCache::default();
        for name in ["a", "b", "c"] {
            assert_eq!(cache.apply(Event::Apply(node(name, name != "c")), at(2)), [name]);
        }
        cache.apply(Event::Init, at(3));
        assert!(cache.apply(Event::InitApply(node("b", true)), at(3)).is_empty(), "unchanged");
        assert_eq!(cache.apply(Event::InitDone, at(3)), ["a"]);
        assert_eq!(["a", "b", "c"].map(|name| cache.watched(name)), [None, Some(ready(1)), None]);
        let missed = |name: &str, now| cache.record_read(name, None, at(now));
        assert_eq!(["a", "c"].map(|name| missed(name, 4)), [not_ready(3), not_ready(1)]);
        assert_eq!(cache.apply(Event::Delete(node("b", true)), at(5)), ["b"]);
        assert_eq!((cache.watched("b"), missed("b", 6)), (None, not_ready(5)));
    }

    #[test]
    fn an_unwatched_node_is_as_the_api_server_shows_it_or_not_ready_since_it_was_first_missing() {
        let cache = NodeCache::default();
        let read = |it: Option<Node>, now| cache.record_read("a", it.as_ref(), at(now));
        assert_eq!([5, 9].map(|now| read(None, now)), [not_ready(5); 2]);
        assert_eq!(read(Some(node("a", true)), 10), ready(1), "it exists after all");
        assert_eq!(cache.watched("a"), None, "and will be read again");
        assert_eq!([11, 12].map(|now| read(None, now)), [not_ready(11); 2]);
        assert_eq!(cache.apply(Event::Apply(node("a", true)), at(13)), ["a"]);
        assert_eq!(read(None, 14), ready(1), "the watch shows it meanwhile");
        assert_eq!(cache.watched("a"), Some(ready(1)));
    }

    #[test]
    fn a_node_that_is_gone_is_removed_once_no_pod_is_on_it() {
        let cache = NodeCache::default();
        for name in ["a", "b", "c"] {
            cache.apply(Event::Apply(node(name, true)), at(2));
        }
        for name in ["a", "b"] {
            cache.apply(Event::Delete(node(name, true)), at(3));
        }
        cache.remove_gone(|name| name == "a");
        assert_eq!(cache.record_read("a", None, at(9)), not_ready(3));
        assert_eq!(cache.record_read("b", None, at(9)), not_ready(9), "like an unknown node");
        assert_eq!(cache.watched("c"), Some(ready(1)));
    }
}
