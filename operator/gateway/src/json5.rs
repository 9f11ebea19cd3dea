//! `NaN`, `Infinity` and `-Infinity`: JSON has no such numbers, JSON5 has, and some libraries write them into JSON
//! (Python's does).
//!
//! A state, or a value of a channel or a record, that holds one is taken as bytes of JSON5: the text that came, as a
//! payload that every reader of JSON can carry on. Anywhere else such a number is refused.

use std::collections::BTreeMap;
use std::ops::Range;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use dalsegno_protocol::nesting::end_of_string;
use dalsegno_protocol::{ChannelOps, Limits, Payload, RawValue, bounded};
use memchr::memmem;
use serde::Deserialize;

use crate::response::Refusal;

/// What such a payload says it is.
const MEDIA_TYPE: &str = "application/json5";

/// The longest first where one ends as another does.
const NUMBERS: [&[u8]; 3] = [b"-Infinity", b"Infinity", b"NaN"];

/// The body as a parser of JSON can read it; the same body, where it is JSON already.
pub(crate) fn to_json(body: Vec<u8>) -> Result<Vec<u8>, Refusal> {
    let Some(masked) = masked(&body) else { return Ok(body) };
    // What is no JSON for other reasons is left to the parser, which says where.
    let Ok(values) = serde_json::from_slice::<Values<'_>>(&masked) else { return Ok(body) };
    let texts = Texts { body: &body, masked: &masked };
    let mut json = Vec::with_capacity(body.len() * 2);
    let mut copied = 0;
    for (place, instead) in texts.to_replace(&values) {
        json.extend_from_slice(&body[copied..place.start]);
        json.extend_from_slice(instead.as_bytes());
        copied = place.end;
    }
    json.extend_from_slice(&body[copied..]);
    if self::masked(&json).is_some() {
        return Err(Refusal::invalid(
            "NaN and Infinity are no JSON: `state` and the values of channels and records may hold them, nothing else \
             of a body; send a string",
        ));
    }
    Ok(json)
}

/// The text with ones in the place of each of these numbers, as long as before, so that what stands where stays; `None`
/// where it holds none.
fn masked(text: &[u8]) -> Option<Vec<u8>> {
    // Where the first stands, the second does.
    if NUMBERS[1..].iter().all(|number| memmem::find(text, number).is_none()) {
        return None;
    }
    let mut masked = None;
    let mut offset = 0;
    while let Some(byte) = text.get(offset) {
        if let Some(end) = end_of_number(text, offset) {
            masked.get_or_insert_with(|| text.to_vec())[offset..end].fill(b'1');
            offset = end;
        } else if *byte == b'"' {
            // One that never closes holds all that is left.
            offset = end_of_string(text, offset).map_or(text.len(), |end| end + 1);
        } else {
            offset += 1;
        }
    }
    masked
}

/// Where the number that begins here ends, if one of these does and stands where a value may.
fn end_of_number(text: &[u8], start: usize) -> Option<usize> {
    let end = start + NUMBERS.iter().find(|number| text[start..].starts_with(number))?.len();
    let before = text[..start].last().is_none_or(|byte| b":,[ \t\r\n".contains(byte));
    let after = text.get(end).is_none_or(|byte| b",]} \t\r\n".contains(byte));
    (before && after).then_some(end)
}

/// Where a body may hold such numbers.
#[derive(Deserialize)]
struct Values<'a> {
    #[serde(borrow)]
    state: Option<&'a RawValue>,
    #[serde(borrow)]
    channels: Option<Channels<'a>>,
    /// Of a boundary `records`, of a batch `operations`.
    #[serde(
        borrow,
        default,
        alias = "operations",
        deserialize_with = "bounded::list::<{ Limits::RECORDS }, _, _>"
    )]
    records: Vec<Change<'a>>,
}

#[derive(Deserialize)]
struct Channels<'a> {
    #[serde(borrow, default, deserialize_with = "bounded::map::<{ Limits::CHANNELS }, _, _>")]
    set: BTreeMap<String, &'a RawValue>,
    #[serde(borrow, default, deserialize_with = "bounded::lists")]
    append: BTreeMap<String, Vec<&'a RawValue>>,
}

/// One operation, under its name.
#[derive(Deserialize)]
struct Change<'a>(
    #[serde(borrow, deserialize_with = "bounded::map::<1, _, _>")] BTreeMap<String, Operation<'a>>,
);

