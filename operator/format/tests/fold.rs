//! Folding channel operations into a state, and the canonical text of a state.
#![allow(clippy::unwrap_used, reason = "a helper of tests may fail the test")]

use dalsegno_format::fold::{fold, state, text};
use dalsegno_protocol::State;

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
fn an_operation_on_another_kind_of_channel_never_fails() {
    let cases: &[(&[&str], &str)] = &[
        (
            &[r#"{"set":{"a":{"json":1}}}"#, r#"{"append":{"a":[{"json":2}]}}"#],
            r#"{"a":{"list":[{"json":2}]}}"#,
        ),
        (&[r#"{"truncate":{"a":0}}"#], "{}"),
        (&[r#"{"set":{"a":{"json":1}}}"#, r#"{"truncate":{"a":0}}"#], r#"{"a":{"value":{"json":1}}}"#),
        (&[r#"{"append":{"a":[{"json":1}]}}"#, r#"{"truncate":{"a":2}}"#], r#"{"a":{"list":[{"json":1}]}}"#),
        (&[r#"{"append":{"a":[{"json":1}]}}"#, r#"{"full":true,"truncate":{"a":1}}"#], "{}"),
    ];
    for (operations, expected) in cases {
        assert_eq!(folded(operations), *expected, "{operations:?}");
    }
}

#[test]
fn the_text_of_a_state_never_changes() {
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
fn invalid_operations_are_reported_without_their_contents() {
    for (text, expected) in [
        (r#"{"canary":1}"#, "unexpected value at line 1 column 9"),
        (r#"{"set":{"a":{"canary":1}}}"#, "unexpected value"),
        (r#"{"full":"canary"}"#, "unexpected value"),
        (r#"{"full":canary"#, "expected value"),
        ("{", "EOF"),
    ] {
        let answer = folded(&[text]);
        assert!(answer.contains(expected) && !answer.contains("canary"), "{text}: {answer}");
    }
}

#[test]
fn json_is_preserved_byte_for_byte() {
    for text in [
        "12345678901234567890123456789.10",
        r#"{"z":1,  "a":[ 1e400 ]}"#,
        r#""\ud800 \u00e9""#,
        &format!("{}{}", "[".repeat(100_000), "]".repeat(100_000)),
    ] {
        let operations = format!(r#"{{"full":true,"set":{{"state":{{"json":{text}}}}}}}"#);
        let answer = folded(&[&operations]);
        assert!(answer.contains(text), "{}", &answer[..answer.len().min(200)]);
        let again = dalsegno_format::fold::text(&state(answer.as_bytes()).unwrap()).unwrap();
        assert_eq!(String::from_utf8(again).unwrap(), answer, "and through a snapshot");
    }
}
