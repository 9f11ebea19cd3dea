//! Bundles, the only files that come from other parties. Every input is verified without a panic. A bundle that is
//! signed with the golden bundles' key and has no problem is one of the golden bundles.

#![no_main]

use std::sync::LazyLock;

use dalsegno_proof::{bundle, PublicKey};
use libfuzzer_sys::fuzz_target;

const GOLDEN: [&[u8]; 4] = [
    include_bytes!("../../store/tests/golden/bundle-v1.jsonl"),
    include_bytes!("../../store/tests/golden/bundle-v2.jsonl"),
    include_bytes!("../../store/tests/golden/bundle-v2-sealed.jsonl"),
    include_bytes!("../../store/tests/golden/bundle-v3.jsonl"),
];

static KEY: LazyLock<PublicKey> =
    LazyLock::new(|| bundle::verify(GOLDEN[0], None).unwrap().public_key.unwrap());

fuzz_target!(|data: &[u8]| {
    let found = bundle::verify(data, Some(*KEY)).unwrap();
    assert_eq!(found.problems.is_empty(), GOLDEN.contains(&data), "{:?}", found.problems);
    let trusting = bundle::verify(data, None).unwrap();
    for turn in [1, 2, i32::MAX] {
        let state = bundle::state(data, turn);
        assert!(state.is_ok() || !trusting.problems.is_empty());
    }
});
