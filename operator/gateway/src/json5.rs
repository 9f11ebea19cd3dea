//! The non-finite numbers `NaN`, `Infinity` and `-Infinity`. JSON does not have them, JSON5 does, and some libraries
//! (Python's among them) write them into JSON.
//!
//! A state, or the value of a channel or a record, that holds such a number is stored as bytes of JSON5: the text as
//! sent, in a payload that every JSON reader can carry. Anywhere else in a body such a number is refused.

use std::collections::BTreeMap;
use std::ops::Range;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use dalsegno_protocol::nesting::end_of_string;
use dalsegno_protocol::{ChannelOps, Limits, Payload, RawValue, bounded};
use memchr::memmem;
use serde::Deserialize;

use crate::response::ApiProblem;

/// Media type of a payload that holds a non-finite number.
const MEDIA_TYPE: &str = "application/json5";

/// The non-finite numbers. `-Infinity` comes before `Infinity`, because it contains it.
const NUMBERS: [&[u8]; 3] = [b"-Infinity", b"Infinity", b"NaN"];

/// Returns the body as JSON: unchanged if it holds no non-finite number.
pub(crate) fn to_json(body: Vec<u8>) -> Result<Vec<u8>, ApiProblem> {
    let Some(masked) = masked(&body) else { return Ok(body) };
    // The body may be invalid JSON for other reasons. The parser reports those, with the position.
    let Ok(values) = serde_json::from_slice::<Values<'_>>(&masked) else { return Ok(body) };
    let texts = Texts { body: &body, masked: &masked };
    let mut json = Vec::with_capacity(body.len() * 2);
    let mut copied = 0;
    for (range, replacement) in texts.replacements(&values) {
        json.extend_from_slice(&body[copied..range.start]);
        json.extend_from_slice(replacement.as_bytes());
        copied = range.end;
    }
    json.extend_from_slice(&body[copied..]);
    if self::masked(&json).is_some() {
        return Err(ApiProblem::invalid(
            "NaN and Infinity are not JSON: only `state` and the values of channels and records may hold them; send a \
             string instead",
        ));
    }
    Ok(json)
}

/// The text with each non-finite number replaced by as many ones, so that all offsets stay the same; `None` if it holds
/// no such number.
fn masked(text: &[u8]) -> Option<Vec<u8>> {
    // `-Infinity` need not be searched for, because it contains `Infinity`.
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
            // A string that never closes extends to the end of the text.
            offset = end_of_string(text, offset).map_or(text.len(), |end| end + 1);
        } else {
            offset += 1;
        }
    }
    masked
}

/// The end of the non-finite number that starts here, if there is one in a place where a value may be.
fn end_of_number(text: &[u8], start: usize) -> Option<usize> {
    let end = start + NUMBERS.iter().find(|number| text[start..].starts_with(number))?.len();
    let before = text[..start].last().is_none_or(|byte| b":,[ \t\r\n".contains(byte));
    let after = text.get(end).is_none_or(|byte| b",]} \t\r\n".contains(byte));
    (before && after).then_some(end)
}

/// The values of a body that may hold non-finite numbers.
#[derive(Deserialize)]
struct Values<'a> {
    #[serde(borrow)]
    state: Option<&'a RawValue>,
    #[serde(borrow)]
    channels: Option<Channels<'a>>,
    /// `records` in a boundary, `operations` in a batch of records.
    #[serde(
        borrow,
        default,
        alias = "operations",
        deserialize_with = "bounded::list::<{ Limits::RECORDS }, _, _>"
    )]
    records: Vec<NamedOperation<'a>>,
}

#[derive(Deserialize)]
struct Channels<'a> {
    #[serde(borrow, default, deserialize_with = "bounded::map::<{ Limits::CHANNELS }, _, _>")]
    set: BTreeMap<String, &'a RawValue>,
    #[serde(borrow, default, deserialize_with = "bounded::lists")]
    append: BTreeMap<String, Vec<&'a RawValue>>,
}

/// One operation on a record under its name, such as `put`.
#[derive(Deserialize)]
struct NamedOperation<'a>(
    #[serde(borrow, deserialize_with = "bounded::map::<1, _, _>")] BTreeMap<String, Operation<'a>>,
);

#[derive(Deserialize)]
struct Operation<'a> {
    #[serde(borrow)]
    value: Option<&'a RawValue>,
}

/// A JSON payload.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonPayload<'a> {
    #[serde(borrow)]
    json: &'a RawValue,
}

/// A body, and its masked copy, which the values were parsed from.
struct Texts<'a> {
    body: &'a [u8],
    masked: &'a [u8],
}

impl Texts<'_> {
    /// The parts of the body to replace, in order, each with its replacement.
    fn replacements(&self, values: &Values<'_>) -> Vec<(Range<usize>, String)> {
        let Values { state, channels, records } = values;
        let channels = channels
            .iter()
            .flat_map(|Channels { set, append }| set.values().chain(append.values().flatten()));
        let operations =
            records.iter().flat_map(|NamedOperation(it)| it).filter_map(|(_, operation)| operation.value);
        let payloads = channels.copied().chain(operations).filter_map(|payload| self.payload(payload));
        let state = state.and_then(|state| self.state(state));
        let mut all: Vec<_> = state.into_iter().chain(payloads).collect();
        all.sort_by_key(|(range, _)| range.start);
        all
    }

    fn payload(&self, payload: &RawValue) -> Option<(Range<usize>, String)> {
        let JsonPayload { json } = serde_json::from_str(payload.get()).ok()?;
        Some((self.range_of(payload), serde_json::to_string(&self.as_bytes(json)?).ok()?))
    }

    /// A full state becomes a single channel, because only the value of a channel can be bytes.
    fn state(&self, state: &RawValue) -> Option<(Range<usize>, String)> {
        let bytes = self.as_bytes(state)?;
        let range = self.range_of(state);
        let before = self.body[..range.start].trim_ascii_end().strip_suffix(b":")?.trim_ascii_end();
        let key = before.strip_suffix(br#""state""#)?;
        let channels = serde_json::to_string(&ChannelOps::whole(bytes)).ok()?;
        Some((key.len()..range.end, format!(r#""channels":{channels}"#)))
    }

    /// The text as a payload of bytes; `None` if it holds no non-finite number.
    fn as_bytes(&self, text: &RawValue) -> Option<Payload> {
        let sent = &self.body[self.range_of(text)];
        let is_masked = sent != text.get().as_bytes();
        is_masked.then(|| Payload::Bytes { media_type: MEDIA_TYPE.into(), base64: STANDARD.encode(sent) })
    }

    /// The range of this text in the body. The text must be a part of `masked`.
    fn range_of(&self, text: &RawValue) -> Range<usize> {
        let text = text.get();
        let start = text.as_ptr().addr() - self.masked.as_ptr().addr();
        start..start + text.len()
    }
}

#[cfg(test)]
#[path = "../tests/unit/json5.rs"]
mod tests;
