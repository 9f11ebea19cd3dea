//! Schemas that a derive cannot give: types of Kubernetes without their own schema, and any JSON.

use dalsegno_model::Cause;
use schemars::{Schema, SchemaGenerator, json_schema};
use serde_json::{Value, json};

/// Any JSON value, kept as the API server understood it.
pub(crate) fn any_json(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "x-kubernetes-preserve-unknown-fields": true })
}

/// A point in time, RFC 3339.
pub(crate) fn time(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "format": "date-time" })
}

/// What ended an attempt: the word that the store keeps.
pub(crate) fn cause(_: &mut SchemaGenerator) -> Schema {
    let causes: Vec<&str> = Cause::ALL.iter().map(|cause| cause.as_str()).collect();
    json_schema!({ "type": "string", "enum": causes })
}

/// A list of [`k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition`], one for each type.
pub(crate) fn conditions(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "maxItems": 32,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
        "items": {
            "type": "object",
            "description": "One thing that is so, is not so, or is not known.",
            "required": ["type", "status", "lastTransitionTime", "reason", "message"],
            "properties": {
                "type": {
                    "type": "string", "maxLength": 316,
                    "description": "What the condition is about.",
                },
                "status": {
                    "type": "string", "enum": ["True", "False", "Unknown"],
                    "description": "Whether it is so.",
                },
                "observedGeneration": {
                    "type": "integer", "format": "int64", "minimum": 0,
                    "description": "Generation of the spec that the condition was judged by.",
                },
                "lastTransitionTime": {
                    "type": "string", "format": "date-time",
                    "description": "When the status last changed.",
                },
                "reason": {
                    "type": "string", "minLength": 1, "maxLength": 1024,
                    "pattern": "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$",
                    "description": "Why, in one word.",
                },
                "message": {
                    "type": "string", "maxLength": 32768,
                    "description": "Why, in a sentence, with the way out where a person is needed.",
                },
            },
        },
    })
}

/// What a schema of Kubernetes has and what it must not have.
///
/// - No `nullable` (nor `null` among the words of an enum): the API server then drops an explicit `null`, which makes it
///   the same as a field that was left out, for rules and for the operator.
/// - No `default`: the API server must not write down what a definition may say.
/// - Descriptions without the line breaks of the source, which `kubectl explain` would keep.
pub(crate) fn plain(schema: &mut Schema) {
    schema.remove("nullable");
    schema.remove("default");
    if let Some(Value::Array(words)) = schema.get_mut("enum") {
        words.retain(|word| !word.is_null());
    }
    if let Some(Value::String(text)) = schema.get_mut("description") {
        *text = text.replace('\n', " ");
    }
    schemars::transform::transform_subschemas(&mut plain, schema);
}

/// Declares `metadata.name` in the schema of a kind, so that a rule about it can say where it is.
pub(crate) fn with_name(schema: &mut Schema) {
    if let Some(Value::Object(properties)) = schema.get_mut("properties") {
        properties.insert(
            "metadata".to_owned(),
            json!({ "type": "object", "properties": { "name": { "type": "string" } } }),
        );
    }
}
