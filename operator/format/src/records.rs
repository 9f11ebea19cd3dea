//! Records: how a batch is folded, hashed and stored. Pure.
//!
//! # The records of a key
//!
//! Each change with an effect is a row of its own, so that a rewind can hide it. The records of a key are its rows
//! that are not hidden, starting with the last `put`, or after the last `delete`. A change that is replaced before
//! the next boundary is not stored, because no rewind can need it. A `deletePrefix` is stored as a `delete` of each key
//! that it empties.
//!
//! # Hashes
//!
//! With `f(x)` as in [`crate::header`]:
//!
//! ```text
//! value digest   = SHA-256(value as JSON text)
//! batch          = f(operation) f(space) f(key) f(entry id) f(value digest, or nothing)  for each change as it came
//! batch digest   = SHA-256(batch)
//! records digest = SHA-256(f(records digest before, or nothing) f(batch digest))
//! ```
//!
//! If a run is sealed, digests of values and batches are keyed with its key.
//!
//! The run's row has the records digest of the batches since its head. A boundary adds its own batch, includes the
//! digest in its header, and clears it in the row. So every change is in the chain, and a boundary without changes
//! has the same hash as before records existed. Batches are stored without values; the stored records are checked
//! against them (`dalsegno_proof`).

use std::collections::BTreeMap;

use dalsegno_model::{Digest, Error, Result, redacted_json_error};
use dalsegno_protocol::{Payload, RecordOp};

use crate::codec;
use crate::fields::{Fields, FramedHasher};
use crate::header::sha256;
use crate::seal::{AadContext, PayloadCipher, SHREDDED, is_sealed};

/// A change as it is stored.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// Name of the operation, as stored; [`DELETE_PREFIX`] is stored as a `delete` of each key that it empties.
    pub op: &'static str,
    /// Its space.
    pub space: String,
    /// Its key, or the prefix of its keys.
    pub key: String,
    /// Its entry id, if it is an `append`.
    pub entry_id: Option<String>,
    /// The value: a payload as JSON text, encoded.
    pub value: Option<Vec<u8>>,
    /// Bytes of the value's text before encoding.
    pub size: i64,
}

/// A batch ready to be stored. It is folded: a key has at most one change that is not an `append`, and that change
/// comes first. Prefixes to delete come before all keys.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    /// The changes to store: prefixes to delete, then the others in the order of spaces and keys.
    pub changes: Vec<Change>,
    /// The batch as received, with digests instead of values.
    pub batch: Vec<u8>,
    /// Digest of that batch; `None` if nothing changes.
    pub digest: Option<Digest>,
}

impl Changes {
    /// Folds these operations, given in the order of their arrival.
    pub fn of(operations: &[RecordOp], cipher: &PayloadCipher) -> Result<Self> {
        let changes = fold(operations).into_iter().map(|(op, operation)| change(op, operation, cipher));
        let batch = batch(operations, cipher);
        let digest = (!batch.is_empty()).then(|| cipher.digest(sha256(&batch)));
        Ok(Self { changes: changes.collect::<Result<_>>()?, batch, digest })
    }
}

/// The records digest after this batch. PostgreSQL computes it in its own statement.
pub fn link(before: Option<Digest>, batch: &Digest) -> Digest {
    let mut hash = FramedHasher::bare();
    hash.field(before.as_ref().map_or(&[], |before| before.as_slice()));
    hash.field(batch);
    hash.finish()
}

const OPERATION: &str = "reading a record's value";

/// Decodes a stored value. [`Error::Gone`] if it was shredded.
pub fn payload(stored: &[u8], context: AadContext<'_>, cipher: &PayloadCipher) -> Result<Payload> {
    let text = stored_text(stored, context, cipher)?;
    let text = text.ok_or_else(|| Error::Gone { operation: OPERATION, detail: SHREDDED.into() })?;
    serde_json::from_slice(&text)
        .map_err(|error| Error::Corrupt { operation: OPERATION, detail: redacted_json_error(&error) })
}

/// The text of a stored value, and its digest as its batch has it; `None` if the value was shredded. A value that is
/// not sealed has a plain digest, because it was written before the run had a key.
pub fn stored_value(
    stored: &[u8],
    context: AadContext<'_>,
    cipher: &PayloadCipher,
) -> Result<Option<(String, Digest)>> {
    let Some(text) = stored_text(stored, context, cipher)? else { return Ok(None) };
    let digest = match sha256(&text) {
        plain if is_sealed(stored) => cipher.digest(plain),
        plain => plain,
    };
    let text = String::from_utf8(text)
        .map_err(|_| Error::Corrupt { operation: OPERATION, detail: "it is not UTF-8".into() })?;
    Ok(Some((text, digest)))
}

fn stored_text(stored: &[u8], context: AadContext<'_>, cipher: &PayloadCipher) -> Result<Option<Vec<u8>>> {
    let opened = cipher.open_unless_shredded(context, stored)?;
    opened.map(|opened| codec::decode(&opened, codec::LIMIT)).transpose()
}

/// Whether a batch has this digest. For a shredded run this cannot be checked, and the answer is true.
pub fn is_digest_of(digest: &Digest, batch: &[u8], cipher: &PayloadCipher) -> bool {
    let plain = sha256(batch);
    cipher.is_shredded() || *digest == plain || *digest == cipher.digest(plain)
}

/// A change as listed in a batch, with the digest of its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchEntry {
    /// Name of the operation.
    pub op: String,
    /// Its space.
    pub space: String,
    /// Its key.
    pub key: String,
    /// The entry id; empty if it is not an `append`.
    pub entry_id: String,
    /// Digest of its value; `None` if it has none.
    pub value: Option<Digest>,
}

