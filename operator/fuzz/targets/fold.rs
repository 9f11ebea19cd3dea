//! Channel operations, one boundary a line: what can be read can be folded, and the state, sent as a whole, is the same
//! state.

#![no_main]

use dalsegno_store::fold::fold;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let Ok(state) = fold(text.lines()) else { return };
    let written = serde_json::to_string(&state).unwrap();
    let read: dalsegno_protocol::State = serde_json::from_str(&written).unwrap();
    assert_eq!(serde_json::to_string(&read).unwrap(), written);
});
