//! Builders for AgentRuns and AgentDefinitions of the scripted agent (`e2e/agent`).

use serde_json::{Value, json};

use crate::objects::merge;

/// An image with Python, for agents that are a script.
pub const PYTHON: &str = "registry.dalsegno.test/dalsegno-example-python:dev";

/// The image of the scripted agent. Its README describes the input.
pub const IMAGE: &str = "registry.dalsegno.test/dalsegno-e2e-agent:dev";

/// A builder for an AgentRun of the scripted agent.
///
/// Every part is JSON that is merged over the tests' defaults: short deadlines and short backoffs.
#[derive(Clone, Debug)]
pub struct Agent {
    script: Value,
    definition: Definition,
    reference: Option<String>,
    spec: Value,
}

impl Agent {
    /// A run with an inline agent. `script` is the agent's input.
    pub fn new(script: Value) -> Self {
        Self {
            script,
            definition: Definition::new(),
            reference: None,
            spec: json!({
                "recovery": { "backoff": { "initialSeconds": 1, "maxSeconds": 2 } },
            }),
        }
    }

    /// A run of the AgentDefinition with this name. `script` is the agent's input.
    pub fn from_definition(definition: &str, script: Value) -> Self {
        Self { reference: Some(definition.to_owned()), ..Self::new(script) }
    }

    /// Merges this over the AgentRun's `spec`.
    pub fn spec(mut self, spec: Value) -> Self {
        merge(&mut self.spec, &spec);
        self
    }

    /// Changes the inline agent's definition.
    pub fn with_definition(mut self, change: impl FnOnce(Definition) -> Definition) -> Self {
        self.definition = change(self.definition);
        self
    }

    /// Merges this over the pod's `spec`.
    pub fn pod(self, pod: Value) -> Self {
        self.with_definition(|definition| definition.pod(pod))
    }

    /// Merges this over the worker's container.
    pub fn container(self, container: Value) -> Self {
        self.with_definition(|definition| definition.container(container))
    }

    /// The AgentRun's manifest. `ledger` is the ledger's URL, which is added to the input.
    pub fn manifest(&self, name: &str, ledger: &str) -> Value {
        let mut input = json!({ "ledger": ledger });
        merge(&mut input, &self.script);
        let mut spec = match &self.reference {
            Some(name) => json!({ "agentRef": { "name": name } }),
            None => json!({ "agent": self.definition.agent() }),
        };
        merge(&mut spec, &json!({ "input": input }));
        merge(&mut spec, &self.spec);
        json!({ "metadata": { "name": name }, "spec": spec })
    }
}

/// A builder for an agent's definition, inline or as an AgentDefinition.
#[derive(Clone, Debug)]
pub struct Definition {
    container: Value,
    pod: Value,
    spec: Value,
}

impl Default for Definition {
    fn default() -> Self {
        Self::new()
    }
}

impl Definition {
    /// The scripted agent with its current image.
    pub fn new() -> Self {
        Self {
            container: json!({
                "name": "agent",
                "image": IMAGE,
                // Each build pushes this tag again.
                "imagePullPolicy": "Always",
                "resources": {
                    "requests": { "cpu": "5m", "memory": "16Mi" },
                    "limits": { "memory": "64Mi" },
                },
            }),
            pod: json!({ "terminationGracePeriodSeconds": 2 }),
            spec: json!({}),
        }
    }

    /// Merges this over the worker's container.
    pub fn container(mut self, container: Value) -> Self {
        merge(&mut self.container, &container);
        self
    }

    /// Merges this over the pod's `spec`.
    pub fn pod(mut self, pod: Value) -> Self {
        merge(&mut self.pod, &pod);
        self
    }

    /// Merges this over the other fields of the definition: `agentVersion`, `compatibleWith`, `defaults`.
    pub fn spec(mut self, spec: Value) -> Self {
        merge(&mut self.spec, &spec);
        self
    }

    /// Sets the image of the worker's container.
    pub fn image(self, image: &str) -> Self {
        self.container(json!({ "image": image }))
    }

    /// The `spec` of an AgentDefinition, which is also the `agent` of an AgentRun.
    pub fn agent(&self) -> Value {
        let mut pod = json!({ "containers": [self.container] });
        merge(&mut pod, &self.pod);
        let mut agent = json!({ "template": { "spec": pod } });
        merge(&mut agent, &self.spec);
        agent
    }

    /// The AgentDefinition's manifest.
    pub fn manifest(&self, name: &str) -> Value {
        json!({ "metadata": { "name": name }, "spec": self.agent() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_has_an_inline_agent_or_a_reference_and_never_both() {
        let inline = Agent::new(json!({ "turns": 1 })).manifest("r", "http://ledger");
        assert!(inline["spec"]["agent"]["template"]["spec"]["containers"][0]["image"].is_string());
        assert_eq!(inline["spec"]["input"], json!({ "turns": 1, "ledger": "http://ledger" }));
        let named = Agent::from_definition("d", json!({})).manifest("r", "http://ledger");
        assert_eq!(named["spec"]["agentRef"]["name"], "d");
        assert!(named["spec"]["agent"].is_null());
    }
}
