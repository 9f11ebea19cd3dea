//! Invariants of every field of every kind.

#![allow(clippy::unwrap_used)] // helpers of tests may panic

use dalsegno_crds::crds;
use serde_json::Value;

/// Calls `visit` for `schema` and every schema below it, with its path.
fn walk(path: &str, schema: &Value, visit: &mut impl FnMut(&str, &Value)) {
    visit(path, schema);
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        if name == "metadata" && !path.contains('.') {
            continue; // the API server describes and bounds it
        }
        walk(&format!("{path}.{name}"), property, visit);
    }
    for (keyword, suffix) in [("items", "[]"), ("additionalProperties", "{}")] {
        if schema[keyword].is_object() {
            walk(&format!("{path}{suffix}"), &schema[keyword], visit);
        }
    }
}

/// Calls `visit` for every schema of every kind.
fn each_schema(mut visit: impl FnMut(&str, &Value)) {
    let mut seen = 0;
    for crd in crds() {
        for version in &crd.spec.versions {
            let schema = serde_json::to_value(&version.schema.as_ref().unwrap().open_api_v3_schema).unwrap();
            walk(&crd.spec.names.kind, &schema, &mut |path, schema| {
                seen += 1;
                visit(path, schema);
            });
        }
    }
    assert!(seen > 150, "only {seen} schemas were seen");
}

#[test]
fn every_field_is_described() {
    each_schema(|path, schema| {
        let is_member = path.ends_with("{}") || (path.ends_with("[]") && schema["type"] != "object");
        let description = schema["description"].as_str().unwrap_or_default();
        assert!(is_member || description.ends_with('.'), "{path} has no description: {description:?}");
    });
}

#[test]
fn every_string_and_list_is_bounded() {
    each_schema(|path, schema| match schema["type"].as_str() {
        Some("string") => assert!(
            schema["maxLength"].is_u64() || schema["enum"].is_array() || schema["format"] == "date-time",
            "{path} is unbounded"
        ),
        Some("array") => {
            assert!(schema["maxItems"].is_u64(), "{path} is unbounded");
            assert!(
                schema["x-kubernetes-list-type"].is_string() || path.ends_with("restartPolicyRules"),
                "{path} does not say how it is merged"
            );
        }
        Some("object") => assert!(
            !schema["additionalProperties"].is_object() || schema["maxProperties"].is_u64(),
            "{path} is unbounded"
        ),
        Some("integer") => {
            assert!(schema["minimum"].is_number() || path.ends_with("exitCode"), "{path} has no minimum")
        }
        Some("boolean") => {}
        None => assert_eq!(schema["x-kubernetes-preserve-unknown-fields"], true, "{path} has no type"),
        Some(other) => panic!("{path}: {other} is not used here"),
    });
}

#[test]
fn every_number_of_a_spec_has_an_upper_bound() {
    each_schema(|path, schema| {
        if path.contains(".spec") && schema["type"] == "integer" {
            assert!(schema["maximum"].is_number(), "{path} is unbounded");
        }
    });
}

#[test]
fn the_api_server_knows_every_format() {
    each_schema(|path, schema| {
        if let Some(format) = schema["format"].as_str() {
            assert!(["int32", "int64", "date-time"].contains(&format), "{path}: {format}");
        }
    });
}

#[test]
fn nothing_is_defaulted_or_nullable() {
    each_schema(|path, schema| {
        assert!(schema.get("default").is_none(), "{path} has a default");
        assert!(schema.get("nullable").is_none(), "{path} is nullable");
        let variants = schema["enum"].as_array().map_or(&[][..], Vec::as_slice);
        assert!(variants.iter().all(Value::is_string), "{path}: {variants:?}");
    });
}

#[test]
fn every_rule_has_a_message() {
    let mut rules = 0;
    each_schema(|path, schema| {
        for rule in schema["x-kubernetes-validations"].as_array().into_iter().flatten() {
            rules += 1;
            let message = rule["message"].as_str().unwrap_or_default();
            assert!(message.len() > 20 && !message.contains('\n'), "{path}: {rule}");
        }
    });
    assert!(rules >= 15, "only {rules} rules were seen");
}

#[test]
fn kinds_have_short_names_and_a_category() {
    let names: Vec<_> = crds()
        .iter()
        .map(|crd| {
            let names = &crd.spec.names;
            let version = &crd.spec.versions[0];
            assert_eq!((crd.spec.group.as_str(), version.name.as_str()), ("dalsegno.dev", "v1alpha1"));
            assert_eq!(crd.spec.scope, "Namespaced");
            assert_eq!(names.categories.as_deref(), Some(&["dalsegno".to_owned()][..]));
            assert!(version.subresources.as_ref().unwrap().status.is_some());
            format!("{}/{}", names.plural, names.short_names.as_ref().unwrap().join(","))
        })
        .collect();
    assert_eq!(names, ["agentdefinitions/adef", "agentruns/arun", "agentapprovals/aapp"]);
}

#[test]
fn columns_and_selectors_point_at_fields() {
    for crd in crds() {
        let version = &crd.spec.versions[0];
        let schema = serde_json::to_value(&version.schema.as_ref().unwrap().open_api_v3_schema).unwrap();
        let columns = version.additional_printer_columns.iter().flatten().map(|column| &column.json_path);
        let selectors = version.selectable_fields.iter().flatten().map(|field| &field.json_path);
        for path in columns.chain(selectors) {
            let simple = path.split('[').next().unwrap();
            let mut found = &schema;
            for name in simple.split('.').filter(|name| !name.is_empty()) {
                found = &found["properties"][name];
            }
            assert!(found.is_object() || path == ".metadata.creationTimestamp", "{path} points at nothing");
        }
    }
}

#[test]
fn on_corrupt_checkpoint_has_two_values_in_a_run_and_in_a_definition() {
    let mut found = 0;
    each_schema(|path, schema| {
        if path.ends_with("onCorruptCheckpoint") {
            found += 1;
            assert_eq!(schema["enum"], serde_json::json!(["Hold", "LastGood"]), "{path}");
        }
    });
    assert_eq!(found, 2);
}

#[test]
fn a_run_and_a_definition_bound_the_number_of_boundaries_between_snapshots() {
    let mut found = Vec::new();
    each_schema(|path, schema| {
        if path.ends_with(".checkpoints.snapshotEvery") {
            assert_eq!(
                (schema["minimum"].as_f64(), schema["maximum"].as_f64()),
                (Some(1.0), Some(50.0)),
                "{path}"
            );
            found.push(path.to_owned());
        }
    });
    found.sort();
    assert_eq!(
        found,
        [
            "AgentDefinition.spec.defaults.checkpoints.snapshotEvery",
            "AgentRun.spec.checkpoints.snapshotEvery"
        ]
    );
}
