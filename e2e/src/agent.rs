//! The agents of the stories: the scripted test agent of `e2e/agent`, in a run of its own or behind a definition.

use serde_json::{Value, json};

use crate::objects::merge;

/// The scripted agent. Its script is the run's input; the README beside it tells the words.
pub const IMAGE: &str = "registry.dalsegno.test/dalsegno-e2e-agent:dev";

/// An AgentRun to be: what the scripted agent does, and what stands around it.
///
/// Every part is JSON that is merged over what a story usually wants: short deadlines, small backoffs.
#[derive(Clone, Debug)]
pub struct Agent {
    script: Value,
    definition: Definition,
    reference: Option<String>,
    spec: Value,
}

impl Agent {
    /// An agent that does what `script` says, written out in its AgentRun.
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

    /// The same, by reference to a definition that the story has made.
    pub fn of(definition: &str, script: Value) -> Self {
        Self { reference: Some(definition.to_owned()), ..Self::new(script) }
    }

    /// Merges this over the AgentRun's `spec`.
    pub fn spec(mut self, spec: Value) -> Self {
        merge(&mut self.spec, &spec);
        self
    }

    /// Changes the inline agent.
    pub fn with(mut self, change: impl FnOnce(Definition) -> Definition) -> Self {
        self.definition = change(self.definition);
        self
    }

    /// Merges this over the pod's `spec`.
    pub fn pod(self, pod: Value) -> Self {
        self.with(|definition| definition.pod(pod))
    }

    /// Merges this over the worker's container.
    pub fn container(self, container: Value) -> Self {
        self.with(|definition| definition.container(container))
    }

    /// The AgentRun's manifest; the script learns where the ledger is.
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

/// What an agent is: a pod, and a version.
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
    /// The scripted agent, as its image is now.
    pub fn new() -> Self {
        Self {
            container: json!({
                "name": "agent",
                "image": IMAGE,
                // The tag is pushed again with every build.
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

    /// Merges this over what stands beside the template: `agentVersion`, `compatibleWith`, `defaults`.
    pub fn spec(mut self, spec: Value) -> Self {
        merge(&mut self.spec, &spec);
        self
    }

    /// An image of the scripted agent.
    pub fn image(self, image: &str) -> Self {
        self.container(json!({ "image": image }))
    }

    /// What stands in an AgentDefinition's `spec`, and in the `agent` of a run.
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
    fn a_run_bears_its_agent_or_its_name_and_never_both() {
        let inline = Agent::new(json!({ "turns": 1 })).manifest("r", "http://ledger");
        assert!(inline["spec"]["agent"]["template"]["spec"]["containers"][0]["image"].is_string());
        assert_eq!(inline["spec"]["input"], json!({ "turns": 1, "ledger": "http://ledger" }));
        let named = Agent::from_definition("d", json!({})).manifest("r", "http://ledger");
        assert_eq!(named["spec"]["agentRef"]["name"], "d");
        assert!(named["spec"]["agent"].is_null());
    }
}
