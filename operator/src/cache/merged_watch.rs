//! One watch over several namespaces.
//!
//! With Roles instead of a ClusterRole the operator may list and watch only in the namespaces that it is given, each by a
//! watch of its own. A cache expects the events of one watch: a list replaces everything that it holds. The events of
//! several watches are therefore merged into those of one.

use std::collections::HashMap;

use futures::stream::{BoxStream, select_all};
use futures::{Stream, StreamExt, stream};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Resource, ResourceExt};
use serde::de::DeserializeOwned;

/// Watches the objects of all these APIs, which must not overlap.
pub fn watch<K>(apis: Vec<Api<K>>, config: &watcher::Config) -> BoxStream<'static, watcher::Result<Event<K>>>
where
    K: Resource + Clone + DeserializeOwned + std::fmt::Debug + Send + 'static,
    K::DynamicType: Default,
{
    let mut watches: Vec<_> =
        apis.into_iter().map(|api| watcher::watcher(api, config.clone()).default_backoff().boxed()).collect();
    if watches.len() == 1 {
        return watches.remove(0);
    }
    let merged = MergedWatch::new(watches.len());
    let numbered =
        watches.into_iter().enumerate().map(|(source, watch)| watch.map(move |event| (source, event)));
    merge(merged, select_all(numbered.collect::<Vec<_>>())).boxed()
}

fn merge<K: ResourceExt + Clone>(
    mut merged: MergedWatch<K>,
    events: impl Stream<Item = (usize, watcher::Result<Event<K>>)>,
) -> impl Stream<Item = watcher::Result<Event<K>>> {
    events.flat_map(move |(source, event)| {
        let events = match event {
            Ok(event) => merged.apply(source, event).into_iter().map(Ok).collect(),
            Err(error) => vec![Err(error)],
        };
        stream::iter(events)
    })
}

/// The objects of several watches.
///
/// Until each watch has listed its objects, nothing is passed on, and then all objects as one list. A later list of one
/// watch is passed on as changes and deletions, since a list would remove the objects of the other watches.
struct MergedWatch<K> {
    sources: Vec<Source<K>>,
    is_listed: bool,
}

/// What one watch has shown, by name.
struct Source<K> {
    known: HashMap<String, K>,
    /// What the current list has shown.
    listing: HashMap<String, K>,
    is_listed: bool,
}

impl<K: ResourceExt + Clone> MergedWatch<K> {
    fn new(sources: usize) -> Self {
        let source = || Source { known: HashMap::new(), listing: HashMap::new(), is_listed: false };
        Self { sources: std::iter::repeat_with(source).take(sources).collect(), is_listed: false }
    }

    /// Applies an event of the watch with this number. Returns the events of the merged watch.
    fn apply(&mut self, source: usize, event: Event<K>) -> Vec<Event<K>> {
        let events = self.sources[source].apply(event);
        if self.is_listed {
            return events;
        }
        self.is_listed = self.sources.iter().all(|it| it.is_listed);
        if !self.is_listed {
            return Vec::new();
        }
        let objects = self.sources.iter().flat_map(|it| it.known.values().cloned());
        std::iter::once(Event::Init)
            .chain(objects.map(Event::InitApply))
            .chain(std::iter::once(Event::InitDone))
            .collect()
    }
}

impl<K: ResourceExt + Clone> Source<K> {
    /// Applies an event. Returns it as changes and deletions.
    fn apply(&mut self, event: Event<K>) -> Vec<Event<K>> {
        match event {
            Event::Init => {
                self.listing.clear();
                Vec::new()
            }
            Event::InitApply(object) => {
                self.listing.insert(object.name_any(), object.clone());
                vec![Event::Apply(object)]
            }
            Event::InitDone => {
                self.is_listed = true;
                let mut before = std::mem::replace(&mut self.known, std::mem::take(&mut self.listing));
                before.retain(|name, _| !self.known.contains_key(name));
                before.into_values().map(Event::Delete).collect()
            }
            Event::Apply(object) => {
                self.known.insert(object.name_any(), object.clone());
                vec![Event::Apply(object)]
            }
            Event::Delete(object) => {
                self.known.remove(&object.name_any());
                vec![Event::Delete(object)]
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;

    use super::*;

    fn object(name: &str) -> ConfigMap {
        let mut object = ConfigMap::default();
        object.metadata.name = Some(name.into());
        object
    }

    fn list(names: &[&str]) -> Vec<Event<ConfigMap>> {
        let objects = names.iter().map(|name| Event::InitApply(object(name)));
        std::iter::once(Event::Init).chain(objects).chain([Event::InitDone]).collect()
    }

    /// The merged events as text. Objects of one list are sorted.
    fn texts(
        merged: &mut MergedWatch<ConfigMap>,
        source: usize,
        events: Vec<Event<ConfigMap>>,
    ) -> Vec<String> {
        let text = |event: Event<ConfigMap>| match event {
            Event::Init => "init".to_owned(),
            Event::InitApply(it) => format!("lists {}", it.name_any()),
            Event::InitDone => "listed".to_owned(),
            Event::Apply(it) => format!("shows {}", it.name_any()),
            Event::Delete(it) => format!("deletes {}", it.name_any()),
        };
        let mut all: Vec<_> =
            events.into_iter().flat_map(|event| merged.apply(source, event)).map(text).collect();
        if all.len() > 2 {
            let last = all.len() - 1;
            all[1..last].sort();
        }
        all
    }

    #[test]
    fn the_first_list_is_complete_once_each_namespace_is_listed() {
        let mut merged = MergedWatch::new(2);
        assert!(texts(&mut merged, 0, list(&["a", "b"])).is_empty());
        assert!(
            texts(&mut merged, 0, vec![Event::Apply(object("c")), Event::Delete(object("a"))]).is_empty()
        );
        assert_eq!(texts(&mut merged, 1, list(&["x"])), ["init", "lists b", "lists c", "lists x", "listed"]);
        assert_eq!(texts(&mut merged, 1, vec![Event::Apply(object("y"))]), ["shows y"]);
    }

    #[test]
    fn a_later_list_of_one_namespace_deletes_no_object_of_another() {
        let mut merged = MergedWatch::new(2);
        texts(&mut merged, 0, list(&["a", "b"]));
        texts(&mut merged, 1, list(&["x"]));
        assert_eq!(texts(&mut merged, 0, list(&["b"])), ["shows b", "deletes a"]);
        assert_eq!(texts(&mut merged, 1, list(&[])), ["deletes x"]);
    }

    #[test]
    fn an_interrupted_first_list_is_not_passed_on() {
        let mut merged = MergedWatch::new(2);
        texts(&mut merged, 1, list(&["x"]));
        assert!(texts(&mut merged, 0, vec![Event::Init, Event::InitApply(object("gone"))]).is_empty());
        assert_eq!(texts(&mut merged, 0, list(&["a"])), ["init", "lists a", "lists x", "listed"]);
    }
}
