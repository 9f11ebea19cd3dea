//! Every node's readiness, as last seen: also of nodes that are gone, while pods are on them.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};

use dalsegno_core::NodeSight;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use kube::runtime::watcher::Event;

use crate::sync::lock;

/// Which nodes are Ready, and since when they are or are not.
#[derive(Clone, Debug, Default)]
pub struct NodeBook(Arc<Mutex<Book>>);

#[derive(Debug, Default)]
struct Book {
    /// By name.
    nodes: HashMap<String, Kept>,
    /// Names of nodes seen since a relist began.
    relisted: HashSet<String>,
}

#[derive(Debug)]
struct Kept {
    sight: NodeSight,
    /// The API server does not know it.
    gone: bool,
}

impl NodeBook {
    /// A node; one that the API server has not told of is not Ready, since it was first asked for.
    pub fn get(&self, name: &str, now: Timestamp) -> NodeSight {
        let unknown = || Kept { sight: NodeSight { ready: false, since: now }, gone: true };
        lock(&self.0).nodes.entry(name.to_owned()).or_insert_with(unknown).sight
    }

    /// Forgets nodes that are gone, but for these.
    pub fn forget_gone(&self, but: impl Fn(&str) -> bool) {
        lock(&self.0).nodes.retain(|name, kept| !kept.gone || but(name));
    }

    /// Takes in what a watch said; answers which nodes changed.
    pub fn take(&self, event: Event<Node>, now: Timestamp) -> Vec<String> {
        let mut book = lock(&self.0);
        match event {
            Event::Init => {
                book.relisted.clear();
                Vec::new()
            }
            Event::InitApply(node) => {
                book.relisted.insert(node.name_any());
                book.put(&node, now)
            }
            Event::Apply(node) => book.put(&node, now),
            Event::InitDone => {
                let relisted = std::mem::take(&mut book.relisted);
                book.lose(|name| !relisted.contains(name), now)
            }
            Event::Delete(node) => book.lose(|name| name == node.name_any(), now),
        }
    }
}

impl Book {
    fn put(&mut self, node: &Node, now: Timestamp) -> Vec<String> {
        let (name, sight) = (node.name_any(), sight_of(node, now));
        let before = self.nodes.insert(name.clone(), Kept { sight, gone: false });
        let changed = before.is_none_or(|it| it.sight.ready != sight.ready);
        changed.then_some(name).into_iter().collect()
    }

    /// These are gone. One that was not Ready before is not Ready since then.
    fn lose(&mut self, which: impl Fn(&str) -> bool, now: Timestamp) -> Vec<String> {
        let mut changed = Vec::new();
        for (name, kept) in self.nodes.iter_mut().filter(|(name, _)| which(name)) {
            kept.gone = true;
            if kept.sight.ready {
                kept.sight = NodeSight { ready: false, since: now };
                changed.push(name.clone());
            }
        }
        changed
    }
}

fn sight_of(node: &Node, now: Timestamp) -> NodeSight {
    let conditions = node.status.as_ref().and_then(|it| it.conditions.as_deref()).unwrap_or_default();
    match conditions.iter().find(|it| it.type_ == "Ready") {
        Some(ready) => NodeSight {
            ready: ready.status == "True",
            since: ready.last_transition_time.as_ref().map_or(now, |it| it.0),
        },
        None => NodeSight { ready: false, since: now },
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a case that cannot go on has failed")]

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

    fn not_ready(since: i64) -> NodeSight {
        NodeSight { ready: false, since: at(since) }
    }

    #[test]
    fn a_node_that_a_relist_does_not_name_or_that_was_deleted_is_not_ready_since_then() {
        let book = NodeBook::default();
        for name in ["a", "b", "c"] {
            assert_eq!(book.take(Event::Apply(node(name, name != "c")), at(2)), [name]);
        }
        book.take(Event::Init, at(3));
        assert!(book.take(Event::InitApply(node("b", true)), at(3)).is_empty(), "as it was");
        assert_eq!(book.take(Event::InitDone, at(3)), ["a"]);
        assert_eq!(["a", "c"].map(|name| book.get(name, at(4))), [not_ready(3), not_ready(1)]);
        assert_eq!(book.get("b", at(4)), NodeSight { ready: true, since: at(1) });
        assert_eq!(book.take(Event::Delete(node("b", true)), at(5)), ["b"]);
        assert_eq!(book.get("b", at(6)), not_ready(5));
    }

    #[test]
    fn a_node_that_nobody_has_told_of_is_not_ready_since_it_was_first_asked_for() {
        let book = NodeBook::default();
        assert_eq!([5, 9].map(|now| book.get("a", at(now))), [not_ready(5); 2]);
        assert_eq!(book.take(Event::Apply(node("a", true)), at(10)), ["a"], "it is there after all");
    }

    #[test]
    fn a_node_that_is_gone_is_forgotten_once_no_pod_is_on_it() {
        let book = NodeBook::default();
        for name in ["a", "b", "c"] {
            book.take(Event::Apply(node(name, true)), at(2));
        }
        for name in ["a", "b"] {
            book.take(Event::Delete(node(name, true)), at(3));
        }
        book.forget_gone(|name| name == "a");
        assert_eq!(book.get("a", at(9)), not_ready(3));
        assert_eq!(book.get("b", at(9)), not_ready(9), "as one that nobody has told of");
        assert!(book.get("c", at(9)).ready);
    }
}
