//! The encoding of stored payloads: one codec byte, then the bytes.
//!
//! | codec | bytes |
//! |---|---|
//! | 0 | raw, if compression does not make it smaller |
//! | 1 | one zstd frame |
//! | 2 | a patch: one zstd frame whose prefix is the text of the state before ([`crate::fold::text`]) |
//!
//! A codec byte plus 16 means that the bytes after it are sealed ([`crate::seal`]). Other codec bytes are rejected.
//! Only a boundary's channel operations may be a patch.

use std::cell::RefCell;
use std::io::{Cursor, Write as _};

use dalsegno_model::{Error, Result};
use dalsegno_protocol::{Limits, RawValue};
use zstd::bulk::Compressor;
use zstd::zstd_safe::{self, DCtx};

use crate::seal::SEALED;

const RAW: u8 = 0;
const ZSTD: u8 = 1;
const PATCH: u8 = 2;

/// The fastest level. The answer to a commit waits for the compression.
const ZSTD_LEVEL: i32 = 1;

/// log2 of the largest window of a patch. The window holds the state before and the state after.
const ZSTD_WINDOW_LOG: u32 = 25;

/// log2 of the smallest window that zstd supports.
const ZSTD_WINDOW_LOG_MIN: u32 = 10;

/// The largest payload that is decoded, in bytes: a request body, with room for the length prefixes of its events and
/// the names around its state.
pub const LIMIT: usize = 2 * Limits::BODY_BYTES;

/// The largest state that the first boundary of a fork holds, in bytes: its text is not longer than its size, and names
/// of operations take little.
pub const STATE_LIMIT: usize = 2 * Limits::STATE_BYTES;

thread_local! {
    /// Creating a compressor costs as much as compressing a small payload, so each thread keeps one.
    static COMPRESSOR: RefCell<Option<Compressor<'static>>> = RefCell::new(Compressor::new(ZSTD_LEVEL).ok());

    /// The same for decompression. A patch's prefix is text, so zstd never takes it for a dictionary.
    static DECOMPRESSOR: RefCell<Option<DCtx<'static>>> = RefCell::new(DCtx::try_create());
}

/// Encodes a payload for storage.
pub fn encode(bytes: &[u8]) -> Vec<u8> {
    // Raw is always correct: if the compressor fails, only space is lost.
    COMPRESSOR
        .with_borrow_mut(|compressor| compress(compressor.as_mut()?, bytes))
        .unwrap_or_else(|| tagged(RAW, bytes))
}

/// The codec byte and one zstd frame; `None` if that is not smaller than the input.
fn compress(compressor: &mut Compressor<'_>, bytes: &[u8]) -> Option<Vec<u8>> {
    let mut payload = Vec::with_capacity(1 + zstd_safe::compress_bound(bytes.len()));
    payload.push(ZSTD);
    let mut behind = Cursor::new(payload);
    behind.set_position(1);
    let length = compressor.compress_to_buffer(bytes, &mut behind).ok()?;
    (length < bytes.len()).then(|| behind.into_inner())
}

/// Decodes a stored payload. A payload of more than `limit` decoded bytes is rejected before that much memory is
/// used.
pub fn decode(payload: &[u8], limit: usize) -> Result<Vec<u8>> {
    let (codec, bytes) = payload.split_first().ok_or_else(|| corrupt("it is empty"))?;
    match *codec {
        RAW if bytes.len() > limit => Err(too_large(limit)),
        RAW => Ok(bytes.to_vec()),
        ZSTD => decompress(b"", bytes, limit),
        PATCH => Err(corrupt("it is a patch, and the state before it is not known")),
        other => Err(corrupt(format!("unknown codec {other}"))),
    }
}

/// Encodes a payload as a patch against the state before, so that it costs only the difference. `None` if both
/// together exceed the largest window.
pub fn encode_after(before: &[u8], bytes: &[u8]) -> Option<Vec<u8>> {
    let window_log = (before.len() + bytes.len()).next_power_of_two().ilog2().max(ZSTD_WINDOW_LOG_MIN);
    if window_log > ZSTD_WINDOW_LOG {
        return None;
    }
    let pack = || -> std::io::Result<Vec<u8>> {
        let mut encoder = zstd::stream::write::Encoder::with_ref_prefix(vec![PATCH], ZSTD_LEVEL, before)?;
        encoder.window_log(window_log)?;
        // Unchanged text is as far away as the state is long.
        encoder.long_distance_matching(true)?;
        encoder.set_pledged_src_size(Some(bytes.len() as u64))?;
        encoder.write_all(bytes)?;
        encoder.finish()
    };
    // Without a patch the payload is stored in full: if the compressor fails, only space is lost.
    pack().ok()
}

/// Whether a stored payload can only be decoded with the state before.
pub fn is_patch(payload: &[u8]) -> bool {
    payload.first().is_some_and(|codec| codec & !SEALED == PATCH)
}

