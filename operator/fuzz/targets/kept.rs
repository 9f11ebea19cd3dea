//! Objects of our kinds in a list and a watch of the API server, one of them nested or misspelled on purpose. Whatever its
//! spec and status contain, the list can be read, and so can the other object.

#![no_main]

#[path = "../../src/kept.rs"]
#[allow(dead_code)]
mod kept;

use kept::{Definition, Run};
use kube::core::{ObjectList, WatchEvent};
use kube::ResourceExt;
use libfuzzer_sys::fuzz_target;
use serde_json::value::RawValue;

const PLAIN: &str = r#"{"metadata":{"name":"plain"},"spec":{"agentRef":{"name":"a"}}}"#;

fuzz_target!(|text: &str| {
    // The API server writes JSON with each object on one line.
    if text.contains('\n') || serde_json::from_str::<&RawValue>(text).is_err() {
        return;
    }
    let deep = format!(r#"{{"metadata":{{"name":"deep"}},"spec":{text},"status":{text}}}"#);
    let list = format!(r#"{{"kind":"List","apiVersion":"v1","metadata":{{}},"items":[{deep},{PLAIN}]}}"#);
    let runs: ObjectList<Run> = serde_json::from_str(&list).unwrap();
    assert_eq!(runs.items[0].name_any(), "deep");
    let _ = runs.items[0].read();
    runs.items[1].read().unwrap();
    let event = format!(r#"{{"type":"ADDED","object":{deep}}}"#);
    let Ok(WatchEvent::Added(definition)) = serde_json::from_str::<WatchEvent<Definition>>(&event) else {
        panic!("it is an event")
    };
    let _ = definition.read();
});
