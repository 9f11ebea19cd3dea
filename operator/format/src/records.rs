//! Records: how a batch is folded, hashed and kept. Pure.
//!
//! # What a key holds
//!
//! Each effective change is a row of its own, so that a rewind can hide it. A key holds the rows that are not hidden,
//! from its last `put` on, or after its last `delete`. What is replaced before the next boundary is not kept: no rewind can
//! ask for it again.
//!
//! # Hashes
//!
//! With `f(x)` as in [`crate::header`]:
//!
//! ```text
//! value digest   = SHA-256(value as JSON text)
//! batch          = f(word) f(space) f(key) f(entry id) f(value digest, or nothing)  for each change as it came
//! batch digest   = SHA-256(batch)
//! records digest = SHA-256(f(records digest before, or nothing) f(batch digest))
//! ```
//!
//! Where a run is sealed, digests of values and batches are made with its key.
//!
//! The run's row carries the records digest of the batches since its head; a boundary adds its own batch, takes the
//! digest into its header and leaves none behind. So every change stands in the chain, and one without changes has the
//! hash it had before there were records. Batches are kept, without any value: what a key holds is held to them
//! (`dalsegno_proof`).

use std::collections::BTreeMap;

use dalsegno_model::{Digest, Error, RecordPage, RecordQuery, Result, misread};
use dalsegno_protocol::{Payload, Record, RecordOp};

use crate::codec;
use crate::fields::{Fields, Framed};
use crate::header::sha256;
use crate::seal::{SHREDDED, Sealing, Spot, is_sealed};

/// A change as it is kept.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// Which operation, by the word it is kept under.
    pub op: &'static str,
    /// Its space.
    pub space: String,
    /// Its key.
    pub key: String,
    /// Its entry, where it is an `append`.
    pub entry_id: Option<String>,
    /// A payload as JSON text, encoded.
    pub value: Option<Vec<u8>>,
    /// Bytes of that text.
    pub size: i64,
}

/// A batch ready to be kept: folded, so that each key has at most one change that is no `append`, and it comes first.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    /// What is kept, in the order of spaces and keys.
    pub changes: Vec<Change>,
    /// The batch as it came, each value by its digest.
    pub batch: Vec<u8>,
    /// Of that batch; `None` where nothing changes.
    pub digest: Option<Digest>,
}

impl Changes {
    /// Of these operations, in the order in which they came.
    pub fn of(operations: &[RecordOp], sealing: &Sealing) -> Result<Self> {
        let changes = fold(operations).into_iter().map(|(op, operation)| change(op, operation, sealing));
        let batch = batch(operations, sealing);
        let digest = (!batch.is_empty()).then(|| sealing.digest(sha256(&batch)));
        Ok(Self { changes: changes.collect::<Result<_>>()?, batch, digest })
    }
}

/// The records digest after this batch; PostgreSQL makes it in its own statement.
pub fn link(before: Option<Digest>, batch: &Digest) -> Digest {
    let mut hash = Framed::bare();
    hash.field(before.as_ref().map_or(&[], |before| before.as_slice()));
    hash.field(batch);
    hash.finish()
}

/// The first text after all those that begin with this one; `None` if there is none.
pub fn after_prefix(prefix: &str) -> Option<String> {
    let mut letters: Vec<char> = prefix.chars().collect();
    while let Some(last) = letters.pop() {
        // The range steps over the surrogates, which are no letters.
        if let Some(next) = (last..=char::MAX).nth(1) {
            letters.push(next);
            return Some(letters.into_iter().collect());
        }
    }
    None
}

/// A page of these entries, each with its place in its key, of `found` that there were to choose from.
pub fn page(mut entries: Vec<(Record, i64)>, found: i64, query: &RecordQuery) -> RecordPage {
    entries.truncate(query.limit as usize);
    let last = entries.last().map(|(record, seq)| (record.key.clone(), *seq));
    let next = last.filter(|_| (entries.len() as i64) < found);
    RecordPage { records: entries.into_iter().map(|(record, _)| record).collect(), next }
}

const DOING: &str = "reading a record's value";

/// A kept value. [`Error::Gone`] where it was shredded.
pub fn payload(kept: &[u8], spot: Spot<'_>, sealing: &Sealing) -> Result<Payload> {
    let text = kept_text(kept, spot, sealing)?;
    let text = text.ok_or_else(|| Error::Gone { doing: DOING, detail: SHREDDED.into() })?;
    serde_json::from_slice(&text).map_err(|error| Error::Corrupt { doing: DOING, detail: misread(&error) })
}

/// The digest of a kept value, as its batch has it; `None`: it was shredded. One that is not sealed has a plain digest: it was
/// kept before the run had a key.
pub fn kept_digest(kept: &[u8], spot: Spot<'_>, sealing: &Sealing) -> Result<Option<Digest>> {
    let text = kept_text(kept, spot, sealing)?;
    Ok(text.map(|text| match sha256(&text) {
        plain if is_sealed(kept) => sealing.digest(plain),
        plain => plain,
    }))
}

