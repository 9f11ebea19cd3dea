//! The pod template. Its schema lists only the fields that have validation rules, and preserves all other fields of a
//! pod.

use std::borrow::Cow;

use k8s_openapi::api::core::v1::PodTemplateSpec;
use kube::core::{Rule, validate};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// A pod template as the user wrote it. Fields that this program does not know are kept. So the template's hash is
/// stable, and an API server of a newer version receives them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PodTemplate(pub Map<String, Value>);

impl PodTemplate {
    /// Parses the template into the typed struct of this program's Kubernetes version.
    ///
    /// # Errors
    ///
    /// The template is not a valid `PodTemplateSpec`, for example because `image` is a number. The message names the
    /// field.
    pub fn pod_template(&self) -> Result<PodTemplateSpec, serde_json::Error> {
        PodTemplateSpec::deserialize(Value::Object(self.0.clone()))
    }
}

impl From<Map<String, Value>> for PodTemplate {
    fn from(map: Map<String, Value>) -> Self {
        Self(map)
    }
}

impl TryFrom<&PodTemplateSpec> for PodTemplate {
    type Error = serde_json::Error;

    fn try_from(template: &PodTemplateSpec) -> Result<Self, Self::Error> {
        serde_json::from_value(serde_json::to_value(template)?)
    }
}

impl JsonSchema for PodTemplate {
    fn schema_name() -> Cow<'static, str> {
        "PodTemplate".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "object",
            "description": "A pod template.",
            "required": ["spec"],
            "properties": { "metadata": metadata(), "spec": spec() },
        })
    }
}

fn metadata() -> Schema {
    json_schema!({
        "type": "object",
        "description": "Labels and annotations of the pods. The operator sets their names.",
        "properties": {
            "labels": {
                "type": "object", "maxProperties": 64,
                "description": "Labels of the pods. The operator drops labels that begin with `dalsegno.dev/`.",
                "additionalProperties": { "type": "string", "maxLength": 63 },
            },
            "annotations": {
                "type": "object", "maxProperties": 64,
                "description": "Annotations of the pods. The operator drops annotations that begin with `dalsegno.dev/`.",
                "additionalProperties": { "type": "string", "maxLength": 131_072 },
            },
        },
    })
}

fn spec() -> Schema {
    let mut spec = json_schema!({
        "type": "object",
        "x-kubernetes-preserve-unknown-fields": true,
        "description": "The pod's spec. All fields of a pod are allowed. The fields listed here have additional rules.",
        "required": ["containers"],
        "properties": {
            "restartPolicy": {
                "type": "string", "maxLength": 32,
                "description": "`Never`, which is also the default. A worker is replaced by a new pod, and never \
                                restarted in place.",
            },
            "nodeName": {
                "type": "string", "maxLength": 253,
                "description": "Must be unset, because it bypasses the scheduler. Use `nodeSelector` or `affinity`.",
            },
            "containers": containers(
                "The containers of the pod. The worker is the one named `agent`, or the only one. The others are helpers \
                 that run as long as the worker does.",
                1,
            ),
            "initContainers": containers(
                "Containers that run before the worker. With `restartPolicy: Always` they also run at the same time as \
                 the worker.",
                0,
            ),
        },
    });
    for rule in rules() {
        validate(&mut spec, rule).expect("a rule is plain JSON");
    }
    spec
}

/// The rules are part of the template's schema, so they are the same in an AgentDefinition and in an inline agent.
fn rules() -> [Rule; 5] {
    [
        Rule::new("!has(self.restartPolicy) || self.restartPolicy == 'Never'")
            .message("remove restartPolicy or set it to Never: a worker is replaced by a new pod, and never restarted in place")
            .field_path(".restartPolicy"),
        Rule::new("!has(self.nodeName) || self.nodeName == ''")
            .message("remove nodeName, because it bypasses the scheduler: use nodeSelector or affinity")
            .field_path(".nodeName"),
        Rule::new("self.containers.size() == 1 || self.containers.exists(c, c.name == 'agent')")
            .message("name the worker's container agent: with several containers, this name identifies the worker")
            .field_path(".containers"),
        Rule::new("self.containers.all(c, !has(c.restartPolicy) && !has(c.restartPolicyRules))")
            .message(
                "remove restartPolicy and restartPolicyRules from the containers: a worker is replaced by a new pod, and \
                 only init containers can be restarted in place",
            )
            .field_path(".containers"),
        Rule::new(
            "!has(self.initContainers) || self.initContainers.all(c, !has(c.restartPolicyRules) || \
             c.restartPolicyRules.all(r, has(r.action) && r.action == 'Restart'))",
        )
        .message(
            "use only the action Restart in restartPolicyRules: other actions restart the worker in place, and a worker is \
             replaced by a new pod",
        )
        .field_path(".initContainers"),
    ]
}

fn containers(description: &str, at_least: usize) -> Schema {
    json_schema!({
        "type": "array",
        "description": description,
        "minItems": at_least,
        "maxItems": 16,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["name"],
        "items": {
            "type": "object",
            "x-kubernetes-preserve-unknown-fields": true,
            "description": "A container. All fields of a container are allowed.",
            "required": ["name", "image"],
            "properties": {
                "name": {
                    "type": "string", "minLength": 1, "maxLength": 63,
                    "description": "Name of the container, unique in the pod.",
                },
                "image": {
                    "type": "string", "minLength": 1, "maxLength": 1024,
                    "description": "Image of the container, preferably named by digest.",
                },
                "restartPolicy": {
                    "type": "string", "maxLength": 32,
                    "description": "Only for init containers. `Always` makes the container a sidecar.",
                },
                "restartPolicyRules": {
                    "type": "array", "maxItems": 20,
                    "description": "Only for init containers. Rules for restarts in place.",
                    "items": {
                        "type": "object", "x-kubernetes-preserve-unknown-fields": true,
                        "description": "A rule for restarts in place.",
                        "properties": {
                            "action": {
                                "type": "string", "maxLength": 32,
                                "description": "`Restart`, which restarts only this container.",
                            },
                        },
                    },
                },
            },
        },
    })
}
