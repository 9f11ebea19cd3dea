//! Where a story's pods may be: on the node that it breaks first, and anywhere once they are there.

use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, Patch, PatchParams};
use serde_json::{Value, json};

use crate::cluster::{FAULTY_NODE, SAFE_NODE};
use crate::wait::{eventually, secs};
use crate::{Agent, Result, TestContext};

/// Label of the nodes that take the pods of [`on_faulty_node`].
const HOME: &str = "e2e-home";

/// How long a node may take to be seen as it is.
const SEEN: Duration = secs(60);

/// An agent whose pods go only where [`TestContext::only_faulty_node`] and [`TestContext::any_node`] let them.
pub fn with_placement(agent: Agent) -> Agent {
    agent.pod(json!({ "nodeSelector": { HOME: "yes" } }))
}

impl TestContext {
    /// From now on pods of [`on_faulty_node`] go to the node that the story will break.
    ///
    /// # Errors
    ///
    /// The API server refuses it.
    pub async fn schedule_on_faulty_node(&self) -> Result {
        self.label_node(SAFE_NODE, json!(null)).await?;
        self.label_node(FAULTY_NODE, json!("yes")).await
    }

    /// From now on they go to any node: pods that are there stay.
    ///
    /// # Errors
    ///
    /// The API server refuses it.
    pub async fn schedule_anywhere(&self) -> Result {
        self.label_node(SAFE_NODE, json!("yes")).await
    }

    async fn label_node(&self, node: &str, value: Value) -> Result {
        let change = json!({ "metadata": { "labels": { HOME: value } } });
        let nodes: Api<Node> = Api::all(self.client.clone());
        nodes.patch(node, &PatchParams::default(), &Patch::Merge(&change)).await?;
        Ok(())
    }

    /// Waits until the API server sees a node Ready, or not.
    ///
    /// # Errors
    ///
    /// It does not within a minute.
    pub async fn wait_for_node_ready(&self, node: &str, ready: bool) -> Result {
        let nodes: Api<Node> = Api::all(self.client.clone());
        eventually(format!("node {node} to be seen ready: {ready}"), SEEN, async || {
            let conditions = nodes.get(node).await?.status.and_then(|status| status.conditions);
            let seen = conditions.iter().flatten().any(|one| one.type_ == "Ready" && one.status == "True");
            Ok((seen == ready).then_some(()))
        })
        .await
    }
}
