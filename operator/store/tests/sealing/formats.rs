//! The sealed formats, byte for byte: sealed and wrapped bytes of an earlier version must stay readable.

use dalsegno_format::codec;
use dalsegno_format::seal::{AadContext, CallDigestsExt as _, DataKey, DigestKeyExt as _, PayloadCipher};
use dalsegno_model::{Digest, RunId};
use dalsegno_protocol::Boundary;
use dalsegno_store::keys::{KeyProvider as _, MountedKeys, Wrapped};
use serde_json::Value;
use uuid::Uuid;

use crate::keys;

/// Made once, by other code than this crate's, from the descriptions in `src/seal.rs` and `src/keys/mounted.rs`. A change
/// of any byte is a new format; this one must stay readable.
const GOLDEN: &str = include_str!("../golden/sealed-v1.json");

const RUN: RunId = RunId::from_u128(0x0102_0304_0506_0708_090a_0b0c_0d0e_0f10);
const COMMIT: Uuid = Uuid::from_u128(0x1112_1314_1516_1718_191a_1b1c_1d1e_1f20);
const HASH: Digest = [0x5a; 32];
const TEXT: &[u8] = b"a payload, a payload, a payload, and once more a payload";

/// One of each kind.
const SPOTS: [AadContext<'static>; 11] = [
    AadContext::Ops(3, Boundary::Plan, COMMIT),
    AadContext::Events(3, Boundary::Result, COMMIT),
    AadContext::Arguments("pay\0the bill"),
    AadContext::Result("pay"),
    AadContext::WaitRequest("pay", 7),
    AadContext::WaitAnswer("pay", 7),
    AadContext::Record("space", "key", None),
    AadContext::Record("space", "key", Some("entry")),
    AadContext::Message("m1", Some("topic"), "ann"),
    AadContext::Snapshot(&HASH),
    AadContext::Chunk(&HASH),
];

/// The name in the golden file. A new kind needs a golden payload; a test of the format has a golden text.
fn name(spot: AadContext<'_>) -> &'static str {
    match spot {
        AadContext::Ops(..) => "ops",
        AadContext::Events(..) => "events",
        AadContext::Arguments(_) => "arguments",
        AadContext::Result(_) => "result",
        AadContext::WaitRequest(..) => "waitRequest",
        AadContext::WaitAnswer(..) => "waitAnswer",
        AadContext::Record(_, _, None) => "record",
        AadContext::Record(_, _, Some(_)) => "entry",
        AadContext::Message(..) => "message",
        AadContext::Snapshot(_) => "snapshot",
        AadContext::Chunk(_) => "chunk",
        AadContext::CallKey(_)
        | AadContext::FinishMessage
        | AadContext::FinishOutput
        | AadContext::EndMessage(_) => unreachable!("these are positions of texts"),
    }
}

fn golden(name: &str) -> Vec<u8> {
    let golden: Value = serde_json::from_str(GOLDEN).unwrap();
    let hex = golden[name].as_str().unwrap_or_else(|| panic!("there is no golden {name}"));
    let digits: Vec<_> = hex.chars().map(|digit| digit.to_digit(16).unwrap() as u8).collect();
    digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

fn sealing() -> PayloadCipher {
    let data_key = DataKey { bytes: golden("dataKey").try_into().unwrap(), seals_texts: false };
    PayloadCipher::under(RUN, &data_key).unwrap()
}

#[tokio::test]
async fn a_golden_wrapped_data_key_is_unwrapped() {
    let folder = keys::folder();
    let wrapped = Wrapped { key_id: "k1".into(), bytes: golden("wrapped") };
    let data_key = MountedKeys::open(folder.path()).unwrap().unwrap(RUN, &wrapped).await.unwrap();
    assert_eq!((data_key.bytes.as_slice(), data_key.seals_texts), (&*golden("dataKey"), false));
}

#[test]
fn a_golden_payload_of_each_kind_is_opened() {
    for spot in SPOTS {
        let sealed = golden(name(spot));
        let opened = sealing().open(spot, &sealed).unwrap_or_else(|error| panic!("{}: {error}", name(spot)));
        assert_eq!(codec::decode(&opened, 99).unwrap(), TEXT, "{}", name(spot));
    }
}

#[test]
fn golden_digests_are_reproduced() {
    let cipher = sealing();
    let of_boundary = cipher.digest_key(3, Boundary::Plan, COMMIT).unwrap();
    assert_eq!(cipher.digest(HASH).as_slice(), golden("digest"));
    assert_eq!(of_boundary.digest(HASH).as_slice(), golden("digestOfBoundary"));
    assert_eq!(cipher.call_digests("pay").of("key-of-pay").as_slice(), golden("digestOfCall"));
}
