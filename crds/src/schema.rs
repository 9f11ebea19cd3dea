//! Schemas that `derive(JsonSchema)` cannot generate: Kubernetes types without a schema, and arbitrary JSON.

use dalsegno_model::{Cause, LimitName};
use schemars::{Schema, SchemaGenerator, json_schema};
use serde_json::{Value, json};

use crate::conditions::ConditionStatus;

/// Any JSON value. The API server keeps the value, but not its spelling.
pub(crate) fn any_json(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "x-kubernetes-preserve-unknown-fields": true })
}

/// The cause of an attempt's end. The store keeps the same text.
pub(crate) fn cause(_: &mut SchemaGenerator) -> Schema {
    let causes: Vec<&str> = Cause::ALL.iter().map(|cause| cause.as_str()).collect();
    json_schema!({ "type": "string", "enum": causes })
}

/// The name of a limit.
pub(crate) fn limit(_: &mut SchemaGenerator) -> Schema {
    let limits: Vec<&str> = LimitName::ALL.iter().map(|limit| limit.as_str()).collect();
    json_schema!({ "type": "string", "enum": limits })
}

/// A timestamp in RFC 3339 format.
pub(crate) fn time(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "format": "date-time" })
}

/// A list of [`k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition`], at most one of each type.
pub(crate) fn conditions(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "maxItems": 32,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
        "items": {
            "type": "object",
            "description": "One aspect of the object's state.",
            "required": ["type", "status", "lastTransitionTime", "reason", "message"],
            "properties": {
                "type": {
                    "type": "string", "maxLength": 316,
                    "description": "Type of the condition.",
                },
                "status": {
                    "type": "string", "enum": ConditionStatus::ALL,
                    "description": "Whether the condition holds: `True`, `False` or `Unknown`.",
                },
                "observedGeneration": {
                    "type": "integer", "format": "int64", "minimum": 0,
                    "description": "Generation of the spec that the condition refers to.",
                },
                "lastTransitionTime": {
                    "type": "string", "format": "date-time",
                    "description": "When the condition's status last changed.",
                },
                "reason": {
                    "type": "string", "minLength": 1, "maxLength": 1024,
                    "pattern": "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$",
                    "description": "Reason of the current status, in one word.",
                },
                "message": {
                    "type": "string", "maxLength": 32768,
                    "description": "Explanation for people. If a person must act, it says how.",
                },
            },
        },
    })
}

/// Removes from a generated schema, recursively, what the API server must not see:
///
/// - `nullable`, and `null` in an enum. Without them the API server drops an explicit `null`, so that rules and the
///   operator treat it like an unset field.
/// - `default`. With it the API server would fill in values that a definition's defaults may set.
/// - Line breaks of the source in descriptions. `kubectl explain` would show them.
pub(crate) fn clean(schema: &mut Schema) {
    schema.remove("nullable");
    schema.remove("default");
    if let Some(Value::Array(variants)) = schema.get_mut("enum") {
        variants.retain(|variant| !variant.is_null());
    }
    if let Some(Value::String(text)) = schema.get_mut("description") {
        *text = text.replace('\n', " ");
    }
    schemars::transform::transform_subschemas(&mut clean, schema);
}

/// Declares `metadata.name` in the schema of a kind, so that a validation rule can refer to the field.
pub(crate) fn declare_name(schema: &mut Schema) {
    if let Some(Value::Object(properties)) = schema.get_mut("properties") {
        properties.insert(
            "metadata".to_owned(),
            json!({ "type": "object", "properties": { "name": { "type": "string" } } }),
        );
    }
}
