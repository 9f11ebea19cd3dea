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
    let has_spec =
        |it: &ManagedFieldsEntry| it.fields_v1.as_ref().is_some_and(|it| it.0.get("f:spec").is_some());
    let wrote_spec = |it: &&ManagedFieldsEntry| it.subresource.is_none() && has_spec(it);
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a panic fails the test")]

    use super::*;

    fn expected() -> ExpectedPolicy {
        let spec = json!({ "failurePolicy": "Fail", "matchConstraints": { "resourceRules": [{ "resources": ["agentruns"] }] },
                           "validations": [{ "expression": "true" }] });
        ExpectedPolicy { kind: "ValidatingAdmissionPolicy".into(), name: "p".into(), spec }
    }

    #[test]
    fn what_the_api_server_adds_is_no_difference_and_everything_else_is() {
        let mut found = expected().spec;
        found["matchConstraints"]["matchPolicy"] = json!("Equivalent");
        found["matchConstraints"]["namespaceSelector"] = json!({});
        found["matchConstraints"]["objectSelector"] = json!({});
        found["matchConstraints"]["resourceRules"][0]["scope"] = json!("*");
        assert_eq!(expected().difference(&found), None);
        type Edit = fn(&mut Value);
        let changes: [(&str, Edit); 7] = [
            ("spec.failurePolicy", |it| it["failurePolicy"] = json!("Ignore")),
            ("spec.validations", |it| it["validations"] = json!([])),
            ("spec.validations[0].expression", |it| it["validations"][0]["expression"] = json!("1 == 1")),
            ("spec.matchConditions", |it| {
                it["matchConditions"] = json!([{ "name": "n", "expression": "false" }])
            }),
            ("spec.matchConstraints.excludeResourceRules", |it| {
                it["matchConstraints"]["excludeResourceRules"] = json!([{ "resources": ["*"] }]);
            }),
            ("spec.matchConstraints.namespaceSelector", |it| {
                it["matchConstraints"]["namespaceSelector"] = json!({ "matchLabels": { "a": "b" } });
            }),
            ("spec.matchConstraints", |it| it["matchConstraints"] = Value::Null),
        ];
        for (path, change) in changes {
            let mut changed = found.clone();
            change(&mut changed);
            assert_eq!(expected().difference(&changed).as_deref(), Some(path));
        }
        assert_eq!(expected().difference(&Value::Null).as_deref(), Some("spec"));
    }

    #[test]
    fn a_policy_was_last_changed_when_somebody_last_wrote_its_spec() {
        let entry = |subresource: Option<&str>, time: &str, field: &str| {
            json!({ "manager": "m", "operation": "Update", "time": time, "subresource": subresource,
                    "fieldsType": "FieldsV1", "apiVersion": "v1", "fieldsV1": { field: {} } })
        };
        let mut object: ObjectMeta = serde_json::from_value(json!({
            "creationTimestamp": "2026-05-01T00:00:00Z", "generation": 1,
            "managedFields": [
                entry(None, "2026-05-02T00:00:00Z", "f:spec"),
                entry(Some("status"), "2026-05-03T00:00:00Z", "f:status"),
                entry(None, "2026-05-04T00:00:00Z", "f:metadata"),
            ],
        }))
        .unwrap();
        let day = |day: i8| format!("2026-05-0{day}T00:00:00Z").parse().ok();
        assert_eq!(last_change(&object), day(1), "its labels were written");
        object.generation = Some(2);
        assert_eq!(last_change(&object), day(2), "its labels were written later");
        object.creation_timestamp = None;
        assert_eq!(last_change(&object), None);
    }
}
