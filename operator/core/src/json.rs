//! Changes of JSON objects that keep the fields that this program does not know.

use serde_json::Value;

/// Takes a list out of an object. Empty if the object has no such list.
pub(crate) fn take_list(object: &mut Value, field: &str) -> Vec<Value> {
    match object.get_mut(field).map(Value::take) {
        Some(Value::Array(list)) => list,
        _ => Vec::new(),
    }
}
