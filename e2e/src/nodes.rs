//! Where a test's pods may run: first on the node that the test breaks, later on any node.

use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, Patch, PatchParams};
use serde_json::{Value, json};

use crate::cluster::{FAULTY_NODE, SAFE_NODE};
use crate::wait::{eventually, secs};
use crate::{Agent, Result, TestContext};

/// Label of the nodes that take the pods of [`with_placement`].
const PLACEMENT_LABEL: &str = "e2e-placement";

/// Limit for the API server to notice that a node became ready or not ready.
const NODE_STATUS_TIMEOUT: Duration = secs(60);

/// Makes the agent's pods follow [`TestContext::schedule_on_faulty_node`] and [`TestContext::schedule_anywhere`].
pub fn with_placement(agent: Agent) -> Agent {
    agent.pod(json!({ "nodeSelector": { PLACEMENT_LABEL: "yes" } }))
}

impl TestContext {
    /// From now on pods of [`with_placement`] are scheduled on the node that the test will break.
    pub async fn schedule_on_faulty_node(&self) -> Result {
        self.label_node(SAFE_NODE, json!(null)).await?;
        self.label_node(FAULTY_NODE, json!("yes")).await
    }

    /// From now on pods of [`with_placement`] are scheduled on any node. Running pods stay.
    pub async fn schedule_anywhere(&self) -> Result {
        self.label_node(SAFE_NODE, json!("yes")).await
    }

    async fn label_node(&self, node: &str, value: Value) -> Result {
        let change = json!({ "metadata": { "labels": { PLACEMENT_LABEL: value } } });
        let nodes: Api<Node> = Api::all(self.client.clone());
        nodes.patch(node, &PatchParams::default(), &Patch::Merge(&change)).await?;
        Ok(())
    }

    /// Waits up to a minute until the API server reports the node as ready, or as not ready.
    pub async fn wait_for_node_ready(&self, node: &str, ready: bool) -> Result {
        let nodes: Api<Node> = Api::all(self.client.clone());
        eventually(format!("node {node} to have ready={ready}"), NODE_STATUS_TIMEOUT, async || {
            let conditions = nodes.get(node).await?.status.and_then(|status| status.conditions);
            let reported =
                conditions.iter().flatten().any(|one| one.type_ == "Ready" && one.status == "True");
            Ok((reported == ready).then_some(()))
        })
        .await
    }
}
