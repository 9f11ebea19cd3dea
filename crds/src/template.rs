//! The pod template: a thin schema, so that rules can refuse what must be refused, over everything a pod may have.

use std::borrow::Cow;

use k8s_openapi::api::core::v1::PodTemplateSpec;
use kube::core::{Rule, validate};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// A pod template as it was written: fields that this program does not know are kept, so that its hash stays and the
/// API server, which may be newer, gets to see them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PodTemplate(pub Map<String, Value>);

impl PodTemplate {
    /// The template as the type that this program knows.
    ///
    /// # Errors
    ///
    /// The template is no `PodTemplateSpec`, such as one whose `image` is a number; the message names the place.
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
        "description": "Labels and annotations of the pods. Their names are made by the operator.",
        "properties": {
            "labels": {
                "type": "object", "maxProperties": 64,
                "description": "Labels of the pods. Those that begin with `dalsegno.dev/` are dropped.",
                "additionalProperties": { "type": "string", "maxLength": 63 },
            },
            "annotations": {
                "type": "object", "maxProperties": 64,
                "description": "Annotations of the pods. Those that begin with `dalsegno.dev/` are dropped.",
                "additionalProperties": { "type": "string", "maxLength": 131_072 },
            },
        },
    })
}

fn spec() -> Schema {
    let mut spec = json_schema!({
        "type": "object",
        "x-kubernetes-preserve-unknown-fields": true,
        "description": "The pod's spec. Any field of a pod may stand here; those listed are the ones with rules of \
                        their own.",
        "required": ["containers"],
        "properties": {
            "restartPolicy": {
                "type": "string", "maxLength": 32,
                "description": "`Never`, which is also what it is when left out: a worker is replaced by a new pod and \
                                never restarted in place.",
            },
            "nodeName": {
                "type": "string", "maxLength": 253,
                "description": "Must be left out: it would go round the scheduler. Use `nodeSelector` or `affinity`.",
            },
            "containers": containers(
                "The containers of the pod: the worker, which is the one named `agent` or the only one, and helpers \
                 that live as long as it does.",
                1,
            ),
            "initContainers": containers(
                "Containers that run before the worker; with `restartPolicy: Always`, beside it.",
                0,
            ),
        },
    });
    for rule in rules() {
        validate(&mut spec, rule).expect("a rule is plain JSON");
    }
    spec
}

/// The same in an AgentDefinition and in an AgentRun with an inline agent, since they stand in the template itself.
fn rules() -> [Rule; 4] {
    [
        Rule::new("!has(self.restartPolicy) || self.restartPolicy == 'Never'")
            .message("remove restartPolicy or set it to Never: a worker is replaced by a new pod, never restarted in place")
            .field_path(".restartPolicy"),
        Rule::new("!has(self.nodeName) || self.nodeName == ''")
            .message("remove nodeName, which goes round the scheduler: use nodeSelector or affinity")
            .field_path(".nodeName"),
        Rule::new("self.containers.size() == 1 || self.containers.exists(c, c.name == 'agent')")
            .message("name the worker's container agent: with several containers, that name tells which one the worker is")
            .field_path(".containers"),
        Rule::new("self.containers.all(c, !has(c.restartPolicy) && !has(c.restartPolicyRules))")
            .message(
                "remove restartPolicy and restartPolicyRules from the containers: a worker is replaced by a new pod, and \
                 only init containers may be restarted in place",
            )
            .field_path(".containers"),
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
            "description": "A container. Any field of a container may stand here.",
            "required": ["name", "image"],
            "properties": {
                "name": {
                    "type": "string", "minLength": 1, "maxLength": 63,
                    "description": "Name of the container, unique in the pod.",
                },
                "image": {
                    "type": "string", "minLength": 1, "maxLength": 1024,
                    "description": "Image of the container, best named by its digest.",
                },
                "restartPolicy": {
                    "type": "string", "maxLength": 32,
                    "description": "Only for init containers: `Always` makes one a sidecar.",
                },
                "restartPolicyRules": {
                    "type": "array", "maxItems": 20,
                    "description": "Only for init containers: rules for restarting in place.",
                    "items": {
                        "type": "object", "x-kubernetes-preserve-unknown-fields": true,
                        "description": "A rule for restarting in place.",
                    },
                },
            },
        },
    })
}
