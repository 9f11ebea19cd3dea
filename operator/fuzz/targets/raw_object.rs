//! Lists and watches of our objects, one of which is hostile. Invariant: whatever its spec and status contain, the list can
//! be decoded, and the other object can be parsed.

#![no_main]

#[path = "../../src/cache/raw_object.rs"]
#[allow(dead_code)]
mod raw_object;

use kube::core::{ObjectList, WatchEvent};
use kube::ResourceExt;
use libfuzzer_sys::fuzz_target;
use raw_object::{RawDefinition, RawRun};
use serde_json::value::RawValue;

const PLAIN: &str = r#"{"metadata":{"name":"plain"},"spec":{"agentRef":{"name":"a"}}}"#;

fuzz_target!(|text: &str| {
    // The API server writes JSON with each object on one line.
    if text.contains('\n') || serde_json::from_str::<&RawValue>(text).is_err() {
        return;
    }
    let deep = format!(r#"{{"metadata":{{"name":"deep"}},"spec":{text},"status":{text}}}"#);
    let list = format!(r#"{{"kind":"List","apiVersion":"v1","metadata":{{}},"items":[{deep},{PLAIN}]}}"#);
    let runs: ObjectList<RawRun> = serde_json::from_str(&list).unwrap();
    assert_eq!(runs.items[0].name_any(), "deep");
    let _ = runs.items[0].parse();
    runs.items[1].parse().unwrap();
    let event = format!(r#"{{"type":"ADDED","object":{deep}}}"#);
    let Ok(WatchEvent::Added(definition)) = serde_json::from_str::<WatchEvent<RawDefinition>>(&event) else {
        panic!("it is an event")
    };
    let _ = definition.parse();
});
