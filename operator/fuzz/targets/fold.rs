//! Channel operations, one boundary per line: what parses can be folded, and the folded state can be read back unchanged.

#![no_main]

use dalsegno_format::fold::fold;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let Ok(state) = fold(text.lines()) else { return };
    let written = serde_json::to_string(&state).unwrap();
    let read: dalsegno_protocol::State = serde_json::from_str(&written).unwrap();
    assert_eq!(serde_json::to_string(&read).unwrap(), written);
});
