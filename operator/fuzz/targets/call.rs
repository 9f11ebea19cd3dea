//! A worker's call: the first line is its path below the run, and the rest is its body. No input causes a 5xx answer.

#![no_main]

mod context;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some(end) = data.iter().position(|byte| *byte == b'\n') else { return };
    let Ok(path) = std::str::from_utf8(&data[..end]) else { return };
    context::inside(
        |_| (),
        |cx| {
            let Some((status, text)) = cx.post(path, &data[end + 1..]) else { return };
            let answer: serde_json::Value = serde_json::from_str(&text).unwrap();
            assert!(status < 500, "{status}: {text}");
            // Start another run if this one accepts no more calls.
            if let Some("FINISHED" | "FENCED") = answer["code"].as_str() {
                cx.begin();
            }
        },
    );
});
