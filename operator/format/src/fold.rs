//! A run's state: the fold of its boundaries' channel operations, in order.
//!
//! The reading is total: a boundary that was accepted can always be folded, so that no commit can lock its run out of
//! its own state. What an operation finds decides what it does:
//!
//! | operation | on a missing channel | on a value | on a list |
//! |---|---|---|---|
//! | `remove` | nothing to do | gone | gone |
//! | `truncate` n | nothing to do | nothing to do | cut to at most n items |
//! | `set` | new value | replaced | replaced by the value |
//! | `append` | new list | replaced by a new list | items added |
//!
//! Within one boundary the order is that of the table. `full` starts from no channels at all.

use dalsegno_model::{Error, Result, misread};
use dalsegno_protocol::{Channel, ChannelOps, State};

/// The state after these operations, each the JSON text of [`ChannelOps`], the oldest first. JSON payloads come back
/// byte for byte.
pub fn fold<'a>(operations: impl IntoIterator<Item = &'a str>) -> Result<State> {
    let mut state = State::new();
    for text in operations {
        step(&mut state, text)?;
    }
    Ok(state)
}

/// Applies the operations of one boundary, the JSON text of [`ChannelOps`].
pub fn step(state: &mut State, operations: &str) -> Result<()> {
    let ops = serde_json::from_str(operations).map_err(|error| corrupt(misread(&error)))?;
    apply(state, ops);
    Ok(())
}

/// A state as text: what patches are made after and snapshots are made of. One state has one text, for ever: channels
/// in the order of their names, no blanks, and each JSON payload as it came.
pub fn text(state: &State) -> Result<Vec<u8>> {
    serde_json::to_vec(state).map_err(|error| corrupt(error.to_string()))
}

/// The state of which this is the [`text`].
pub fn state(text: &[u8]) -> Result<State> {
    serde_json::from_slice(text).map_err(|error| corrupt(misread(&error)))
}

fn apply(state: &mut State, ops: ChannelOps) {
    let ChannelOps { full, remove, truncate, set, append } = ops;
    if full {
        state.clear();
    }
    for name in remove {
        state.remove(&name);
    }
    for (name, length) in truncate {
        if let Some(Channel::List(items)) = state.get_mut(&name) {
            items.truncate(length as usize);
        }
    }
    for (name, value) in set {
        state.insert(name, Channel::Value(value));
    }
    for (name, mut items) in append {
        match state.get_mut(&name) {
            Some(Channel::List(list)) => list.append(&mut items),
            Some(Channel::Value(_)) | None => {
                state.insert(name, Channel::List(items));
            }
        }
    }
}