#[derive(Deserialize)]
struct Operation<'a> {
    #[serde(borrow)]
    value: Option<&'a RawValue>,
}

/// A payload of JSON.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Json<'a> {
    #[serde(borrow)]
    json: &'a RawValue,
}

/// A body, and what was parsed of it in its place.
struct Texts<'a> {
    body: &'a [u8],
    masked: &'a [u8],
}

impl Texts<'_> {
    /// Each place that holds such a number, in order, and what is to stand there instead.
    fn to_replace(&self, values: &Values<'_>) -> Vec<(Range<usize>, String)> {
        let Values { state, channels, records } = values;
        let channels = channels
            .iter()
            .flat_map(|Channels { set, append }| set.values().chain(append.values().flatten()));
        let operations =
            records.iter().flat_map(|Change(change)| change).filter_map(|(_, operation)| operation.value);
        let payloads = channels.copied().chain(operations).filter_map(|payload| self.payload(payload));
        let state = state.and_then(|state| self.state(state));
        let mut all: Vec<_> = state.into_iter().chain(payloads).collect();
        all.sort_by_key(|(place, _)| place.start);
        all
    }

    fn payload(&self, payload: &RawValue) -> Option<(Range<usize>, String)> {
        let Json { json } = serde_json::from_str(payload.get()).ok()?;
        Some((self.place(payload), serde_json::to_string(&self.bytes(json)?).ok()?))
    }

    /// A whole state is the one channel of that name, and only a channel's value can be bytes.
    fn state(&self, state: &RawValue) -> Option<(Range<usize>, String)> {
        let bytes = self.bytes(state)?;
        let place = self.place(state);
        let before = self.body[..place.start].trim_ascii_end().strip_suffix(b":")?.trim_ascii_end();
        let key = before.strip_suffix(br#""state""#)?;
        let channels = serde_json::to_string(&ChannelOps::whole(bytes)).ok()?;
        Some((key.len()..place.end, format!(r#""channels":{channels}"#)))
    }

    /// A text that holds such a number, as bytes.
    fn bytes(&self, text: &RawValue) -> Option<Payload> {
        let came = &self.body[self.place(text)];
        let holds = came != text.get().as_bytes();
        holds.then(|| Payload::Bytes { media_type: MEDIA_TYPE.into(), base64: STANDARD.encode(came) })
    }

    /// Where in the body this text stands, which is a part of `masked`.
    fn place(&self, text: &RawValue) -> Range<usize> {
        let text = text.get();
        let start = text.as_ptr().addr() - self.masked.as_ptr().addr();
        start..start + text.len()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn json(body: &str) -> String {
        match to_json(body.as_bytes().to_vec()) {
            Ok(json) => String::from_utf8(json).unwrap(),
            Err(refusal) => format!("{refusal:?}"),
        }
    }

    /// Each payload of bytes as its text.
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
    fn json_is_left_as_it_is() {
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
    fn a_value_with_such_a_number_becomes_bytes_of_its_text_and_nothing_else_changes() {
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
    fn what_is_cut_or_broken_anywhere_is_refused_or_left_or_json() {
        let body = r#"{"state":[NaN, -Infinity],"channels":{"set":{"a\"":{"json":Infinity}}},"records":[{"put":{"value":{"json":NaN}}}]}"#;
        let cut = (0..body.len()).map(|end| body[..end].to_owned());
        let broken = (0..body.len()).flat_map(|at| {
            ["\"", "\\", "N", "1", " ", "{", "}", ",", ""].map(|other| {
                let (before, after) = body.split_at(at);
                format!("{before}{other}{}", &after[1..])
            })
        });
        for body in cut.chain(broken) {
            let said = json(&body);
            let refused = said.contains("NaN and Infinity are no JSON");
            let is_json = serde_json::from_str::<serde::de::IgnoredAny>(&said).is_ok();
            assert!(said == body || refused || is_json, "{body}: {said}");
        }
    }

    #[test]
    fn anywhere_else_it_is_refused() {
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
            let said = json(body);
            assert!(said.contains("NaN and Infinity are no JSON") || said == body, "{body}: {said}");
            assert!(serde_json::from_str::<Value>(&said).is_err(), "{body}: {said}");
        }
    }
}
