//! How payloads are kept: one codec byte, then the bytes.
//!
//! | codec | bytes |
//! |---|---|
//! | 0 | raw; where compression gains nothing |
//! | 1 | one zstd frame |
//!
//! Other codec bytes are refused.

use std::io::Read as _;

use dalsegno_protocol::{Limits, RawValue};

use crate::{Error, Result};

const RAW: u8 = 0;
const ZSTD: u8 = 1;

/// The level at which time and size balance for JSON of this size.
const ZSTD_LEVEL: i32 = 3;

/// log2 of the largest window that a frame may ask the decoder to hold.
const ZSTD_WINDOW_LOG: u32 = 25;

/// Largest payload that is decoded: a body, with room for the frames of its events and the names around its state.
pub const LIMIT: usize = 2 * Limits::BODY_BYTES;

/// A payload as it is kept.
pub fn encode(bytes: &[u8]) -> Vec<u8> {
    match zstd::bulk::compress(bytes, ZSTD_LEVEL) {
        Ok(packed) if packed.len() < bytes.len() => tagged(ZSTD, &packed),
        // Raw is always right; a compressor that fails costs only space.
        _ => tagged(RAW, bytes),
    }
}

/// A kept payload as it came. Never holds more than `limit` bytes of it: what is larger is refused, however small it
/// is kept.
pub fn decode(payload: &[u8], limit: usize) -> Result<Vec<u8>> {
    let (codec, bytes) = payload.split_first().ok_or_else(|| corrupt("it is empty"))?;
    match *codec {
        RAW if bytes.len() > limit => Err(too_large(limit)),
        RAW => Ok(bytes.to_vec()),
        ZSTD => unpack(bytes, limit),
        other => Err(corrupt(format!("unknown codec {other}"))),
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

/// Kept events as they came.
pub fn decode_events(payload: Option<&[u8]>, limit: usize) -> Result<Vec<Box<RawValue>>> {
    let Some(payload) = payload else {
        return Ok(Vec::new());
    };
    let framed = decode(payload, limit)?;
    let mut rest = framed.as_slice();
    let mut events = Vec::new();
    while !rest.is_empty() {
        let (length, tail) =
            rest.split_first_chunk::<4>().ok_or_else(|| corrupt("a length of an event is cut"))?;
        let length = u32::from_be_bytes(*length) as usize;
        let (event, tail) = tail.split_at_checked(length).ok_or_else(|| corrupt("an event is cut"))?;
        rest = tail;
        let text = String::from_utf8(event.to_vec()).map_err(|_| corrupt("an event is not UTF-8"))?;
        events.push(RawValue::from_string(text).map_err(|error| corrupt(format!("an event: {error}")))?);
    }
    Ok(events)
}

fn tagged(codec: u8, bytes: &[u8]) -> Vec<u8> {
    let mut payload = Vec::with_capacity(bytes.len() + 1);
    payload.push(codec);
    payload.extend_from_slice(bytes);
    payload
}

fn unpack(bytes: &[u8], limit: usize) -> Result<Vec<u8>> {
    let failed = |error: std::io::Error| corrupt(format!("zstd: {error}"));
    let mut decoder = zstd::stream::read::Decoder::with_buffer(bytes).map_err(failed)?;
    decoder.window_log_max(ZSTD_WINDOW_LOG).map_err(failed)?;
    let mut unpacked = Vec::new();
    decoder.take(limit as u64 + 1).read_to_end(&mut unpacked).map_err(failed)?;
    if unpacked.len() > limit {
        return Err(too_large(limit));
    }
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

    #[test]
    fn a_bomb_is_refused_within_its_limit() {
        let bomb = encode(&vec![0; 64 << 20]);
        assert!(bomb.len() < 10_000);
        let refused = decode(&bomb, 1 << 20).unwrap_err().to_string();
        assert!(refused.contains("larger than 1048576 bytes"), "{refused}");
        assert!(decode(&tagged(RAW, &[0; 11]), 10).is_err());
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
