//! Stored payloads: any bytes are decoded within the limit or refused.

#![no_main]

use dalsegno_format::codec;
use libfuzzer_sys::fuzz_target;

const LIMIT: usize = 1 << 20;

fuzz_target!(|data: &[u8]| {
    if let Ok(bytes) = codec::decode(data, LIMIT) {
        assert!(bytes.len() <= LIMIT);
        assert_eq!(codec::decode(&codec::encode(&bytes), LIMIT).unwrap(), bytes);
    }
    if let Ok(events) = codec::decode_events(Some(data), LIMIT) {
        let again = codec::encode_events(&events);
        let back = codec::decode_events(again.as_deref(), LIMIT).unwrap();
        assert!(events.iter().map(|event| event.get()).eq(back.iter().map(|event| event.get())));
    }
});
