//! Every node's readiness, as last seen: also of nodes that are gone, while pods are on them.
//!
//! A cache may start work and prove nothing: whoever would believe that a node is gone asks the API server first.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};

use dalsegno_core::ObservedNode;
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
    sight: ObservedNode,
    /// The watch tells of it. Else it has never done so, or told that the node is gone.
    watched: bool,
}

impl NodeBook {
    /// A node that the watch tells of.
    pub fn watched(&self, name: &str) -> Option<ObservedNode> {
        lock(&self.0).nodes.get(name).filter(|it| it.watched).map(|it| it.sight)
    }

    /// What the API server answered of a node that the watch does not tell of: as the node says, or, if there is none, not
    /// Ready since it was first missed. It is for one look: the watch may have told of the node's end while the answer was
    /// under way, and would not do so again.
    pub fn answered(&self, name: &str, node: Option<&Node>, now: Timestamp) -> ObservedNode {
        let mut book = lock(&self.0);
        let before = book.nodes.get(name);
        if let Some(kept) = before.filter(|it| it.watched) {
            return kept.sight;
        }
        let since = before.filter(|it| !it.sight.ready).map_or(now, |it| it.sight.since);
        let sight = node.map_or(ObservedNode { ready: false, since }, |node| sight_of(node, since));
        book.nodes.insert(name.to_owned(), Kept { sight, watched: false });
        sight
    }

    /// Forgets nodes that the watch does not tell of, but for these.
    pub fn forget_gone(&self, but: impl Fn(&str) -> bool) {
        lock(&self.0).nodes.retain(|name, kept| kept.watched || but(name));
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
        let before = self.nodes.insert(name.clone(), Kept { sight, watched: true });
        let changed = before.is_none_or(|it| it.sight.ready != sight.ready);
        changed.then_some(name).into_iter().collect()
    }

    /// These are gone. One that was not Ready before is not Ready since then.
    fn lose(&mut self, which: impl Fn(&str) -> bool, now: Timestamp) -> Vec<String> {
        let mut changed = Vec::new();
        for (name, kept) in self.nodes.iter_mut().filter(|(name, _)| which(name)) {
            kept.watched = false;
            if kept.sight.ready {
                kept.sight = ObservedNode { ready: false, since: now };
                changed.push(name.clone());
            }
        }
        changed
    }
}

fn sight_of(node: &Node, now: Timestamp) -> ObservedNode {
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

    fn ready(since: i64) -> ObservedNode {
        ObservedNode { ready: true, since: at(since) }
    }

    fn not_ready(since: i64) -> ObservedNode {
        ObservedNode { ready: false, since: at(since) }
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
        assert_eq!(["a", "b", "c"].map(|name| book.watched(name)), [None, Some(ready(1)), None]);
        let missed = |name: &str, now| book.answered(name, None, at(now));
        assert_eq!(["a", "c"].map(|name| missed(name, 4)), [not_ready(3), not_ready(1)]);
        assert_eq!(book.take(Event::Delete(node("b", true)), at(5)), ["b"]);
        assert_eq!((book.watched("b"), missed("b", 6)), (None, not_ready(5)));
    }

    #[test]
    fn a_node_that_nobody_has_told_of_is_as_the_api_server_answers_or_not_ready_since_it_was_first_missed() {
        let book = NodeBook::default();
        let answered = |it: Option<Node>, now| book.answered("a", it.as_ref(), at(now));
        assert_eq!([5, 9].map(|now| answered(None, now)), [not_ready(5); 2]);
        assert_eq!(answered(Some(node("a", true)), 10), ready(1), "it is there after all");
        assert_eq!(book.watched("a"), None, "and is asked for again");
        assert_eq!([11, 12].map(|now| answered(None, now)), [not_ready(11); 2]);
        assert_eq!(book.take(Event::Apply(node("a", true)), at(13)), ["a"]);
        assert_eq!(answered(None, 14), ready(1), "the watch tells of it meanwhile");
        assert_eq!(book.watched("a"), Some(ready(1)));
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
        assert_eq!(book.answered("a", None, at(9)), not_ready(3));
        assert_eq!(book.answered("b", None, at(9)), not_ready(9), "as one that nobody has told of");
        assert_eq!(book.watched("c"), Some(ready(1)));
    }
}
