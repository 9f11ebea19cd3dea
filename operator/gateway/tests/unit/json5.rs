//! Which bodies with non-finite numbers are converted, and how.

use serde_json::Value;

use super::*;

fn json(body: &str) -> String {
    match to_json(body.as_bytes().to_vec()) {
        Ok(json) => String::from_utf8(json).unwrap(),
        Err(problem) => format!("{problem:?}"),
    }
}

/// The converted body, with each payload of bytes shown as its text.
fn shown(body: &str) -> String {
    fn show(value: &mut Value) {
        match value {
            Value::Object(fields) if fields.contains_key("base64") => {
                let bytes = STANDARD.decode(fields["base64"].as_str().unwrap()).unwrap();
                assert_eq!(fields["mediaType"], MEDIA_TYPE);
                *value = String::from_utf8(bytes).unwrap().into();
            }
            Value::Object(fields) => fields.values_mut().for_each(show),
            Value::Array(items) => items.iter_mut().for_each(show),
            _ => {}
        }
    }
    let mut value = serde_json::from_str(&json(body)).unwrap();
    show(&mut value);
    value.to_string()
}

#[test]
fn json_is_unchanged() {
    for body in [
        r#"{"state": {"a":1,  "NaN":"Infinity"}}"#,
        r#"{"channels":{"set":{"NaN":{"json":"\"NaN"}}},"trigger":"-Infinity"}"#,
        r#"{"state":"NaN"#,
        r#"{"state":Nan,"x":infinity}"#,
        "",
    ] {
        assert_eq!(json(body), body);
    }
}

#[test]
fn a_value_with_a_non_finite_number_becomes_bytes_and_nothing_else_changes() {
    for (body, expected) in [
        (
            r#"{"commitId":"x", "state" : {"loss": [NaN,-Infinity , 1.0]} ,"trigger":"NaN"}"#,
            r#"{"channels":{"full":true,"set":{"state":{"bytes":"{\"loss\": [NaN,-Infinity , 1.0]}"}}},"commitId":"x","trigger":"NaN"}"#,
        ),
        (
            r#"{"channels":{"remove":["a"],"set":{"b":{"json":Infinity},"c":{"json":1}},"append":{"l":[{"json":0},{"json":[NaN]}]}}}"#,
            r#"{"channels":{"append":{"l":[{"json":0},{"bytes":"[NaN]"}]},"remove":["a"],"set":{"b":{"bytes":"Infinity"},"c":{"json":1}}}}"#,
        ),
        (
            r#"{"channels":{},"records":[{"put":{"space":"s","value":{"json":{"ü":NaN}}}},{"delete":{"space":"NaN"}}]}"#,
            r#"{"channels":{},"records":[{"put":{"space":"s","value":{"bytes":"{\"ü\":NaN}"}}},{"delete":{"space":"NaN"}}]}"#,
        ),
        (
            r#"{"operations":[{"append":{"value":{"json":-Infinity}}}]}"#,
            r#"{"operations":[{"append":{"value":{"bytes":"-Infinity"}}}]}"#,
        ),
    ] {
        assert_eq!(shown(body), expected);
    }
}

#[test]
fn a_truncated_or_altered_body_is_refused_or_unchanged_or_valid_json() {
    let body = r#"{"state":[NaN, -Infinity],"channels":{"set":{"a\"":{"json":Infinity}}},"records":[{"put":{"value":{"json":NaN}}}]}"#;
    let truncated = (0..body.len()).map(|end| body[..end].to_owned());
    let altered = (0..body.len()).flat_map(|at| {
        ["\"", "\\", "N", "1", " ", "{", "}", ",", ""].map(|other| {
            let (before, after) = body.split_at(at);
            format!("{before}{other}{}", &after[1..])
        })
    });
    for body in truncated.chain(altered) {
        let converted = json(&body);
        let refused = converted.contains("NaN and Infinity are not JSON");
        let is_json = serde_json::from_str::<serde::de::IgnoredAny>(&converted).is_ok();
        assert!(converted == body || refused || is_json, "{body}: {converted}");
    }
}

#[test]
fn a_non_finite_number_anywhere_else_is_refused() {
    for body in [
        r#"{"events":[NaN]}"#,
        r#"{"state":NaN,"usage":{"tokensIn":Infinity}}"#,
        r#"{"result":{"a":-Infinity}}"#,
        r#"{"channels":{"set":{"a":{"json":1,"more":NaN}}}}"#,
        r#"{"channels":{"set":{"a":{"json":NaN},"a":{"json":1}}}}"#,
        r#"{"st\u0061te":NaN}"#,
        r#"{"state":{NaN:1,"b":NaN}}"#,
        r#"{"state":[1NaN,NaN1,--Infinity,-NaN,NaN]}"#,
    ] {
        let converted = json(body);
        assert!(
            converted.contains("NaN and Infinity are not JSON") || converted == body,
            "{body}: {converted}"
        );
        assert!(serde_json::from_str::<Value>(&converted).is_err(), "{body}: {converted}");
    }
}