/// Decodes a stored patch, with `limit` as in [`decode`]. With another state than the patch was made against, the
/// result is an error or other bytes: check the digest.
pub fn decode_after(before: &[u8], payload: &[u8], limit: usize) -> Result<Vec<u8>> {
    match payload.split_first() {
        Some((&PATCH, frame)) => decompress(before, frame, limit),
        _ => decode(payload, limit),
    }
}

/// Encodes events for storage: each with a length prefix, all compressed together. `None` if there are none.
pub fn encode_events(events: &[Box<RawValue>]) -> Option<Vec<u8>> {
    if events.is_empty() {
        return None;
    }
    let mut framed = Vec::with_capacity(events.iter().map(|event| event.get().len() + 4).sum());
    for event in events {
        let text = event.get().as_bytes();
        // An event is at most a body (16 MiB).
        framed.extend((text.len() as u32).to_be_bytes());
        framed.extend(text);
    }
    Some(encode(&framed))
}

/// Decodes stored events. More events than a boundary may have are rejected, because even the shortest event uses
/// memory.
pub fn decode_events(payload: Option<&[u8]>, limit: usize) -> Result<Vec<Box<RawValue>>> {
    let Some(payload) = payload else {
        return Ok(Vec::new());
    };
    let framed = decode(payload, limit)?;
    let mut rest = framed.as_slice();
    let mut events = Vec::new();
    while !rest.is_empty() {
        if events.len() == Limits::EVENTS {
            return Err(corrupt(format!("it has more than {} events", Limits::EVENTS)));
        }
        let (length, tail) =
            rest.split_first_chunk::<4>().ok_or_else(|| corrupt("the length of an event is cut"))?;
        let length = u32::from_be_bytes(*length) as usize;
        let (event, tail) = tail.split_at_checked(length).ok_or_else(|| corrupt("an event is cut"))?;
        rest = tail;
        let text = String::from_utf8(event.to_vec()).map_err(|_| corrupt("an event is not UTF-8"))?;
        events.push(json(text).map_err(|why| corrupt(format!("an event: {why}")))?);
    }
    Ok(events)
}

/// Parses a stored JSON value. Stored values have no bytes around them, so such bytes are rejected.
pub fn json(text: String) -> std::result::Result<Box<RawValue>, String> {
    let length = text.len();
    let json = RawValue::from_string(text).map_err(|error| error.to_string())?;
    if json.get().len() == length { Ok(json) } else { Err("it has bytes around it".into()) }
}

fn tagged(codec: u8, bytes: &[u8]) -> Vec<u8> {
    let mut payload = Vec::with_capacity(bytes.len() + 1);
    payload.push(codec);
    payload.extend_from_slice(bytes);
    payload
}

/// Decompresses a frame with this prefix. The frame states its content's length: a frame that is too large is
/// rejected before it is decompressed. The output is allocated with that length and serves as the window, so nothing
/// else is allocated.
fn decompress(before: &[u8], frame: &[u8], limit: usize) -> Result<Vec<u8>> {
    let length = zstd_safe::get_frame_content_size(frame).ok().flatten();
    let length = length.ok_or_else(|| corrupt("zstd: its frame does not say how long it is"))?;
    let length = usize::try_from(length).ok().filter(|length| *length <= limit);
    let mut bytes = Vec::with_capacity(length.ok_or_else(|| too_large(limit))?);
    DECOMPRESSOR.with_borrow_mut(|decompressor| {
        let decompressor = decompressor.as_mut().ok_or_else(|| corrupt("zstd: out of memory"))?;
        let done = decompressor.decompress_using_dict(&mut bytes, frame, before);
        done.map_err(|code| corrupt(format!("zstd: {}", zstd_safe::get_error_name(code))))
    })?;
    Ok(bytes)
}

fn too_large(limit: usize) -> Error {
    corrupt(format!("it is larger than {limit} bytes"))
}

