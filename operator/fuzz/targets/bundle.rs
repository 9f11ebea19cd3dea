//! A bundle, the one file that comes from strangers. Whatever it holds, it is read to an answer; and what is signed by the
//! key of the golden ones, and has no problem, is one of these very files.

#![no_main]

use std::sync::LazyLock;

use dalsegno_store::proof::{bundle, PublicKey};
use libfuzzer_sys::fuzz_target;

const GOLDEN: [&[u8]; 3] = [
    include_bytes!("../../store/tests/golden/bundle-v1.jsonl"),
    include_bytes!("../../store/tests/golden/bundle-v2.jsonl"),
    include_bytes!("../../store/tests/golden/bundle-v2-sealed.jsonl"),
];

static KEY: LazyLock<PublicKey> = LazyLock::new(|| bundle::verify(GOLDEN[0], None).unwrap().public_key.unwrap());

fuzz_target!(|data: &[u8]| {
    let found = bundle::verify(data, Some(*KEY)).unwrap();
    assert_eq!(found.problems.is_empty(), GOLDEN.contains(&data), "{:?}", found.problems);
    let trusting = bundle::verify(data, None).unwrap();
    for turn in [1, 2, i32::MAX] {
        let state = bundle::state(data, turn);
        assert!(state.is_ok() || !trusting.problems.is_empty());
    }
});
