//! How payloads are kept: one codec byte, then the bytes.
//!
//! | codec | bytes |
//! |---|---|
//! | 0 | raw; where compression gains nothing |
//! | 1 | one zstd frame |
//! | 2 | a patch: one zstd frame whose prefix is the text of the state before ([`crate::fold::text`]) |
//!
//! A codec byte with 16 added says that the rest is sealed ([`crate::seal`]). Other codec bytes are refused. Only a
//! boundary's channel operations may be a patch.

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

/// The fastest that still packs well: the answer to a commit waits for it.
const ZSTD_LEVEL: i32 = 1;

/// log2 of the largest window of a patch: the state before and the one after, together.
const ZSTD_WINDOW_LOG: u32 = 25;

/// log2 of the smallest window there is.
const ZSTD_WINDOW_LOG_MIN: u32 = 10;

/// Largest payload that is decoded: a body, with room for the frames of its events and the names around its state.
pub const LIMIT: usize = 2 * Limits::BODY_BYTES;

thread_local! {
    /// Making a compressor costs as much as packing a small payload with it, so each thread keeps one.
    static COMPRESSOR: RefCell<Option<Compressor<'static>>> = RefCell::new(Compressor::new(ZSTD_LEVEL).ok());

    /// The same the other way. (What stands before a patch is text, so that no dictionary is seen in it.)
    static DECOMPRESSOR: RefCell<Option<DCtx<'static>>> = RefCell::new(DCtx::try_create());
}

/// A payload as it is kept.
pub fn encode(bytes: &[u8]) -> Vec<u8> {
    // Raw is always right; a compressor that fails costs only space.
    COMPRESSOR
        .with_borrow_mut(|compressor| packed(compressor.as_mut()?, bytes))
        .unwrap_or_else(|| tagged(RAW, bytes))
}

/// One zstd frame behind its codec byte; `None` where that gains nothing.
fn packed(compressor: &mut Compressor<'_>, bytes: &[u8]) -> Option<Vec<u8>> {
    let mut payload = Vec::with_capacity(1 + zstd_safe::compress_bound(bytes.len()));
    payload.push(ZSTD);
    let mut behind = Cursor::new(payload);
    behind.set_position(1);
    let length = compressor.compress_to_buffer(bytes, &mut behind).ok()?;
    (length < bytes.len()).then(|| behind.into_inner())
}

/// A kept payload as it came. Never holds more than `limit` bytes of it: what is larger is refused, however small it
/// is kept.
pub fn decode(payload: &[u8], limit: usize) -> Result<Vec<u8>> {
    let (codec, bytes) = payload.split_first().ok_or_else(|| corrupt("it is empty"))?;
    match *codec {
        RAW if bytes.len() > limit => Err(too_large(limit)),
        RAW => Ok(bytes.to_vec()),
        ZSTD => unpack(b"", bytes, limit),
        PATCH => Err(corrupt("it is a patch, and what it patches is not known")),
        other => Err(corrupt(format!("unknown codec {other}"))),
    }
}

/// A payload as it is kept where the state before it is known: it costs what differs. `None` where the two together
/// are larger than any window.
pub fn encode_after(before: &[u8], bytes: &[u8]) -> Option<Vec<u8>> {
    let window_log = (before.len() + bytes.len()).next_power_of_two().ilog2().max(ZSTD_WINDOW_LOG_MIN);
    if window_log > ZSTD_WINDOW_LOG {
        return None;
    }
    let pack = || -> std::io::Result<Vec<u8>> {
        let mut encoder = zstd::stream::write::Encoder::with_ref_prefix(vec![PATCH], ZSTD_LEVEL, before)?;
        encoder.window_log(window_log)?;
        // What has not changed is far away: as far as the state is long.
        encoder.long_distance_matching(true)?;
        encoder.set_pledged_src_size(Some(bytes.len() as u64))?;
        encoder.write_all(bytes)?;
        encoder.finish()
    };
    // Without a patch the payload is kept whole; a compressor that fails costs only space.
    pack().ok()
}

/// Whether a kept payload can only be decoded after the state before it.
pub fn is_patch(payload: &[u8]) -> bool {
    payload.first().is_some_and(|codec| codec & !SEALED == PATCH)
}

/// A kept patch as it came, within `limit` as in [`decode`]. What comes out of another state than the one it was made
/// after is an error or other bytes: hold it to its digest.
pub fn decode_after(before: &[u8], payload: &[u8], limit: usize) -> Result<Vec<u8>> {
    match payload.split_first() {
        Some((&PATCH, frame)) => unpack(before, frame, limit),
        _ => decode(payload, limit),
    }
}