fn corrupt(detail: String) -> Error {
    Error::Corrupt { doing: "folding channel operations", detail }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folded(operations: &[&str]) -> String {
        match fold(operations.iter().copied()) {
            Ok(state) => serde_json::to_string(&state).unwrap(),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn operations_apply_in_the_documented_order() {
        let cases: &[(&[&str], &str)] = &[
            (&[], "{}"),
            (&[r#"{"set":{"a":{"json":1}}}"#], r#"{"a":{"value":{"json":1}}}"#),
            (
                &[r#"{"set":{"a":{"json":1},"b":{"json":2}}}"#, r#"{"set":{"b":{"json":3}}}"#],
                r#"{"a":{"value":{"json":1}},"b":{"value":{"json":3}}}"#,
            ),
            (
                &[r#"{"append":{"l":[{"json":1}]}}"#, r#"{"append":{"l":[{"json":2},{"json":3}]}}"#],
                r#"{"l":{"list":[{"json":1},{"json":2},{"json":3}]}}"#,
            ),
            (
                &[
                    r#"{"append":{"l":[{"json":1},{"json":2},{"json":3}]}}"#,
                    r#"{"truncate":{"l":1},"append":{"l":[{"json":9}]}}"#,
                ],
                r#"{"l":{"list":[{"json":1},{"json":9}]}}"#,
            ),
            (
                &[r#"{"append":{"l":[{"json":1}]}}"#, r#"{"remove":["l"],"append":{"l":[{"json":2}]}}"#],
                r#"{"l":{"list":[{"json":2}]}}"#,
            ),
            (&[r#"{"append":{"l":[]}}"#], r#"{"l":{"list":[]}}"#),
            (
                &[r#"{"append":{"l":[{"json":1}]}}"#, r#"{"set":{"l":{"json":2}}}"#],
                r#"{"l":{"value":{"json":2}}}"#,
            ),
            (&[r#"{"remove":["never-there"]}"#], "{}"),
            (
                &[r#"{"set":{"a":{"json":1}}}"#, r#"{"full":true,"set":{"b":{"json":2}}}"#],
                r#"{"b":{"value":{"json":2}}}"#,
            ),
        ];
        for (operations, expected) in cases {
            assert_eq!(folded(operations), *expected, "{operations:?}");
        }
    }

    #[test]
    fn an_operation_that_finds_another_kind_of_channel_locks_nobody_out() {
        let cases: &[(&[&str], &str)] = &[
            (
                &[r#"{"set":{"a":{"json":1}}}"#, r#"{"append":{"a":[{"json":2}]}}"#],
                r#"{"a":{"list":[{"json":2}]}}"#,
            ),
            (&[r#"{"truncate":{"a":0}}"#], "{}"),
            (&[r#"{"set":{"a":{"json":1}}}"#, r#"{"truncate":{"a":0}}"#], r#"{"a":{"value":{"json":1}}}"#),
            (
                &[r#"{"append":{"a":[{"json":1}]}}"#, r#"{"truncate":{"a":2}}"#],
                r#"{"a":{"list":[{"json":1}]}}"#,
            ),
            (&[r#"{"append":{"a":[{"json":1}]}}"#, r#"{"full":true,"truncate":{"a":1}}"#], "{}"),
        ];
        for (operations, expected) in cases {
            assert_eq!(folded(operations), *expected, "{operations:?}");
        }
    }

    #[test]
    fn a_state_has_one_text_for_ever() {
        let operations = r#"{"set": {"b": {"bytes":{"base64":"AA==","mediaType":"a/b"}}, "a": {"json": { "z" : 1 }}},
            "append": {"l": [{"json":1e400}], "e": []}}"#;
        let kept = concat!(
            r#"{"a":{"value":{"json":{ "z" : 1 }}},"b":{"value":{"bytes":{"mediaType":"a/b","base64":"AA=="}}},"#,
            r#""e":{"list":[]},"l":{"list":[{"json":1e400}]}}"#,
        );
        let written = text(&fold([operations]).unwrap()).unwrap();
        assert_eq!(
            String::from_utf8(written.clone()).unwrap(),
            kept,
            "patches that are kept need these very bytes"
        );
        assert_eq!(text(&state(&written).unwrap()).unwrap(), written);
        assert_eq!(text(&State::new()).unwrap(), b"{}");
    }

    #[test]
    fn text_that_is_no_operations_is_corrupt() {
        for (text, expected) in [
            (r#"{"canary":1}"#, "line 1 column 9 does not belong there"),
            (r#"{"set":{"a":{"canary":1}}}"#, "does not belong there"),
            (r#"{"full":"canary"}"#, "does not belong there"),
            (r#"{"full":canary"#, "expected value"),
            ("{", "EOF"),
        ] {
            let answer = folded(&[text]);
            assert!(answer.contains(expected) && !answer.contains("canary"), "{text}: {answer}");
        }
    }

    #[test]
    fn json_comes_back_byte_for_byte() {
        for text in [
            "12345678901234567890123456789.10",
            r#"{"z":1,  "a":[ 1e400 ]}"#,
            r#""\ud800 \u00e9""#,
            &format!("{}{}", "[".repeat(100_000), "]".repeat(100_000)),
        ] {
            let operations = format!(r#"{{"full":true,"set":{{"state":{{"json":{text}}}}}}}"#);
            let answer = folded(&[&operations]);
            assert!(answer.contains(text), "{}", &answer[..answer.len().min(200)]);
            let again = super::text(&state(answer.as_bytes()).unwrap()).unwrap();
            assert_eq!(String::from_utf8(again).unwrap(), answer, "and through a snapshot");
        }
    }
}