/// Parses an encoded batch; `None` if the bytes are not a batch.
pub fn parse_batch(mut batch: &[u8]) -> Option<Vec<BatchEntry>> {
    let mut all = Vec::new();
    while !batch.is_empty() {
        let mut text = || String::from_utf8(unframed(&mut batch)?.to_vec()).ok();
        let (op, space, key, entry_id) = (text()?, text()?, text()?, text()?);
        let value = match unframed(&mut batch)? {
            [] => None,
            digest => Some(digest.try_into().ok()?),
        };
        all.push(BatchEntry { op, space, key, entry_id, value });
    }
    Some(all)
}

fn batch(operations: &[RecordOp], cipher: &PayloadCipher) -> Vec<u8> {
    let mut batch = Fields::default();
    for operation in operations {
        let (space, key) = operation.space_and_key();
        let (entry_id, value) = operation.entry();
        for text in [op_name(operation), space, key, entry_id.unwrap_or_default()] {
            batch.field(text.as_bytes());
        }
        let value = value.map(|value| cipher.digest(sha256(text(value).as_bytes())));
        batch.field(value.as_ref().map_or(&[], Digest::as_slice));
    }
    batch.0
}

/// Removes and returns the first field.
fn unframed<'b>(batch: &mut &'b [u8]) -> Option<&'b [u8]> {
    let (length, rest) = batch.split_first_chunk()?;
    let (field, rest) = rest.split_at_checked(u32::from_be_bytes(*length) as usize)?;
    *batch = rest;
    Some(field)
}

/// The changes of a batch that are left after later changes of the same key have replaced earlier ones, each with the
/// name of its stored operation. What came before a `deletePrefix` under its prefix is gone, so that can come first.
fn fold(operations: &[RecordOp]) -> Vec<(&'static str, &RecordOp)> {
    let mut prefixes: Vec<&RecordOp> = Vec::new();
    let mut keys: BTreeMap<(&str, &str), Vec<(&'static str, &RecordOp)>> = BTreeMap::new();
    for operation in operations {
        let place = operation.space_and_key();
        if let RecordOp::DeletePrefix { .. } = operation {
            keys.retain(|key, _| !starts_with(*key, place));
            prefixes.retain(|other| !starts_with(other.space_and_key(), place));
            if !prefixes.iter().any(|other| starts_with(place, other.space_and_key())) {
                prefixes.push(operation);
            }
            continue;
        }
        let is_emptied = || prefixes.iter().any(|prefix| starts_with(place, prefix.space_and_key()));
        fold_key(keys.entry(place).or_default(), operation, is_emptied);
    }
    let prefixes = prefixes.into_iter().map(|operation| (DELETE_PREFIX, operation));
    prefixes.chain(keys.into_values().flatten()).collect()
}

/// Adds a change to those of its key. `is_emptied`: whether the batch has deleted the key by a prefix.
fn fold_key<'a>(
    held: &mut Vec<(&'static str, &'a RecordOp)>,
    operation: &'a RecordOp,
    is_emptied: impl Fn() -> bool,
) {
    match operation {
        RecordOp::Put { .. } | RecordOp::Delete { .. } | RecordOp::DeletePrefix { .. } => {
            *held = vec![(op_name(operation), operation)];
        }
        // The key was deleted earlier in this batch, so it is absent.
        RecordOp::PutIfAbsent { .. }
            if matches!(held[..], [(DELETE, _)]) || held.is_empty() && is_emptied() =>
        {
            *held = vec![(PUT, operation)];
        }
        RecordOp::PutIfAbsent { .. } if held.is_empty() => held.push((op_name(operation), operation)),
        RecordOp::PutIfAbsent { .. } => {}
        RecordOp::Append { entry_id, .. } => {
            if held.iter().all(|(_, held)| held.entry().0 != Some(entry_id)) {
                held.push((op_name(operation), operation));
            }
        }
    }
}

/// Whether a key, or a prefix of keys, starts with this prefix in this space.
fn starts_with((space, key): (&str, &str), (of, prefix): (&str, &str)) -> bool {
    space == of && key.starts_with(prefix)
}

const PUT: &str = "put";
const DELETE: &str = "delete";

/// Name of the operation that deletes all keys with a prefix.
pub const DELETE_PREFIX: &str = "deletePrefix";

fn op_name(operation: &RecordOp) -> &'static str {
    match operation {
        RecordOp::Put { .. } => PUT,
        RecordOp::PutIfAbsent { .. } => "putIfAbsent",
        RecordOp::Append { .. } => "append",
        RecordOp::Delete { .. } => DELETE,
        RecordOp::DeletePrefix { .. } => DELETE_PREFIX,
    }
}

fn change(op: &'static str, operation: &RecordOp, cipher: &PayloadCipher) -> Result<Change> {
    let (space, key) = operation.space_and_key();
    let (entry_id, value) = operation.entry();
    let text = value.map(text);
    let seal =
        |text: &String| cipher.seal(AadContext::Record(space, key, entry_id), codec::encode(text.as_bytes()));
    Ok(Change {
        op,
        space: space.to_owned(),
        key: key.to_owned(),
        entry_id: entry_id.map(str::to_owned),
        size: text.as_ref().map_or(0, |text| text.len() as i64),
        value: text.as_ref().map(seal).transpose()?,
    })
}

/// A payload as JSON text. It is built by hand, because a serializer might rewrite the worker's text.
fn text(payload: &Payload) -> String {
    match payload {
        Payload::Json(json) => format!("{{\"json\":{}}}", json.get()),
        Payload::Bytes { media_type, base64 } => {
            serde_json::json!({ "bytes": { "mediaType": media_type, "base64": base64 } }).to_string()
        }
    }
}
