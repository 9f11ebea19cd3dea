//! A worker's call: the first line is its path below the run, the rest its body. Whatever comes, the answer is no defect of
//! ours.

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
        // Another run, once this one takes no more calls.
        if let Some("FINISHED" | "FENCED") = answer["code"].as_str() {
            world.begin();
        }
    });
});