fn kept_text(kept: &[u8], spot: Spot<'_>, sealing: &Sealing) -> Result<Option<Vec<u8>>> {
    let opened = sealing.open_if_kept(spot, kept)?;
    opened.map(|opened| codec::decode(&opened, codec::LIMIT)).transpose()
}

/// Whether a batch has this digest. Of a run that was shredded nobody knows.
pub fn is_digest_of(digest: &Digest, batch: &[u8], sealing: &Sealing) -> bool {
    let plain = sha256(batch);
    sealing.is_shredded() || *digest == plain || *digest == sealing.digest(plain)
}

/// A change as its batch lists it, its value by its digest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Which operation.
    pub word: String,
    /// Its space.
    pub space: String,
    /// Its key.
    pub key: String,
    /// Empty where it is no `append`.
    pub entry_id: String,
    /// Digest of its value; `None`: it has none.
    pub value: Option<Digest>,
}

/// What a batch lists; `None`: it is none.
pub fn listed(mut batch: &[u8]) -> Option<Vec<Listed>> {
    let mut all = Vec::new();
    while !batch.is_empty() {
        let mut text = || String::from_utf8(unframed(&mut batch)?.to_vec()).ok();
        let (word, space, key, entry_id) = (text()?, text()?, text()?, text()?);
        let value = match unframed(&mut batch)? {
            [] => None,
            digest => Some(digest.try_into().ok()?),
        };
        all.push(Listed { word, space, key, entry_id, value });
    }
    Some(all)
}

fn batch(operations: &[RecordOp], sealing: &Sealing) -> Vec<u8> {
    let mut batch = Fields::default();
    for operation in operations {
        let (space, key) = operation.place();
        let (entry_id, value) = operation.entry();
        for text in [word(operation), space, key, entry_id.unwrap_or_default()] {
            batch.field(text.as_bytes());
        }
        let value = value.map(|value| sealing.digest(sha256(text(value).as_bytes())));
        batch.field(value.as_ref().map_or(&[], Digest::as_slice));
    }
    batch.0
}

/// Takes the first field.
fn unframed<'b>(batch: &mut &'b [u8]) -> Option<&'b [u8]> {
    let (length, rest) = batch.split_first_chunk()?;
    let (field, rest) = rest.split_at_checked(u32::from_be_bytes(*length) as usize)?;
    *batch = rest;
    Some(field)
}

/// What is left of a batch once each change that a later one of its key undoes is gone, each with the word it is kept
/// under.
fn fold(operations: &[RecordOp]) -> Vec<(&'static str, &RecordOp)> {
    let mut keys: BTreeMap<(&str, &str), Vec<(&'static str, &RecordOp)>> = BTreeMap::new();
    for operation in operations {
        let held = keys.entry(operation.place()).or_default();
        match operation {
            RecordOp::Put { .. } | RecordOp::Delete { .. } => *held = vec![(word(operation), operation)],
            RecordOp::PutIfAbsent { .. } if held.is_empty() => held.push((word(operation), operation)),
            // What was deleted just before is absent.
            RecordOp::PutIfAbsent { .. } if matches!(held[..], [(DELETE, _)]) => {
                *held = vec![(PUT, operation)];
            }
            RecordOp::PutIfAbsent { .. } => {}
            RecordOp::Append { entry_id, .. } => {
                if held.iter().all(|(_, held)| held.entry().0 != Some(entry_id)) {
                    held.push((word(operation), operation));
                }
            }
        }
    }
    keys.into_values().flatten().collect()
}

const PUT: &str = "put";
const DELETE: &str = "delete";

fn word(operation: &RecordOp) -> &'static str {
    match operation {
        RecordOp::Put { .. } => PUT,
        RecordOp::PutIfAbsent { .. } => "putIfAbsent",
        RecordOp::Append { .. } => "append",
        RecordOp::Delete { .. } => DELETE,
    }
}

fn change(op: &'static str, operation: &RecordOp, sealing: &Sealing) -> Result<Change> {
    let (space, key) = operation.place();
    let (entry_id, value) = operation.entry();
    let text = value.map(text);
    let seal =
        |text: &String| sealing.seal(Spot::Record(space, key, entry_id), codec::encode(text.as_bytes()));
    Ok(Change {
        op,
        space: space.to_owned(),
        key: key.to_owned(),
        entry_id: entry_id.map(str::to_owned),
        size: text.as_ref().map_or(0, |text| text.len() as i64),
        value: text.as_ref().map(seal).transpose()?,
    })
}

/// A payload as JSON text. Put together by hand: a serialiser might write the worker's text anew.
fn text(payload: &Payload) -> String {
    match payload {
        Payload::Json(json) => format!("{{\"json\":{}}}", json.get()),
        Payload::Bytes { media_type, base64 } => {
            serde_json::json!({ "bytes": { "mediaType": media_type, "base64": base64 } }).to_string()
        }
    }
}

#[cfg(test)]
mod tests {
    use dalsegno_protocol::RawValue;

    use super::*;

    const SPOT: Spot<'static> = Spot::Record("s", "k", None);

    fn plain() -> Sealing {
        Sealing::default()
    }

