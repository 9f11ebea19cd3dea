//! The objects that the events of a watch are about, each once a cache of the watch has it.

use std::mem::take;

use futures::{Stream, StreamExt as _, stream};
use kube::runtime::watcher::{Event, Result};

/// The touched objects. Those of a list come when the list is complete: a reflector shows none of them before. Whoever
/// looked for them there earlier would take a new object for a deleted one.
pub fn listed_objects<K>(events: impl Stream<Item = Result<Event<K>>>) -> impl Stream<Item = Result<K>> {
    let mut listed = Vec::new();
    events.flat_map(move |event| {
        let objects = match event {
            Ok(Event::Init) => {
                listed.clear();
                Vec::new()
            }
            Ok(Event::InitApply(object)) => {
                listed.push(object);
                Vec::new()
            }
            Ok(Event::InitDone) => take(&mut listed).into_iter().map(Ok).collect(),
            Ok(Event::Apply(object) | Event::Delete(object)) => vec![Ok(object)],
            Err(error) => vec![Err(error)],
        };
        stream::iter(objects)
    })
}

#[cfg(test)]
mod tests {
    use kube::runtime::watcher::Error;

    use super::*;

    #[tokio::test]
    async fn objects_of_a_list_come_when_it_is_complete() {
        let events = [
            Ok(Event::Init),
            Ok(Event::InitApply("before a failure")),
            Err(Error::NoResourceVersion),
            Ok(Event::Init),
            Ok(Event::InitApply("listed")),
            Ok(Event::InitDone),
            Ok(Event::Apply("changed")),
            Ok(Event::Delete("deleted")),
            Ok(Event::Init),
            Ok(Event::InitApply("not complete")),
        ];
        let found: Vec<_> = listed_objects(stream::iter(events)).map(|it| it.ok()).collect().await;
        assert_eq!(found, [None, Some("listed"), Some("changed"), Some("deleted")]);
    }
}
