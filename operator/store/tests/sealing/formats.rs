//! The formats, byte for byte: what an earlier version sealed and wrapped is read for good.

use dalsegno_protocol::Boundary;
use dalsegno_store::keys::{KeyProvider as _, MountedKeys, Wrapped};
use dalsegno_store::seal::{CallDigestsExt as _, DigestKeyExt as _, Sealing, Spot};
use dalsegno_store::{Digest, RunId, codec};
use serde_json::Value;
use uuid::Uuid;

use crate::keys;

/// Made once after what `src/seal.rs` and `src/keys/mounted.rs` say, by other code than theirs. Where a byte of it would have to
/// change, that is another format, and this one is still read.
const GOLDEN: &str = include_str!("../golden/sealed-v1.json");

const RUN: RunId = RunId::from_u128(0x0102_0304_0506_0708_090a_0b0c_0d0e_0f10);
const COMMIT: Uuid = Uuid::from_u128(0x1112_1314_1516_1718_191a_1b1c_1d1e_1f20);
const HASH: Digest = [0x5a; 32];
const TEXT: &[u8] = b"a payload, a payload, a payload, and once more a payload";

/// One of each kind.
const SPOTS: [Spot<'static>; 8] = [
    Spot::Ops(3, Boundary::Plan, COMMIT),
    Spot::Events(3, Boundary::Result, COMMIT),
    Spot::Arguments("pay\0the bill"),
    Spot::Result("pay"),
    Spot::Record("space", "key", None),
    Spot::Record("space", "key", Some("entry")),
    Spot::Snapshot(&HASH),
    Spot::Chunk(&HASH),
];

/// What it is called in the golden file: a new kind needs a golden payload, too.
fn name(spot: Spot<'_>) -> &'static str {
    match spot {
        Spot::Ops(..) => "ops",
        Spot::Events(..) => "events",
        Spot::Arguments(_) => "arguments",
        Spot::Result(_) => "result",
        Spot::Record(_, _, None) => "record",
        Spot::Record(_, _, Some(_)) => "entry",
        Spot::Snapshot(_) => "snapshot",
        Spot::Chunk(_) => "chunk",
    }
}

fn golden(name: &str) -> Vec<u8> {
    let golden: Value = serde_json::from_str(GOLDEN).unwrap();
    let hex = golden[name].as_str().unwrap_or_else(|| panic!("there is no golden {name}"));
    let digits: Vec<_> = hex.chars().map(|digit| digit.to_digit(16).unwrap() as u8).collect();
    digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

fn sealing() -> Sealing {
    Sealing::under(RUN, &golden("dataKey").try_into().unwrap()).unwrap()
}

#[tokio::test]
async fn a_data_key_that_was_wrapped_once_is_unwrapped_for_good() {
    let folder = keys::folder();
    let wrapped = Wrapped { key_id: "k1".into(), bytes: golden("wrapped") };
    let data_key = MountedKeys::open(folder.path()).unwrap().unwrap(RUN, &wrapped).await.unwrap();
    assert_eq!(data_key.as_slice(), golden("dataKey"));
}

#[test]
fn what_was_sealed_once_in_each_kind_of_place_is_opened_for_good() {
    for spot in SPOTS {
        let sealed = golden(name(spot));
        let opened = sealing().open(spot, &sealed).unwrap_or_else(|error| panic!("{}: {error}", name(spot)));
        assert_eq!(codec::decode(&opened, 99).unwrap(), TEXT, "{}", name(spot));
    }
}

#[test]
fn a_digest_is_the_same_for_good() {
    let sealing = sealing();
    let of_boundary = sealing.digest_key(3, Boundary::Plan, COMMIT).unwrap();
    assert_eq!(sealing.digest(HASH).as_slice(), golden("digest"));
    assert_eq!(of_boundary.digest(HASH).as_slice(), golden("digestOfBoundary"));
    assert_eq!(sealing.call_digests("pay").of("key-of-pay").as_slice(), golden("digestOfCall"));
}
