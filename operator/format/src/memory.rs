//! How the state differs between two turns. Pure.

use dalsegno_protocol::{Channel, ChannelSize, MemoryDelta, Payload, State};

use crate::memory_items::{item_delta, payload_bytes, same_payload};

/// The difference between two states, channel by channel, and their items. JSON is compared as text, byte for byte.
pub fn delta(before: &State, after: &State) -> MemoryDelta {
    let mut delta = MemoryDelta { items: item_delta(before, after), ..MemoryDelta::default() };
    for (name, channel) in after {
        let now = size(channel);
        match before.get(name) {
            None => {
                delta.added.insert(name.clone(), now);
            }
            Some(was) if !same(was, channel) => {
                let was = size(was);
                let grown = ChannelSize { bytes: now.bytes - was.bytes, items: now.items - was.items };
                delta.updated.insert(name.clone(), grown);
            }
            Some(_) => {}
        }
    }
    let gone = before.iter().filter(|(name, _)| !after.contains_key(*name));
    delta.removed = gone.map(|(name, channel)| (name.clone(), size(channel))).collect();
    delta
}

fn size(channel: &Channel) -> ChannelSize {
    let items = items(channel);
    ChannelSize { bytes: items.iter().map(payload_bytes).sum(), items: items.len() as i64 }
}

fn items(channel: &Channel) -> &[Payload] {
    match channel {
        Channel::Value(value) => std::slice::from_ref(value),
        Channel::List(items) => items,
    }
}

/// Whether two channels are equal. A value is never equal to a list.
fn same(left: &Channel, right: &Channel) -> bool {
    std::mem::discriminant(left) == std::mem::discriminant(right)
        && items(left).len() == items(right).len()
        && items(left).iter().zip(items(right)).all(|(left, right)| same_payload(left, right))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delta_lists_added_updated_and_removed_channels() {
        let image = r#"{"bytes":{"mediaType":"image/png","base64":"iVBORw0KGgo="}}"#;
        let text = r#"{"bytes":{"mediaType":"text/plain","base64":"iVBORw0KGgo="}}"#;
        let value = |payload: &str| format!(r#"{{"a":{{"value":{payload}}}}}"#);
        let list = |items: &str| format!(r#"{{"a":{{"list":[{items}]}}}}"#);
        let none = "{}".to_owned();
        let delta_of = |kind: &str, bytes: i64, items: i64| {
            let mut delta = serde_json::json!({ "added": {}, "updated": {}, "removed": {} });
            if !kind.is_empty() {
                delta[kind]["a"] = serde_json::json!({ "bytes": bytes, "items": items });
            }
            delta
        };
        let cases = [
            (none.clone(), none.clone(), delta_of("", 0, 0)),
            (none.clone(), value(r#"{"json":[1, 2]}"#), delta_of("added", 6, 1)),
            (value(r#"{"json":[1, 2]}"#), none.clone(), delta_of("removed", 6, 1)),
            (none, list(r#"{"json":1},{"json":22}"#), delta_of("added", 3, 2)),
            (value(r#"{"json":1}"#), value(r#"{"json":1}"#), delta_of("", 0, 0)),
            (value(r#"{"json":[1,2]}"#), value(r#"{"json":[1, 2]}"#), delta_of("updated", 1, 0)),
            (value(r#"{"json":1000}"#), value(r#"{"json":1}"#), delta_of("updated", -3, 0)),
            (value(image), value(image), delta_of("", 0, 0)),
            (value(image), value(text), delta_of("updated", 0, 0)),
            (value(r#"{"json":1}"#), value(image), delta_of("updated", 7, 0)),
            (value(r#"{"json":1}"#), list(r#"{"json":1}"#), delta_of("updated", 0, 0)),
            (list(r#"{"json":1}"#), list(r#"{"json":1},{"json":2}"#), delta_of("updated", 1, 1)),
            (list(r#"{"json":1},{"json":2}"#), list(""), delta_of("updated", -2, -2)),
        ];
        for (before, after, expected) in cases {
            let state = |text: &str| serde_json::from_str::<State>(text).unwrap();
            let mut delta = serde_json::to_value(delta(&state(&before), &state(&after))).unwrap();
            let (version, items) = (delta["version"].take(), delta["items"].take());
            let fields = delta.as_object_mut().unwrap();
            fields.retain(|_, value| !value.is_null());
            // A blank between two elements changes the channel, and no element.
            let differs = before.replace(", ", ",") != after.replace(", ", ",");
            let has_items = items.as_object().unwrap().values().any(|it| it != &serde_json::json!([]));
            assert_eq!((version, has_items), (2.into(), differs), "{before} to {after}");
            assert_eq!(delta, expected, "{before} to {after}");
        }
    }
}