fn corrupt(detail: impl Into<String>) -> Error {
    Error::Corrupt { operation: "decoding a payload", detail: detail.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decoding_returns_what_was_encoded() {
        for bytes in [b"".to_vec(), b"{}".to_vec(), vec![b'a'; 100_000], (0..=255).collect()] {
            assert_eq!(decode(&encode(&bytes), LIMIT).unwrap(), bytes);
        }
    }

    #[test]
    fn a_payload_is_stored_raw_if_that_is_smaller() {
        assert_eq!(encode(b"{}"), b"\0{}");
        let compressed = encode(&[b' '; 1_000]);
        assert_eq!(compressed[0], ZSTD);
        assert!(compressed.len() < 100);
    }

    /// These bytes are in databases, whatever a later encoder produces. `zstd -d` decodes the first; with `--patch-from`
    /// it decodes the second.
    #[test]
    fn payloads_of_every_earlier_version_can_be_decoded() {
        let before = r#"{"log":{"list":[{"json":"one and another"},{"json":"one and another"}]}}"#;
        let after = r#"{"log":{"list":[{"json":"one and another"},{"json":"one and another"},{"json":3}]}}"#;
        let zstd = b"\x01\x28\xb5\x2f\xfd\x20\x48\xb5\x01\x00\xe4\x02{\"log\":{\"list\":[{\"json\":\"one and another\"},]}}\
                     \x01\x00\x73\x7b\x96\x01";
        let patch = b"\x02\x28\xb5\x2f\xfd\x20\x53\x75\x00\x00\x28\x33}]}}\x02\x00\x66\x14\x20\x0b\x1a\x80";
        assert_eq!(decode(&[b"\0", before.as_bytes()].concat(), LIMIT).unwrap(), before.as_bytes());
        assert_eq!(decode(zstd, LIMIT).unwrap(), before.as_bytes());
        assert_eq!(decode_after(before.as_bytes(), patch, LIMIT).unwrap(), after.as_bytes());
        let events = b"\0\0\0\0\x03[1]\0\0\0\x04null";
        let events = decode_events(Some(events), LIMIT).unwrap();
        assert_eq!(events.iter().map(|event| event.get()).collect::<Vec<_>>(), ["[1]", "null"]);
    }

    #[test]
    fn a_decompression_bomb_is_rejected() {
        let bomb = encode(&vec![0; 64 << 20]);
        assert!(bomb.len() < 10_000);
        let refused = decode(&bomb, 1 << 20).unwrap_err().to_string();
        assert!(refused.contains("larger than 1048576 bytes"), "{refused}");
        assert!(decode(&tagged(RAW, &[0; 11]), 10).is_err());
    }

    #[test]
    fn a_patch_is_as_small_as_the_difference_and_needs_its_base() {
        let before: String = (0..100_000_u32).map(|n| format!("{:x},", n.wrapping_mul(n))).collect();
        let after = format!("[{}] and more", before.replacen("1f1,", "other,", 3));
        let patch = encode_after(before.as_bytes(), after.as_bytes()).unwrap();
        assert!(patch.len() < 1_000, "{} bytes", patch.len());
        assert!(is_patch(&patch));
        assert_eq!(decode_after(before.as_bytes(), &patch, LIMIT).unwrap(), after.as_bytes());
        assert!(decode(&patch, LIMIT).unwrap_err().to_string().contains("the state before it is not known"));
        let other = decode_after(&before.as_bytes()[1..], &patch, LIMIT);
        assert!(other.is_err() || other.unwrap() != after.as_bytes(), "another base gives another result");
        let plain = encode(after.as_bytes());
        assert!(!is_patch(&plain));
        assert_eq!(decode_after(before.as_bytes(), &plain, LIMIT).unwrap(), after.as_bytes());
    }

    #[test]
    fn a_patch_respects_the_limit_and_the_window() {
        let bomb = encode_after(b"", &vec![0; 16 << 20]).unwrap();
        assert!(bomb.len() < 10_000);
        let refused = decode_after(b"", &bomb, 1 << 20).unwrap_err().to_string();
        assert!(refused.contains("larger than 1048576 bytes"), "{refused}");
        let large = vec![0; 17 << 20];
        assert_eq!(encode_after(&large, &large), None, "no window holds both");
        let mut cut = encode_after(b"abc", &[b'x'; 1_000]).unwrap();
        cut.truncate(cut.len() - 1);
        assert!(decode_after(b"abc", &cut, LIMIT).is_err());
    }

    #[test]
    fn damaged_payloads_are_rejected() {
        let mut cut = encode(&[b'x'; 1_000]);
        cut.truncate(cut.len() - 1);
        for payload in [b"".as_slice(), &[9, 1, 2], &[ZSTD], &[ZSTD, 1, 2, 3], &cut] {
            assert!(decode(payload, LIMIT).is_err(), "{payload:?}");
        }
    }

    #[test]
    fn events_come_back_byte_for_byte_and_in_order() {
        let texts = [r#"{"b":1, "a":  12345678901234567890123}"#, "null", r#""\ud800""#];
        let events: Vec<_> =
            texts.iter().map(|text| RawValue::from_string((*text).into()).unwrap()).collect();
        let back = decode_events(encode_events(&events).as_deref(), LIMIT).unwrap();
        assert_eq!(back.iter().map(|event| event.get()).collect::<Vec<_>>(), texts);
        assert_eq!(encode_events(&[]), None);
        assert!(decode_events(None, LIMIT).unwrap().is_empty());
        for cut in [b"\0\0\0".as_slice(), &[0, 0, 0, 0, 9, b'1']] {
            assert!(decode_events(Some(&tagged(RAW, cut)), LIMIT).is_err());
        }
    }
}
