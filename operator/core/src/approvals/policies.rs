//! Whether an admission policy of the API server is the one that the chart installs.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, ObjectMeta};
use serde::Deserialize;
use serde_json::{Map, Value, json};

/// A policy or a binding that the chart installs.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct ExpectedPolicy {
    /// Kind, of the API group `admissionregistration.k8s.io`.
    pub kind: String,
    /// Name of the object.
    pub name: String,
    /// Its spec, as the chart has it.
    pub spec: Value,
}

impl ExpectedPolicy {
    /// Where the spec of the API server's object differs, as a path; `None`: nowhere. What the API server itself adds to a
    /// spec is no difference.
    pub fn difference(&self, spec: &Value) -> Option<String> {
        difference("spec", &self.spec, spec)
    }
}

/// When the API server's object was last changed: when it was created, unless its spec was changed later.
pub fn last_change(object: &ObjectMeta) -> Option<Timestamp> {
    let created = object.creation_timestamp.as_ref()?.0;
    if object.generation == Some(1) {
        return Some(created);
    }
    let wrote_spec = |it: &&ManagedFieldsEntry| it.subresource.is_none();
    let entries = object.managed_fields.as_deref().unwrap_or_default();
    entries.iter().filter(wrote_spec).filter_map(|it| it.time.as_ref()).map(|it| it.0).chain([created]).max()
}

fn difference(path: &str, expected: &Value, found: &Value) -> Option<String> {
    match (expected, found) {
        (Value::Object(expected), Value::Object(found)) => {
            fields_differ(path, expected, found).or_else(|| {
                let added = found
                    .iter()
                    .find(|(name, value)| !expected.contains_key(*name) && !is_default(name, value));
                added.map(|(name, _)| format!("{path}.{name}"))
            })
        }
        (Value::Array(expected), Value::Array(found)) if expected.len() == found.len() => {
            let mut pairs = expected.iter().zip(found).enumerate();
            pairs.find_map(|(index, (expected, found))| {
                difference(&format!("{path}[{index}]"), expected, found)
            })
        }
        (expected, found) => (expected != found).then(|| path.to_owned()),
    }
}

fn fields_differ(path: &str, expected: &Map<String, Value>, found: &Map<String, Value>) -> Option<String> {
    expected.iter().find_map(|(name, value)| {
        let path = format!("{path}.{name}");
        match found.get(name) {
            Some(found) => difference(&path, value, found),
            None => Some(path),
        }
    })
}

/// Whether the API server adds this field to a policy by itself.
fn is_default(name: &str, value: &Value) -> bool {
    match name {
        "matchPolicy" => *value == json!("Equivalent"),
        "scope" => *value == json!("*"),
        "namespaceSelector" | "objectSelector" => *value == json!({}),
        _ => false,
    }
}
