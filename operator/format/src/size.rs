//! How large a state is, as [`dalsegno_protocol::Limits::STATE_BYTES`] counts it, and an open call, as
//! [`dalsegno_protocol::Limits::OPEN_CALLS_BYTES`] does. Pure.
//!
//! A commit is held to the limit without its state being read: the run's row says how large the state at the head is at most,
//! and each boundary adds what its operations can add. Where that is too much, or nobody knows (the head was moved otherwise),
//! the state is read and counted, and the boundary is sent again with the sum, to stand on that head alone.

use dalsegno_protocol::{Channel, ChannelOps, Limits, Payload, RawValue, State};

/// What a channel or a value counts beyond its bytes: no less than its frame in the state's text, or its place in memory.
const EACH: usize = 64;

/// Bytes that a state counts. Its text is never longer.
pub fn of_state(state: &State) -> usize {
    let channels = state.iter().map(|(name, channel)| match channel {
        Channel::Value(value) => of_channel(name, [value]),
        Channel::List(items) => of_channel(name, items),
    });
    channels.sum()
}

/// Bytes that operations add to a state at most; of the full state what it counts.
pub fn of_ops(ops: &ChannelOps) -> usize {
    let set = ops.set.iter().map(|(name, value)| of_channel(name, [value]));
    let append = ops.append.iter().map(|(name, items)| of_channel(name, items));
    set.chain(append).sum()
}

/// Bytes of a call's arguments or result.
pub fn of_json(json: Option<&RawValue>) -> i64 {
    json.map_or(0, |json| json.get().len() as i64)
}

/// Bytes that an open call counts. Those of a small result it counts from the beginning: there is room for one, whatever came
/// meanwhile.
pub fn of_call(id: &str, key: &str, arguments_bytes: i64, result_bytes: i64) -> i64 {
    (id.len() + key.len()) as i64 + arguments_bytes + result_bytes.max(Limits::SMALL_RESULT_BYTES as i64)
}

fn of_channel<'p>(name: &str, payloads: impl IntoIterator<Item = &'p Payload>) -> usize {
    EACH + name.len() + payloads.into_iter().map(of_payload).sum::<usize>()
}

fn of_payload(payload: &Payload) -> usize {
    let bytes = match payload {
        Payload::Json(text) => text.get().len(),
        // A quote in a media type is two in the text.
        Payload::Bytes { media_type, base64 } => 2 * media_type.len() + base64.len(),
    };
    EACH + bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fold;

    fn ops(text: &str) -> ChannelOps {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn a_state_counts_its_bytes_and_64_for_each_channel_and_value() {
        for (text, bytes) in [
            (r#"{"full":true}"#, 0),
            (r#"{"full":true,"set":{"goal":{"json":[1, 2]}}}"#, 64 + 4 + 64 + 6),
            (r#"{"full":true,"append":{"log":[]}}"#, 64 + 3),
            (r#"{"full":true,"append":{"log":[{"json":1},{"json":"é"}]}}"#, 64 + 3 + 64 + 1 + 64 + 4),
            (
                r#"{"full":true,"set":{"i":{"bytes":{"mediaType":"a/b","base64":"AA=="}}}}"#,
                64 + 1 + 64 + 2 * 3 + 4,
            ),
        ] {
            assert_eq!(of_ops(&ops(text)), bytes, "{text}");
            assert_eq!(of_state(&fold::fold([text]).unwrap()), bytes, "{text}");
        }
    }

    #[test]
    fn operations_add_no_more_than_they_count() {
        let steps = [
            r#"{"set":{"a":{"json":1}},"append":{"l":[{"json":1},{"json":2}]}}"#,
            r#"{"set":{"a":{"json":"longer"}},"append":{"l":[{"json":3}]}}"#,
            r#"{"remove":["a"],"truncate":{"l":1}}"#,
            r#"{"append":{"a":[{"json":1}]}}"#,
            r#"{"set":{"l":{"json":null}},"append":{"a":[]}}"#,
        ];
        let (mut state, mut most) = (State::new(), 0);
        for text in steps {
            fold::step(&mut state, text).unwrap();
            most += of_ops(&ops(text));
            assert!(of_state(&state) <= most, "{text}");
        }
    }

    #[test]
    fn the_text_of_a_state_is_never_longer_than_it_counts() {
        let quotes = r#"\""#.repeat(Limits::NAME_CHARS);
        let least = format!(
            r#"{{"append":{{"l":[{{"bytes":{{"mediaType":"{quotes}","base64":""}}}},{{"json":1}}]}}}}"#
        );
        for text in [&least, r#"{"set":{"a":{"json":1}}}"#, r#"{"append":{"a":[]}}"#] {
            let state = fold::fold([text]).unwrap();
            assert!(fold::text(&state).unwrap().len() <= of_state(&state), "{text}");
        }
    }
}