    fn json(text: &str) -> Payload {
        Payload::Json(RawValue::from_string(text.into()).unwrap())
    }

    /// `p1`: put 1 under k; `i`: putIfAbsent; `a`: append with that id; `d`: delete.
    fn operation(short: &str) -> RecordOp {
        let (space, key, value) = ("s".to_owned(), "k".to_owned(), json(&short[1..]));
        match &short[..1] {
            "p" => RecordOp::Put { space, key, value },
            "i" => RecordOp::PutIfAbsent { space, key, value },
            "a" => RecordOp::Append { space, key, entry_id: short[1..].to_owned(), value },
            _ => RecordOp::Delete { space, key },
        }
    }

    /// What comes, in short; what is kept, with its value.
    type Folding = (&'static [&'static str], &'static [(&'static str, &'static str)]);

    #[test]
    fn a_batch_is_folded_per_key() {
        let cases: &[Folding] = &[
            (&[], &[]),
            (&["p1", "p2"], &[("put", "2")]),
            (&["a1", "p2", "a3"], &[("put", "2"), ("append", "3")]),
            (&["p1", "d1"], &[("delete", "")]),
            (&["a1", "a1", "a2"], &[("append", "1"), ("append", "2")]),
            (&["i1", "i2"], &[("putIfAbsent", "1")]),
            (&["p1", "i2"], &[("put", "1")]),
            (&["a1", "i2"], &[("append", "1")]),
            (&["d1", "i2"], &[("put", "2")]),
            (&["d1", "a1", "i2"], &[("delete", ""), ("append", "1")]),
            (&["i1", "a2", "d1", "a2"], &[("delete", ""), ("append", "2")]),
        ];
        for (batch, expected) in cases {
            let operations: Vec<_> = batch.iter().map(|short| operation(short)).collect();
            let folded: Vec<_> = Changes::of(&operations, &plain())
                .unwrap()
                .changes
                .into_iter()
                .map(|change| {
                    (change.op, change.value.map(|value| text(&payload(&value, SPOT, &plain()).unwrap())))
                })
                .collect();
            let expected: Vec<_> = expected
                .iter()
                .map(|(op, value)| (*op, (!value.is_empty()).then(|| format!("{{\"json\":{value}}}"))))
                .collect();
            assert_eq!(folded, expected, "{batch:?}");
        }
    }

    #[test]
    fn a_batch_has_the_golden_digest_of_its_fields() {
        let framed = |fields: &[&[u8]]| {
            let mut bytes = Vec::new();
            for field in fields {
                bytes.extend((field.len() as u32).to_be_bytes());
                bytes.extend(*field);
            }
            bytes
        };
        let operations = [operation("a7"), operation("d0")];
        let value = sha256(br#"{"json":7}"#);
        let expected = framed(&[b"append", b"s", b"k", b"7", &value, b"delete", b"s", b"k", b"", b""]);
        let changes = Changes::of(&operations, &plain()).unwrap();
        assert_eq!((changes.digest, changes.batch), (Some(sha256(&expected)), expected.clone()));
        assert_eq!(Changes::of(&[], &plain()).unwrap().digest, None);
        assert_eq!(link(None, &[1; 32]), sha256(&framed(&[b"", &[1; 32]])));
        assert_eq!(link(Some([2; 32]), &[1; 32]), sha256(&framed(&[&[2; 32], &[1; 32]])));

        let change = |word: &str, entry_id: &str, value| Listed {
            word: word.into(),
            space: "s".into(),
            key: "k".into(),
            entry_id: entry_id.into(),
            value,
        };
        let all = vec![change("append", "7", Some(value)), change("delete", "", None)];
        assert_eq!(listed(&expected), Some(all));
        for cut in 1..expected.len() {
            assert!(listed(&expected[..cut]).is_none_or(|all| all.len() == 1), "{cut}");
        }
    }

    #[test]
    fn a_value_is_kept_as_it_came() {
        for value in ["12345678901234567890.10", r#"{"z":1,  "a":[ 1e400 ]}"#, r#""\ud800""#, "null"] {
            let kept = codec::encode(text(&json(value)).as_bytes());
            assert!(
                matches!(payload(&kept, SPOT, &plain()).unwrap(), Payload::Json(back) if back.get() == value)
            );
        }
        let bytes = Payload::Bytes { media_type: "image/png".into(), base64: "iVBORw0KGgo=".into() };
        let back = payload(&codec::encode(text(&bytes).as_bytes()), SPOT, &plain()).unwrap();
        assert!(matches!(back, Payload::Bytes { media_type, base64 }
            if (media_type.as_str(), base64.as_str()) == ("image/png", "iVBORw0KGgo=")));
    }

    #[test]
    fn a_prefix_ends_before_the_next_text_of_its_length() {
        for (prefix, after) in [
            ("", None),
            ("a", Some("b")),
            ("thread/", Some("thread0")),
            ("\u{d7ff}", Some("\u{e000}")),
            ("a\u{10ffff}", Some("b")),
            ("\u{10ffff}", None),
        ] {
            assert_eq!(after_prefix(prefix).as_deref(), after, "{prefix:?}");
        }
    }
}
