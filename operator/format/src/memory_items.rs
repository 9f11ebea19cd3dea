//! Which items of a state's channels differ. Pure.
//!
//! An item is a member of a channel that is one JSON object, an element of a channel that is a list or one JSON array,
//! or else the whole channel. JSON is compared as text, byte for byte.

use std::collections::{BTreeMap, BTreeSet};

use dalsegno_protocol::{Channel, ItemChange, ItemDelta, Limits, Payload, RawValue, State, bounded};

/// The items that differ between two states.
pub(crate) fn item_delta(before: &State, after: &State) -> ItemDelta {
    let mut delta = ItemDelta::default();
    let names: BTreeSet<_> = before.keys().chain(after.keys()).collect();
    for name in names {
        compare(&mut delta, name, before.get(name), after.get(name));
    }
    delta
}

/// Bytes of a payload: the text of JSON, the decoded bytes of base64.
pub(crate) fn payload_bytes(payload: &Payload) -> i64 {
    let bytes = match payload {
        Payload::Json(json) => json.get().len(),
        Payload::Bytes { base64, .. } => base64.trim_end_matches('=').len() * 3 / 4,
    };
    bytes as i64
}

/// Whether two payloads are equal.
pub(crate) fn same_payload(left: &Payload, right: &Payload) -> bool {
    match (left, right) {
        (Payload::Json(left), Payload::Json(right)) => left.get() == right.get(),
        (
            Payload::Bytes { media_type, base64 },
            Payload::Bytes { media_type: other_type, base64: other_base64 },
        ) => (media_type, base64) == (other_type, other_base64),
        (Payload::Json(_), Payload::Bytes { .. }) | (Payload::Bytes { .. }, Payload::Json(_)) => false,
    }
}

/// An item's name in its channel.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Name {
    Whole,
    Key(String),
    Index(usize),
}

/// The items of a JSON object or array: their texts by their names.
#[derive(Default)]
struct Members<'a> {
    is_array: bool,
    texts: BTreeMap<Name, &'a str>,
}

impl<'a> Members<'a> {
    /// `None`: the value is neither, or has so many items that they would take too much memory.
    fn of(value: &'a Payload) -> Option<Self> {
        let Payload::Json(json) = value else { return None };
        let mut parser = serde_json::Deserializer::from_str(json.get());
        match json.get().as_bytes().first()? {
            b'{' => {
                let found: BTreeMap<String, &RawValue> =
                    bounded::map::<{ Limits::DELTA_MEMBERS }, _, _>(&mut parser).ok()?;
                let texts = found.into_iter().map(|(key, text)| (Name::Key(key), text.get())).collect();
                Some(Self { is_array: false, texts })
            }
            b'[' => {
                let found: Vec<&RawValue> =
                    bounded::list::<{ Limits::DELTA_MEMBERS }, _, _>(&mut parser).ok()?;
                let texts = found.into_iter().enumerate();
                let texts = texts.map(|(index, text)| (Name::Index(index), text.get())).collect();
                Some(Self { is_array: true, texts })
            }
            _ => None,
        }
    }
}

/// Compares a channel of two states.
fn compare(delta: &mut ItemDelta, name: &str, before: Option<&Channel>, after: Option<&Channel>) {
    match (before, after) {
        (None, None) => {}
        (Some(Channel::List(before)), Some(Channel::List(after))) => {
            compare_lists(delta, name, before, after)
        }
        (Some(Channel::List(before)), None) => compare_lists(delta, name, before, &[]),
        (None, Some(Channel::List(after))) => compare_lists(delta, name, &[], after),
        (Some(Channel::Value(before)), Some(Channel::Value(after))) => {
            compare_values(delta, name, Some(before), Some(after));
        }
        (Some(Channel::Value(before)), None) => compare_values(delta, name, Some(before), None),
        (None, Some(Channel::Value(after))) => compare_values(delta, name, None, Some(after)),
        (Some(before), Some(after)) => {
            let bytes = channel_bytes(after) - channel_bytes(before);
            push(&mut delta.updated, &mut delta.truncated, change(name, &Name::Whole, bytes));
        }
    }
}

/// Compares lists without a copy of them: a list may be long.
fn compare_lists(delta: &mut ItemDelta, name: &str, before: &[Payload], after: &[Payload]) {
    for index in 0..before.len().max(after.len()) {
        let item = Name::Index(index);
        let (list, bytes) = match (before.get(index), after.get(index)) {
            (Some(was), Some(now)) if same_payload(was, now) => continue,
            (Some(was), Some(now)) => (&mut delta.updated, payload_bytes(now) - payload_bytes(was)),
            (Some(was), None) => (&mut delta.removed, payload_bytes(was)),
            (None, now) => (&mut delta.added, now.map_or(0, payload_bytes)),
        };
        push(list, &mut delta.truncated, change(name, &item, bytes));
    }
}

fn compare_values(delta: &mut ItemDelta, name: &str, before: Option<&Payload>, after: Option<&Payload>) {
    let (was, now) = (before.map(Members::of), after.map(Members::of));
    match (was, now) {
        (Some(Some(was)), Some(Some(now))) if was.is_array == now.is_array => {
            compare_members(delta, name, &was, &now)
        }
        (None, Some(Some(now))) => compare_members(delta, name, &Members::default(), &now),
        (Some(Some(was)), None) => compare_members(delta, name, &was, &Members::default()),
        _ => compare_whole(delta, name, before, after),
    }
}

