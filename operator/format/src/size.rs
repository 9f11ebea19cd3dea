//! The size of a state, as limited by [`dalsegno_protocol::Limits::STATE_BYTES`], and of an open call, as limited by
//! [`dalsegno_protocol::Limits::OPEN_CALLS_BYTES`]. Pure.
//!
//! A commit is checked against the limit without reading its state: the run's row has an upper bound of the state's
//! size at the head, and each boundary adds the upper bound of its operations. If that sum is too large, or the size
//! is unknown because the head was moved in another way, the state is read and counted. The boundary is then sent
//! again with the exact size, valid for that head only.

use dalsegno_protocol::{Channel, ChannelOps, Limits, Payload, RawValue, State};

/// Bytes that a channel or a value counts in addition to its contents. This covers its frame in the state's text, and
/// its overhead in memory.
const OVERHEAD_BYTES: usize = 64;

/// The size of a state in bytes. The state's text is never longer.
pub fn of_state(state: &State) -> usize {
    let channels = state.iter().map(|(name, channel)| match channel {
        Channel::Value(value) => of_channel(name, [value]),
        Channel::List(items) => of_channel(name, items),
    });
    channels.sum()
}

/// Upper bound of the bytes that operations add to a state; for the full state its exact size.
pub fn of_ops(ops: &ChannelOps) -> usize {
    let set = ops.set.iter().map(|(name, value)| of_channel(name, [value]));
    let append = ops.append.iter().map(|(name, items)| of_channel(name, items));
    set.chain(append).sum()
}

/// Bytes of a call's arguments or result as JSON text.
pub fn of_json(json: Option<&RawValue>) -> i64 {
    json.map_or(0, |json| json.get().len() as i64)
}

/// What is counted of an open call.
#[derive(Clone, Copy, Debug)]
pub struct OpenCall<'a> {
    /// The call's id.
    pub id: &'a str,
    /// The idempotency key.
    pub key: &'a str,
    /// Bytes of the arguments as JSON text.
    pub arguments_bytes: i64,
    /// Bytes of the result as JSON text; 0 while there is none.
    pub result_bytes: i64,
}

/// The size of an open call, in bytes. Every call counts at least a small result from the beginning, so that a small
/// result can always be stored.
pub fn of_call(call: OpenCall<'_>) -> i64 {
    let OpenCall { id, key, arguments_bytes, result_bytes } = call;
    (id.len() + key.len()) as i64 + arguments_bytes + result_bytes.max(Limits::SMALL_RESULT_BYTES as i64)
}

fn of_channel<'p>(name: &str, payloads: impl IntoIterator<Item = &'p Payload>) -> usize {
    OVERHEAD_BYTES + name.len() + payloads.into_iter().map(of_payload).sum::<usize>()
}

fn of_payload(payload: &Payload) -> usize {
    let bytes = match payload {
        Payload::Json(text) => text.get().len(),
        // A quote in a media type takes two bytes in the text.
        Payload::Bytes { media_type, base64 } => 2 * media_type.len() + base64.len(),
    };
    OVERHEAD_BYTES + bytes
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
    fn operations_add_at_most_their_size() {
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
    fn the_text_of_a_state_is_never_longer_than_its_size() {
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
