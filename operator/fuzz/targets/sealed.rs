//! Sealed payloads and wrapped data keys: the id of a wrapping key as the first line, then the bytes. Bytes that were not
//! sealed here are refused. Plain bytes are returned unchanged, and as a record's value they parse or are refused.

#![no_main]

use std::sync::LazyLock;

use dalsegno_format::codec;
use dalsegno_format::seal::{is_sealed, AadContext, DataKey, PayloadCipher};
use dalsegno_model::RunId;
use dalsegno_protocol::{Boundary, Payload};
use dalsegno_store::keys::{KeyProvider, MountedKeys, Wrapped};
use libfuzzer_sys::fuzz_target;
use tokio::runtime::Runtime;

const LIMIT: usize = 1 << 20;
const RUN: RunId = RunId::from_u128(7);
const DATA_KEY: DataKey = DataKey { bytes: [5; 32], seals_texts: true };

struct Context {
    runtime: Runtime,
    keys: MountedKeys,
    cipher: PayloadCipher,
    wrapped: Wrapped,
}

static CONTEXT: LazyLock<Context> = LazyLock::new(|| {
    let folder = std::env::temp_dir().join("dalsegno-fuzz-keys");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("k1"), "YSBrZXkgb2YgdGhlc2UgdGVzdHMsIDMyIGJ5dGVzISE=").unwrap();
    let runtime = Runtime::new().unwrap();
    let keys = MountedKeys::open(&folder).unwrap();
    let wrapped = runtime.block_on(keys.wrap(RUN, &DATA_KEY)).unwrap();
    Context { runtime, keys, cipher: PayloadCipher::under(RUN, &DATA_KEY).unwrap(), wrapped }
});

fuzz_target!(|data: &[u8]| {
    let Context { runtime, keys, cipher, wrapped } = &*CONTEXT;
    let end = data.iter().position(|byte| *byte == b'\n').unwrap_or(0);
    let (key_id, decoded) = (String::from_utf8_lossy(&data[..end]).into_owned(), &data[end..]);
    let decoded = decoded.strip_prefix(b"\n").unwrap_or(decoded);

    let spot = AadContext::Record("space", &key_id, None);
    match cipher.open(spot, decoded) {
        Ok(open) => {
            assert!(!is_sealed(decoded) && *open == *decoded, "nobody but us can seal");
            read(&open);
        }
        Err(_) => assert!(is_sealed(decoded)),
    }
    let sealed = cipher.seal(spot, codec::encode(decoded)).unwrap();
    assert_eq!(codec::decode(&cipher.open(spot, &sealed).unwrap(), LIMIT).unwrap(), decoded);
    assert!(cipher.open(AadContext::Ops(1, Boundary::Plan, RUN), &sealed).is_err());
    assert!(cipher.open(spot, &sealed[..sealed.len() - 1]).is_err());

    let foreign = Wrapped { key_id, bytes: decoded.to_vec() };
    assert!(runtime.block_on(keys.unwrap(RUN, &foreign)).is_err());
    // Keep the true check value of the wrapping key, so that the unwrap itself is reached.
    let damaged = Wrapped { bytes: [&wrapped.bytes[..16], decoded].concat(), ..wrapped.clone() };
    assert!(runtime.block_on(keys.unwrap(RUN, &damaged)).is_err());
    assert_eq!(runtime.block_on(keys.unwrap(RUN, wrapped)).unwrap(), DATA_KEY);
});

/// Parses a record's value.
fn read(decoded: &[u8]) {
    let Ok(text) = codec::decode(decoded, LIMIT) else { return };
    let Ok(value) = serde_json::from_slice::<Payload>(&text) else { return };
    let written = serde_json::to_vec(&value).unwrap();
    let again: Payload = serde_json::from_slice(&written).unwrap();
    assert_eq!(serde_json::to_vec(&again).unwrap(), written);
}
