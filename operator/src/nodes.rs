//! Every node's readiness, as last seen.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use dalsegno_core::NodeSight;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use kube::runtime::watcher::Event;

use crate::sync::lock;

/// Which nodes are Ready, and since when they are or are not.
#[derive(Clone, Debug, Default)]
pub struct NodeBook(Arc<Mutex<HashMap<String, NodeSight>>>);

impl NodeBook {
    /// A node; one that the API server does not know is not Ready.
    pub fn get(&self, name: &str) -> Option<NodeSight> {
        lock(&self.0).get(name).copied()
    }

    /// Takes in what a watch said; answers which node changed.
    pub fn take(&self, event: Event<Node>, now: Timestamp) -> Option<String> {
        let (name, sight) = match event {
            Event::Init | Event::InitDone => return None,
            Event::InitApply(node) | Event::Apply(node) => (node.name_any(), sight_of(&node, now)),
            Event::Delete(node) => (node.name_any(), NodeSight { ready: false, since: now }),
        };
        let before = lock(&self.0).insert(name.clone(), sight);
        before.is_none_or(|it| it.ready != sight.ready).then_some(name)
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
