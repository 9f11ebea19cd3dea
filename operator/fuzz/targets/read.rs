//! A worker's reads of a run that has three turns, calls, events and records: the path below the run with its query. No
//! input causes a 5xx answer, and a page of records that is not the last one leads to the next.

#![no_main]

mod context;

use context::Context;
use libfuzzer_sys::fuzz_target;
use serde_json::Value;

fuzz_target!(|path: &str| {
    context::inside(prepare, |cx| {
        let Some((status, text)) = cx.get(path) else { return };
        assert!(status < 500, "{status}: {text}");
        let Ok(answer) = serde_json::from_str::<Value>(&text) else { return };
        if let (200, Some(next), Some((before, _))) =
            (status, answer["next"].as_str(), path.split_once("after="))
        {
            let next: String = next.bytes().map(|byte| format!("%{byte:02x}")).collect();
            let path = format!("{before}after={next}");
            let (status, text) = cx.get(&path).unwrap();
            assert_eq!(status, 200, "{path}: {text}");
        }
    });
});

/// Commits two turns and a plan.
fn prepare(cx: &Context) {
    let calls = [
        ("calls/a/claim", &include_bytes!("../corpus/call/claim")[..]),
        ("calls/a/complete", include_bytes!("../corpus/call/complete")),
        ("turns/1/plan", include_bytes!("../corpus/call/plan")),
        ("turns/1", include_bytes!("../corpus/call/turn")),
        ("records", include_bytes!("../corpus/call/records")),
        ("turns/2", include_bytes!("../corpus/call/channels")),
        ("turns/3/plan", include_bytes!("../corpus/call/more")),
    ];
    for (path, call) in calls {
        let body = call.splitn(2, |byte| *byte == b'\n').nth(1).unwrap();
        let (status, text) = cx.post(path, body).unwrap();
        assert_eq!(status, 200, "{path}: {text}");
    }
}