/// Compares values that are one item each.
fn compare_whole(delta: &mut ItemDelta, name: &str, before: Option<&Payload>, after: Option<&Payload>) {
    let (list, bytes) = match (before, after) {
        (None, None) => return,
        (Some(was), Some(now)) if same_payload(was, now) => return,
        (Some(was), Some(now)) => (&mut delta.updated, payload_bytes(now) - payload_bytes(was)),
        (Some(was), None) => (&mut delta.removed, payload_bytes(was)),
        (None, Some(now)) => (&mut delta.added, payload_bytes(now)),
    };
    push(list, &mut delta.truncated, change(name, &Name::Whole, bytes));
}

fn compare_members(delta: &mut ItemDelta, name: &str, was: &Members<'_>, now: &Members<'_>) {
    for (item, text) in &now.texts {
        let (list, bytes) = match was.texts.get(item) {
            Some(before) if before == text => continue,
            Some(before) => (&mut delta.updated, text.len() as i64 - before.len() as i64),
            None => (&mut delta.added, text.len() as i64),
        };
        push(list, &mut delta.truncated, change(name, item, bytes));
    }
    for (item, text) in was.texts.iter().filter(|(item, _)| !now.texts.contains_key(*item)) {
        push(&mut delta.removed, &mut delta.truncated, change(name, item, text.len() as i64));
    }
}

fn channel_bytes(channel: &Channel) -> i64 {
    match channel {
        Channel::Value(value) => payload_bytes(value),
        Channel::List(items) => items.iter().map(payload_bytes).sum(),
    }
}

fn change(channel: &str, item: &Name, bytes: i64) -> ItemChange {
    let (key, index) = match item {
        Name::Whole => (None, None),
        Name::Key(key) => (Some(key.clone()), None),
        Name::Index(index) => (None, Some(*index)),
    };
    ItemChange { channel: channel.to_owned(), key, index, bytes }
}

fn push(list: &mut Vec<ItemChange>, truncated: &mut bool, change: ItemChange) {
    if list.len() < Limits::DELTA_ITEMS {
        list.push(change);
    } else {
        *truncated = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The items that differ between two states, as JSON.
    fn delta(before: &str, after: &str) -> serde_json::Value {
        let state = |text: &str| serde_json::from_str::<State>(text).unwrap();
        serde_json::to_value(item_delta(&state(before), &state(after))).unwrap()
    }

    #[test]
    fn members_of_an_object_are_items_by_their_keys() {
        let before = r#"{"plan":{"value":{"json":{"goal":"pay","step":1,"old":[1,2]}}}}"#;
        let after = r#"{"plan":{"value":{"json":{"goal":"pay","step":100,"new":"x"}}}}"#;
        assert_eq!(
            delta(before, after),
            serde_json::json!({
                "added": [{ "channel": "plan", "key": "new", "bytes": 3 }],
                "updated": [{ "channel": "plan", "key": "step", "bytes": 2 }],
                "removed": [{ "channel": "plan", "key": "old", "bytes": 5 }],
            })
        );
        assert_eq!(delta(before, before), serde_json::json!({ "added": [], "updated": [], "removed": [] }));
    }

    #[test]
    fn elements_of_a_list_or_an_array_are_items_by_their_positions() {
        for [before, after] in [
            [
                r#"{"log":{"list":[{"json":1},{"json":2}]}}"#,
                r#"{"log":{"list":[{"json":1},{"json":33},{"json":4}]}}"#,
            ],
            [r#"{"log":{"value":{"json":[1,2]}}}"#, r#"{"log":{"value":{"json":[1,33,4]}}}"#],
        ] {
            let (added, updated) = (
                serde_json::json!([{ "channel": "log", "index": 2, "bytes": 1 }]),
                [("index", 1), ("bytes", 1)],
            );
            let delta_there = delta(before, after);
            assert_eq!((&delta_there["added"], &delta_there["removed"]), (&added, &serde_json::json!([])));
            assert!(updated.iter().all(|(field, value)| delta_there["updated"][0][field] == *value));
            assert_eq!(delta(after, before)["removed"], added);
        }
    }

    #[test]
    fn a_channel_that_is_no_object_and_no_list_is_one_item() {
        let text = r#"{"a":{"value":{"json":"four"}}}"#;
        let whole = |bytes: i64| serde_json::json!([{ "channel": "a", "bytes": bytes }]);
        assert_eq!(delta("{}", text)["added"], whole(6));
        assert_eq!(delta(text, "{}")["removed"], whole(6));
        for (other, bytes) in
            [(r#"{"json":{"b":1}}"#, 1), (r#"{"bytes":{"mediaType":"text/plain","base64":"aGk="}}"#, -4)]
        {
            assert_eq!(delta(text, &format!(r#"{{"a":{{"value":{other}}}}}"#))["updated"], whole(bytes));
        }
        assert_eq!(delta(text, r#"{"a":{"list":[{"json":1},{"json":2}]}}"#)["updated"], whole(-4));
    }

    #[test]
    fn a_delta_names_so_many_items_and_says_if_there_are_more() {
        let items =
            |count: usize| format!(r#"{{"log":{{"list":[{}]}}}}"#, vec![r#"{"json":1}"#; count].join(","));
        let most = Limits::DELTA_ITEMS;
        let all = item_delta(&State::new(), &serde_json::from_str(&items(most)).unwrap());
        assert_eq!((all.added.len(), all.truncated), (most, false));
        let more = item_delta(&State::new(), &serde_json::from_str(&items(most + 1)).unwrap());
        assert_eq!((more.added.len(), more.truncated), (most, true));
        let members: Vec<_> = (0..=Limits::DELTA_MEMBERS).map(|key| format!(r#""{key}":1"#)).collect();
        let large = format!(r#"{{"a":{{"value":{{"json":{{{}}}}}}}}}"#, members.join(","));
        let large = item_delta(&State::new(), &serde_json::from_str(&large).unwrap());
        assert_eq!((large.added.len(), large.truncated), (1, false), "it is one item");
    }
}
