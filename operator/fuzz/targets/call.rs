//! A worker's call: the first line is its path below the run, and the rest is its body. No input causes a 5xx answer.

#![no_main]

mod world;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some(end) = data.iter().position(|byte| *byte == b'\n') else { return };
    let Ok(path) = std::str::from_utf8(&data[..end]) else { return };
    world::inside(|_| (), |world| {
        let Some((status, text)) = world.post(path, &data[end + 1..]) else { return };
        let answer: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert!(status < 500, "{status}: {text}");
        // Start another run if this one accepts no more calls.
        if let Some("FINISHED" | "FENCED") = answer["code"].as_str() {
            world.begin();
        }
    });
});