/// Events as they are kept: each framed by its length, all together encoded. `None` where there are none.
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

/// Kept events as they came. More of them than a boundary may have are refused: however short, each costs its own memory.
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
            rest.split_first_chunk::<4>().ok_or_else(|| corrupt("a length of an event is cut"))?;
        let length = u32::from_be_bytes(*length) as usize;
        let (event, tail) = tail.split_at_checked(length).ok_or_else(|| corrupt("an event is cut"))?;
        rest = tail;
        let text = String::from_utf8(event.to_vec()).map_err(|_| corrupt("an event is not UTF-8"))?;
        events.push(json(text).map_err(|why| corrupt(format!("an event: {why}")))?);
    }
    Ok(events)
}

/// The JSON value that a kept text is: as nothing is kept around one, nothing may stand there.
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

/// What a frame holds, where this stands before it. A frame says how long that is: what would be too large is not begun
/// with, and what is not has all its memory, since it is its own window.
fn unpack(before: &[u8], frame: &[u8], limit: usize) -> Result<Vec<u8>> {
    let length = zstd_safe::get_frame_content_size(frame).ok().flatten();
    let length = length.ok_or_else(|| corrupt("zstd: its frame does not say how long it is"))?;
    let length = usize::try_from(length).ok().filter(|length| *length <= limit);
    let mut unpacked = Vec::with_capacity(length.ok_or_else(|| too_large(limit))?);
    DECOMPRESSOR.with_borrow_mut(|decompressor| {
        let decompressor = decompressor.as_mut().ok_or_else(|| corrupt("zstd: there is no memory"))?;
        let done = decompressor.decompress_using_dict(&mut unpacked, frame, before);
        done.map_err(|code| corrupt(format!("zstd: {}", zstd_safe::get_error_name(code))))
    })?;
    Ok(unpacked)
}

fn too_large(limit: usize) -> Error {
    corrupt(format!("it is larger than {limit} bytes"))
}

fn corrupt(detail: impl Into<String>) -> Error {
    Error::Corrupt { doing: "decoding a payload", detail: detail.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_decoded_is_what_was_encoded() {
        for bytes in [b"".to_vec(), b"{}".to_vec(), vec![b'a'; 100_000], (0..=255).collect()] {
            assert_eq!(decode(&encode(&bytes), LIMIT).unwrap(), bytes);
        }
    }

    #[test]
    fn raw_is_kept_where_it_is_smaller() {
        assert_eq!(encode(b"{}"), b"\0{}");
        let packed = encode(&[b' '; 1_000]);
        assert_eq!(packed[0], ZSTD);
        assert!(packed.len() < 100);
    }

    /// Whatever a later encoder makes of it: these bytes stand in databases. (`zstd -d`, with `--patch-from` the second, says
    /// the same.)
    #[test]
    fn what_one_version_kept_every_later_one_decodes() {
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
    fn a_bomb_is_refused_within_its_limit() {
        let bomb = encode(&vec![0; 64 << 20]);
        assert!(bomb.len() < 10_000);
        let refused = decode(&bomb, 1 << 20).unwrap_err().to_string();
        assert!(refused.contains("larger than 1048576 bytes"), "{refused}");
        assert!(decode(&tagged(RAW, &[0; 11]), 10).is_err());
    }

    #[test]
    fn a_patch_costs_what_differs_and_needs_what_it_was_made_after() {
        let before: String = (0..100_000_u32).map(|n| format!("{:x},", n.wrapping_mul(n))).collect();
        let after = format!("[{}] and more", before.replacen("1f1,", "other,", 3));
        let patch = encode_after(before.as_bytes(), after.as_bytes()).unwrap();
        assert!(patch.len() < 1_000, "{} bytes", patch.len());
        assert!(is_patch(&patch));
        assert_eq!(decode_after(before.as_bytes(), &patch, LIMIT).unwrap(), after.as_bytes());
        assert!(decode(&patch, LIMIT).unwrap_err().to_string().contains("what it patches is not known"));
        let other = decode_after(&before.as_bytes()[1..], &patch, LIMIT);
        assert!(other.is_err() || other.unwrap() != after.as_bytes(), "of another state it is not the same");
        let plain = encode(after.as_bytes());
        assert!(!is_patch(&plain));
        assert_eq!(decode_after(before.as_bytes(), &plain, LIMIT).unwrap(), after.as_bytes());
    }

    #[test]
    fn a_patch_is_held_to_its_limit_and_its_window() {
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
    fn damaged_payloads_are_refused() {
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
