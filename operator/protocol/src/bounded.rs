//! Deserializes lists and maps with a limit and stops at it. A count after parsing would be too late: two bytes of text
//! can take fifty bytes of memory.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{DeserializeSeed, Error, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use crate::Limits;

/// A list of at most `MOST` items.
///
/// # Errors
///
/// The input is not a list, or has more items.
pub fn list<'de, const MOST: usize, T, D>(from: D) -> Result<Vec<T>, D::Error>
where
    T: Deserialize<'de>,
    D: Deserializer<'de>,
{
    List { left: &Cell::new(MOST), most: MOST, of: PhantomData }.deserialize(from)
}

/// A map of at most `MOST` entries.
///
/// # Errors
///
/// The input is not a map, or has more entries.
pub fn map<'de, const MOST: usize, T, D>(from: D) -> Result<BTreeMap<String, T>, D::Error>
where
    T: Deserialize<'de>,
    D: Deserializer<'de>,
{
    from.deserialize_map(Map { most: MOST, value: PhantomData::<T> })
}

/// Lists by channel: at most [`Limits::CHANNELS`] lists with [`Limits::ITEMS`] items in total.
///
/// # Errors
///
/// The input is not a map of lists, or has more lists or items.
pub fn lists<'de, T, D>(from: D) -> Result<BTreeMap<String, Vec<T>>, D::Error>
where
    T: Deserialize<'de>,
    D: Deserializer<'de>,
{
    let left = Cell::new(Limits::ITEMS);
    let value = List { left: &left, most: Limits::ITEMS, of: PhantomData };
    from.deserialize_map(Map { most: Limits::CHANNELS, value })
}

fn too_many<E: Error>(most: usize) -> E {
    E::custom(format_args!("more than {most} are too many"))
}

struct List<'a, T> {
    /// Items that this list and all further lists may still have together.
    left: &'a Cell<usize>,
    most: usize,
    of: PhantomData<T>,
}

impl<T> Clone for List<'_, T> {
    fn clone(&self) -> Self {
        Self { ..*self }
    }
}

impl<'de, T: Deserialize<'de>> DeserializeSeed<'de> for List<'_, T> {
    type Value = Vec<T>;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Self::Value, D::Error> {
        from.deserialize_seq(self)
    }
}

impl<'de, T: Deserialize<'de>> Visitor<'de> for List<'_, T> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Self::Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = from.next_element()? {
            let left = self.left.get().checked_sub(1).ok_or_else(|| too_many(self.most))?;
            self.left.set(left);
            items.push(item);
        }
        Ok(items)
    }
}

/// `value` deserializes each value.
struct Map<S> {
    most: usize,
    value: S,
}

impl<'de, S: DeserializeSeed<'de> + Clone> Visitor<'de> for Map<S> {
    type Value = BTreeMap<String, S::Value>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<Self::Value, A::Error> {
        let mut entries = BTreeMap::new();
        let mut left = self.most;
        // Entries of the text are counted, not of the map: a repeated key takes no memory, but it takes time.
        while let Some(key) = from.next_key()? {
            left = left.checked_sub(1).ok_or_else(|| too_many(self.most))?;
            entries.insert(key, from.next_value_seed(self.value.clone())?);
        }
        Ok(entries)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CommitRequest, RecordsRequest};

    const ID: &str = r#""00000000-0000-0000-0000-000000000001""#;

    /// The parse error of a boundary with this field; empty if it is accepted.
    fn parse_error(field: &str) -> String {
        let text = format!(r#"{{"commitId":{ID},{field}}}"#);
        serde_json::from_str::<CommitRequest>(&text).map_or_else(|error| error.to_string(), |_| String::new())
    }

    fn repeated(item: &str, count: usize) -> String {
        vec![item; count].join(",")
    }

    /// `channels` with one list of each of these lengths.
    fn append(lengths: &[usize]) -> String {
        let list =
            |(name, count): (usize, &usize)| format!(r#""l{name}":[{}]"#, repeated(r#"{"json":1}"#, *count));
        let lists: Vec<_> = lengths.iter().enumerate().map(list).collect();
        format!(r#""channels":{{"append":{{{}}}}}"#, lists.join(","))
    }

    #[test]
    fn each_list_of_a_boundary_is_accepted_up_to_its_limit() {
        let call = r#"{"id":"a","policy":"probe","key":"k"}"#;
        let record = r#"{"delete":{"space":"s","key":"k"}}"#;
        let named = |count: usize, value: &str| {
            let entries: Vec<_> = (0..count).map(|name| format!(r#""c{name}":{value}"#)).collect();
            entries.join(",")
        };
        let cases: [(usize, &dyn Fn(usize) -> String); 6] = [
            (Limits::EVENTS, &|count| format!(r#""events":[{}]"#, repeated("1", count))),
            (Limits::CALLS, &|count| format!(r#""calls":[{}]"#, repeated(call, count))),
            (Limits::RECORDS, &|count| format!(r#""records":[{}]"#, repeated(record, count))),
            (Limits::CHANNELS, &|count| {
                format!(r#""channels":{{"remove":[{}]}}"#, repeated(r#""c""#, count))
            }),
            (Limits::CHANNELS, &|count| {
                format!(r#""channels":{{"set":{{{}}}}}"#, named(count, r#"{"json":1}"#))
            }),
            (Limits::CHANNELS, &|count| format!(r#""channels":{{"truncate":{{{}}}}}"#, named(count, "1"))),
        ];
        for (most, field) in cases {
            assert_eq!(parse_error(&field(most)), "");
            let refused = parse_error(&field(most + 1));
            assert!(refused.contains(&format!("more than {most} are too many")), "{refused}");
        }
        let batch = |count| format!(r#"{{"batchId":{ID},"operations":[{}]}}"#, repeated(record, count));
        assert!(serde_json::from_str::<RecordsRequest>(&batch(Limits::RECORDS)).is_ok());
        assert!(serde_json::from_str::<RecordsRequest>(&batch(Limits::RECORDS + 1)).is_err());
    }

    #[test]
    fn the_limit_of_items_applies_to_all_lists_together() {
        let half = Limits::ITEMS / 2;
        assert_eq!(parse_error(&append(&[half, half])), "");
        assert!(parse_error(&append(&[half, 0, half + 1])).contains("more than 100000 are too many"));
        assert_eq!(parse_error(&append(&[1; Limits::CHANNELS])), "");
        assert!(parse_error(&append(&[0; Limits::CHANNELS + 1])).contains("more than 64 are too many"));
    }
}
