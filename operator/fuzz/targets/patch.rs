//! Stored patches: first the length of the base state, then the base state's text, then the payload. Any payload is decoded
//! within its limit or refused; a patch made by the encoder decodes to the same bytes.

#![no_main]

use dalsegno_format::codec;
use libfuzzer_sys::fuzz_target;

const LIMIT: usize = 1 << 20;

fuzz_target!(|data: &[u8]| {
    let Some((length, rest)) = data.split_first_chunk::<2>() else { return };
    let (before, payload) = rest.split_at(rest.len().min(u16::from_be_bytes(*length).into()));
    if let Ok(bytes) = codec::decode_after(before, payload, LIMIT) {
        assert!(bytes.len() <= LIMIT);
        if let Some(patch) = codec::encode_after(before, &bytes) {
            assert!(codec::is_patch(&patch));
            assert_eq!(codec::decode_after(before, &patch, LIMIT).unwrap(), bytes);
        }
    }
    let patch = codec::encode_after(before, payload).unwrap();
    assert_eq!(codec::decode_after(before, &patch, LIMIT).unwrap(), payload);
});
